"""`on_text_delta`, `on_reasoning_delta`, `on_tool_call_delta`: every piece, before it is published;
stopping there closes the provider's connection and keeps the partial message."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from haystack import component
from haystack.dataclasses import ChatMessage, StreamingChunk
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.conformance.hooked import hook
from tests.unit.agent.runs import call_turn, chunk, text_turn

from hayrunner.adapters.convert import from_wire
from hayrunner.hooks import HookRun, Stop
from hayrunner_contracts.events import MessageEnd, ReasoningChunk, TextChunk, ToolOutput
from hayrunner_contracts.testing import eventually

SECRET = "card 4711"
# The pieces come at once and the connection stays open: nothing but the client ends it.
PIECES = [chunk({"content": piece}) for piece in ("One. ", "Two. ", SECRET, "Four. ")]
HANGING = [*PIECES, {"$hang": True}]
DRIPPING = [*PIECES, *({"$sleep": 0.005} for _ in range(20_000))]
CALLING = [
    *call_turn(("add", '{"a": 1'))[:1],
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": f', "{SECRET}'}}]}),
    {"$hang": True},
]
REASONING = [*(chunk({"reasoning_content": text}) for text in ("hm", SECRET)), {"$hang": True}]
PROMPT_S = 0.5


@component
class SyncGenerator:
    """Streams from a thread, and has no async."""

    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], streaming_callback: Callable[[StreamingChunk], None]
    ) -> dict[str, Any]:
        for piece in ("One. ", SECRET, "Three. "):
            streaming_callback(StreamingChunk(piece))
        raise AssertionError("the callback did not raise")


@component
class SilentGenerator:
    """Does not stream."""

    def __init__(self, text: str) -> None:
        self._text = text

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        return {"replies": [ChatMessage.from_assistant(self._text)]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(self, messages: list[ChatMessage]) -> dict[str, Any]:
        return self.run(messages)


async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def stopping_at(text: str) -> Any:
    return lambda *given: Stop("enough") if text in given[-1] else None


@pytest.mark.parametrize("turn", [HANGING, DRIPPING], ids=["hanging", "dripping"])
async def test_stop_closes_the_providers_connection_promptly_and_keeps_the_partial_message(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str, turn: list[Any]
) -> None:
    provider, generator = await provide([turn], kind)
    stopped_at: list[float] = []

    def stop(run: HookRun, text: str) -> Stop | None:
        if SECRET not in text:
            return None
        stopped_at.append(time.monotonic())
        return Stop("enough")

    told = await driver.tell(agent_over(generator, hooks=[hook(on_text_delta=stop)]))

    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")
    assert provider.disconnects[0] - stopped_at[0] < PROMPT_S
    assert len(stopped_at) == 1
    assert (told.code, told.why, told.result.finish_reason) == ("stopped", "enough", "stopped")
    assert told.answer == "One. Two. "
    [message] = told.messages
    assert from_wire(message).text == "One. Two. "
    assert message.meta["finish_reason"] == "stopped"
    assert SECRET not in told.everything
    if driver.streams:
        assert "".join(event.content for event in told.of(TextChunk)) == "One. Two. "


async def test_stop_closes_the_connection_of_the_responses_generator_too(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    fields = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
    kind = {"type": "response.output_text.delta", "sequence_number": 0}
    turn = [{**kind, **fields, "delta": piece} for piece in ("One. ", SECRET)]
    provider, generator = await provide([[*turn, {"$hang": True}]], "responses")
    hooks = [hook(on_text_delta=stopping_at(SECRET))]
    told = await driver.tell(agent_over(generator, hooks=hooks))
    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")
    assert (told.code, told.answer) == ("stopped", "One. ")


async def test_stop_in_reasoning_shows_nothing_of_that_piece(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([REASONING])
    hooks = [hook(on_reasoning_delta=stopping_at(SECRET))]
    told = await driver.tell(agent_over(generator, hooks=hooks))
    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")
    assert (told.code, told.messages) == ("stopped", [])
    assert SECRET not in told.everything
    if driver.streams:
        assert [event.content for event in told.of(ReasoningChunk)] == ["hm"]


async def test_stop_in_a_calls_arguments_ends_the_call_with_an_error_output(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide([CALLING], kind)
    hooks = [hook(on_tool_call_delta=stopping_at(SECRET))]
    told = await driver.tell(agent_over(generator, tools=[add], hooks=hooks))
    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")
    assert told.code == "stopped"
    assert SECRET not in told.everything
    if driver.streams:
        assert [output.is_error for output in told.of(ToolOutput)] == [True]


async def test_a_delta_hook_sees_every_piece_before_it_is_published(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    turn = call_turn(("add", {"a": 1, "b": 2}), text="Adding.")
    _, generator = await provide([turn, text_turn("It ", "is ", "3.")], kind)
    texts: list[str] = []
    calls: list[tuple[str, str, str]] = []

    def on_call(run: HookRun, call_id: str, name: str, text: str) -> None:
        calls.append((call_id, name, text))

    hooks = [hook(on_text_delta=lambda run, text: texts.append(text), on_tool_call_delta=on_call)]
    told = await streaming.tell(agent_over(generator, tools=[add], hooks=hooks))

    assert "".join(texts) == "Adding.It is 3." == "".join(e.content for e in told.of(TextChunk))
    assert {(call_id, name) for call_id, name, _ in calls} == {("call_0", "add")}
    assert "".join(text for *_, text in calls) == '{"a": 1, "b": 2}'


async def test_a_reply_that_is_not_streamed_is_one_piece(
    driver: Driver, agent_over: AgentOver
) -> None:
    texts: list[str] = []
    hooks = [hook(on_text_delta=lambda run, text: texts.append(text))]
    told = await driver.tell(agent_over(SilentGenerator("Hello there"), hooks=hooks))
    assert (texts, told.answer) == (["Hello there"], "Hello there")

    stop = [hook(on_text_delta=Stop("no"))]
    told = await driver.tell(agent_over(SilentGenerator(SECRET), hooks=stop))
    assert (told.code, told.answer, told.messages) == ("stopped", None, [])
    assert SECRET not in told.everything


async def test_a_generator_without_async_is_stopped_too(
    driver: Driver, agent_over: AgentOver
) -> None:
    hooks = [hook(on_text_delta=stopping_at(SECRET))]
    agent = agent_over(SyncGenerator(), hooks=hooks)
    told = await driver.tell(agent)
    assert (told.code, told.answer) == ("stopped", "One. ")
    assert SECRET not in told.everything


async def test_a_delta_hook_that_raises_closes_the_connection(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide([HANGING], kind)
    told = await driver.tell(agent_over(generator, hooks=[hook(on_text_delta=ValueError(SECRET))]))
    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")
    assert (told.code, told.answer, told.messages) == ("internal", None, [])


async def test_a_watched_run_is_cancelled_like_any_other(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide([HANGING], kind)
    running = await streaming.start(agent_over(generator, hooks=[hook(on_text_delta=None)]))
    await running.shows(TextChunk, 4)
    await running.cancel()
    told = await running.told()
    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")
    assert (told.result.status, told.of(MessageEnd)[0].finish_reason) == ("cancelled",) * 2
    assert told.answer == f"One. Two. {SECRET}Four. "
