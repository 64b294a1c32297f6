"""Retries beside hooks, in subagents, in other adapters, and where they are not ours to make."""

from collections.abc import Callable
from typing import Any

import pytest
from haystack import Pipeline, component
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage, StreamingChunk
from tests.unit.agent.conftest import Provide
from tests.unit.agent.kept import RAN, Case, Steps, attempt, built, framed, look
from tests.unit.agent.runs import agent_over, call_turn, chunk, tell, text_turn

from hayrunner import Run, Stream
from hayrunner.adapted import HaystackAgentAdapter, PipelineAgent
from hayrunner.errors import ConfigurationError, ProviderError
from hayrunner.hooks import (
    HookRun,
    ModelCall,
    ModelResponse,
    Patch,
    Retry,
    RunHooks,
    Stop,
)
from hayrunner.retry_policy import RetryPolicy
from hayrunner.testing.provider import Tries
from hayrunner_contracts.events import Data, Error, MessageEnd, TextChunk, ToolOutput
from hayrunner_contracts.following import MessageBuilder

BROKEN = [chunk({"content": "Hel"}), {"$abort": True}]
FAILED = [{"$status": 500, "body": {}}]
QUICK = RetryPolicy(first_wait_s=0.0)


class Watching(RunHooks):
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.seen: list[tuple[int, str]] = []
        self.replies: list[str | None] = []

    async def on_model_call(self, run: HookRun, call: ModelCall) -> Patch:
        self.asked.append(run.step)
        return Patch(temperature=0.5)

    async def on_text_delta(self, run: HookRun, text: str) -> Stop | None:
        self.seen.append((run.step, text))
        return Stop("enough") if text == "stop" else None

    async def on_model_response(self, run: HookRun, response: ModelResponse) -> None:
        self.replies.append(response.finish_reason)


async def test_hooks_are_asked_once_and_see_what_every_try_says(provide: Provide) -> None:
    provider, generator = await provide([Tries(BROKEN, FAILED, text_turn("Hel", "lo"))])
    hook = Watching()

    told = await tell(agent_over(generator, hooks=[hook], provider_retries=QUICK))

    assert told.outcome.answer == "Hello"
    assert hook.asked == [1]
    assert [one.body["temperature"] for one in provider.requests] == [0.5] * 3
    assert hook.seen == [(1, "Hel"), (2, "Hel"), (2, "lo")]
    assert hook.replies == ["stop"]


async def test_a_stop_of_a_hook_is_no_failure_of_the_provider(provide: Provide) -> None:
    turn = [chunk({"content": "stop"}), {"$hang": True}]
    provider, generator = await provide([turn])
    told = await tell(agent_over(generator, hooks=[Watching()], provider_retries=QUICK))
    assert (len(provider.requests), told.code) == (1, "stopped")


async def test_a_hooks_own_retry_is_another_call_with_retries_of_its_own(
    provide: Provide,
) -> None:
    class Picky(RunHooks):
        async def on_model_response(self, run: HookRun, response: ModelResponse) -> Retry | None:
            return Retry("shorter") if run.step == 2 else None

    turns = [Tries(BROKEN, text_turn("Hello")), Tries(BROKEN, text_turn("Hi"))]
    provider, generator = await provide(turns)
    told = await tell(
        agent_over(generator, hooks=[Picky()], provider_retries=RetryPolicy(retries=1))
    )
    message = MessageBuilder()
    for event in told.events:
        message.add(event)
    assert (len(provider.requests), told.outcome.answer, message.text) == (4, "Hi", "Hi")
    assert [e.data["step"] for e in told.of(Data)] == [1, 2, 3]


async def test_a_reply_of_the_wrong_form_is_repaired_and_not_retried(provide: Provide) -> None:
    provider, generator = await provide([text_turn("nonsense")])
    told = await tell(agent_over(generator, provider_retries=5), response_format={"type": "object"})
    assert (len(provider.requests), told.code) == (2, "structured_output")


async def test_a_subagent_tries_again_by_its_own_policy_and_unseen(provide: Provide) -> None:
    def look_up(name: str) -> str:
        """Looks a thing up."""
        return f"{name} is blue"

    ask = call_turn(("researcher", {"task": "find it"}))
    _, parent = await provide([ask, text_turn("It is blue.")])
    written = [*call_turn(("look_up", {"name": "tea"}))[:1], {"$abort": True}]
    whole = call_turn(("look_up", {"name": "tea"}))
    child_side, child = await provide([Tries(written, whole), Tries(BROKEN, text_turn("Blue"))])
    researcher = agent_over(child, tools=[look_up], provider_retries=QUICK)
    researcher.name = "researcher"

    told = await tell(agent_over(parent, subagents=[researcher], provider_retries=0))

    assert told.outcome.answer == told.text == "It is blue."
    assert len(child_side.requests) == 4
    outputs = [(e.agent, e.tool_output, e.is_error) for e in told.of(ToolOutput)]
    assert outputs[0][::2] == ("researcher", True)
    assert outputs[1:] == [("researcher", "tea is blue", False), (None, "Blue", False)]
    assert told.of(Data) == []
    assert told.outcome.model_calls == 2 + 4


@pytest.mark.parametrize("number", [0, 1])
async def test_a_run_goes_on_from_a_step_that_was_tried_again(
    provide: Provide, number: int
) -> None:
    whole = call_turn(("look", {"query": "tea"}), text="Looking.")
    turns = [Tries([*whole[:2], {"$abort": True}], whole), Tries(BROKEN, text_turn("Hello"))]
    _, generator = await provide(turns)
    agent = agent_over(generator, tools=[look], provider_retries=QUICK)
    first = Steps(ran=RAN)
    RAN.clear()
    outcome = await attempt(agent, Case([]), first)
    assert (outcome.answer, outcome.model_calls) == ("Hello", 4)

    kept = first.kept[number]
    again = Steps(found=kept.data)
    healthy, _ = await provide([whole, text_turn("Hello")])
    agent.llm.api_base_url = healthy.base_url
    second = await attempt(agent, Case([]), again)

    events = framed([*first.events[: kept.events], *again.events])
    assert built(events)[0] == "Looking.Hello"
    assert (second.answer, second.model_calls) == ("Hello", 3)
    steps = {event.step for event in events if isinstance(event, TextChunk)}
    assert steps == {1, 2, 3}


async def test_a_haystack_agents_calls_are_made_again_too(provide: Provide) -> None:
    provider, generator = await provide([Tries(FAILED, text_turn("Hello"))])
    agent = HaystackAgentAdapter("plain", HaystackAgent(chat_generator=generator))
    agent.provider_retries = QUICK
    assert (await tell(agent)).outcome.answer == "Hello"
    assert len(provider.requests) == 2


async def test_run_and_stream_alone_make_calls_again(
    provide: Provide, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(seconds: float) -> None:
        return

    monkeypatch.setattr("hayrunner.adapters.retries._sleep", sleep)
    _, generator = await provide([Tries(BROKEN, FAILED, text_turn("Hello"))])
    assert await Run(generator).run("hi") == "Hello"
    _, generator = await provide([Tries(BROKEN, FAILED, text_turn("Hello"))])
    stream = Stream(HaystackAgent(chat_generator=generator)).stream("hi")
    ends = [event async for event in stream if isinstance(event, MessageEnd)]
    assert [end.finish_reason for end in ends] == ["stop"]


async def test_a_pipelines_own_calls_are_not_made_again(provide: Provide) -> None:
    provider, generator = await provide([Tries(FAILED, text_turn("Hello"))])
    pipeline = Pipeline()
    pipeline.add_component("llm", generator)
    agent = PipelineAgent("rag", pipeline)
    agent.provider_retries = QUICK
    told = await tell(agent)
    assert (len(provider.requests), told.code) == (1, "provider_error")


async def test_an_authors_own_run_adapter_is_called_once(provide: Provide) -> None:
    calls: list[int] = []

    class Mine:
        async def run(self, messages: Any, **more: Any) -> str:
            calls.append(1)
            raise ProviderError("down")

    _, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator, provider_retries=QUICK)
    agent.get_run_adapter = lambda thread_id=None, user=None: Mine()
    told = await tell(agent, mode="answer")
    assert (told.code, calls) == ("provider_error", [1])


@component
class FlakySyncGenerator:
    """Breaks off the first time, from a thread."""

    def __init__(self) -> None:
        self.calls = 0

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: Callable[[StreamingChunk], None] | None = None,
    ) -> dict[str, Any]:
        self.calls += 1
        assert streaming_callback is not None
        streaming_callback(StreamingChunk("Hel"))
        if self.calls == 1:
            raise ConnectionResetError("gone")
        streaming_callback(StreamingChunk("lo"))
        return {"replies": [ChatMessage.from_assistant("Hello")]}


async def test_a_generator_without_async_is_called_again() -> None:
    generator = FlakySyncGenerator()
    told = await tell(agent_over(generator, provider_retries=QUICK))
    assert [(e.step, e.content) for e in told.of(TextChunk)] == [(1, "Hel"), (2, "Hel"), (2, "lo")]
    assert (told.outcome.answer, generator.calls) == ("Hello", 2)


async def test_a_policy_that_is_none_keeps_an_agent_from_being_served(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    with pytest.raises(ConfigurationError, match="provider_retries"):
        await agent_over(generator, provider_retries="twice").warm_up()


async def test_a_failure_that_is_not_the_providers_is_not_tried_again() -> None:
    @component
    class Faulty:
        calls = 0

        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            self.calls += 1
            raise KeyError("mine")

    generator = Faulty()
    told = await tell(agent_over(generator, provider_retries=QUICK))
    assert (told.of(Error)[0].error_code, generator.calls) == ("internal", 1)
