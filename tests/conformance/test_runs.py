"""Streams and headless tool runs: one loop, which behaves the same whichever way it is watched."""

import asyncio
from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.conformance.hooked import hook
from tests.unit.agent.runs import call_turn, chunk, text_turn

from hayrunner.adapters.convert import from_wire
from hayrunner.adapters.run import Run
from hayrunner.hooks import HookRun, ModelResponse, Retry, Stop
from hayrunner.storage.memory import InMemoryStorage
from hayrunner_contracts.events import (
    Data,
    Error,
    MessageEnd,
    MessageStart,
    StreamEnd,
    TextChunk,
    ToolCallStart,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
)

TURNS = [call_turn(("add", {"a": 1, "b": 2}), text="Adding. "), text_turn("It ", "is ", "3.")]
SECRET = "card 4711"


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_streaming_and_headless_runs_behave_identically_apart_from_the_delta_events(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(TURNS, kind)
    told = await driver.tell(agent_over(generator, tools=[add], instructions="own"))
    assert (told.result.status, told.answer, told.result.finish_reason) == (
        "completed",
        "It is 3.",
        "stop",
    )
    assert told.roles == ["assistant", "tool", "assistant"]
    assert (told.usage.total_tokens, told.result.model_calls) == (30, 2)
    assert [len(request.body["messages"]) for request in provider.requests] == [2, 4]
    if not driver.streams:
        assert told.kinds == ["MessageStart", "MessageEnd", "StreamEnd"]


async def test_every_call_start_has_one_complete_and_one_output(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    _, generator = await provide(TURNS, kind)
    told = await streaming.tell(agent_over(generator, tools=[add]))
    for event_type in (ToolCallStart, ToolInputComplete, ToolOutput):
        assert [event.tool_call_id for event in told.of(event_type)] == ["call_0"]


async def test_input_chunks_carry_the_arguments_as_they_arrive(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    first, *rest = call_turn(("add", '{"a": '))
    more = [{"index": 0, "function": {"arguments": text}} for text in ("1, ", '"b": 2}')]
    turn = [first, *(chunk({"tool_calls": [part]}) for part in more), *rest]
    _, generator = await provide([turn, text_turn("3")], kind)
    told = await streaming.tell(agent_over(generator, tools=[add]))
    assert [event.input_chunk for event in told.of(ToolInputChunk)] == ['{"a": ', "1, ", '"b": 2}']
    assert told.of(ToolInputComplete)[0].tool_input == {"a": 1, "b": 2}


async def test_a_failure_is_error_then_message_end_with_error_then_stream_end(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    turn = [{"$status": 400, "body": {"error": {"message": SECRET}}}]
    _, generator = await provide([turn], kind)
    told = await driver.tell(agent_over(generator))
    assert told.kinds == ["MessageStart", "Error", "MessageEnd", "StreamEnd"]
    [error] = told.of(Error)
    assert (error.error_code, told.code) == ("provider_error", "provider_error")
    assert told.of(MessageEnd)[0].finish_reason == "error"
    assert SECRET not in told.everything


@pytest.mark.parametrize("ending", ["text", "tool", "error", "stopped", "max_turns", "invalid"])
async def test_stream_end_is_always_last_always_once(
    driver: Driver, provide: Provide, agent_over: AgentOver, ending: str
) -> None:
    turns = {
        "text": [text_turn("Hello")],
        "error": [[{"$status": 500}]],
        "invalid": [call_turn(("nosuch", {}))],
    }.get(ending, TURNS)
    _, generator = await provide(turns)
    hooks = [hook(on_model_response=Stop("no"))] if ending == "stopped" else []
    options = {"max_turns": 1} if ending == "max_turns" else {}
    told = await driver.tell(agent_over(generator, tools=[add], hooks=hooks), options=options)
    assert isinstance(told.events[0], MessageStart)
    assert [event for event in told.events if isinstance(event, StreamEnd)] == [told.events[-1]]
    assert isinstance(told.events[-2], MessageEnd)


async def test_a_cancelled_runs_partial_message_is_stored_and_its_calls_get_an_error_output(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    begun = asyncio.Event()

    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    _, generator = await provide([call_turn(("wait", {}), text="Wait. ")], kind)
    runs: dict[str, Any] = {}
    storage = InMemoryStorage(runs)
    agent = agent_over(generator, tools=[wait], get_storage=lambda self, thread_id: storage)

    running = await driver.start(agent, thread_id="t")
    await asyncio.wait_for(begun.wait(), 20)
    await running.cancel()
    told = await running.told()

    assert (told.result.status, told.result.finish_reason) == ("cancelled", "cancelled")
    assert told.of(Error) == []
    assert told.of(MessageEnd)[0].finish_reason == "cancelled"
    [(_, result, is_error)] = told.tool_results
    assert (is_error, result) == (True, "This call has no result: the run ended first (cancelled).")
    stored = [from_wire(message) for message in runs[told.result.message_id]]
    assert [message.text for message in stored] == ["hi", "Wait. ", None]


async def test_a_run_cancelled_in_the_middle_of_its_text_keeps_what_there_is(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    _, generator = await provide([[chunk({"content": "Hel"}), {"$hang": True}]], kind)
    runs: dict[str, Any] = {}
    storage = InMemoryStorage(runs)
    agent = agent_over(generator, get_storage=lambda self, thread_id: storage)
    running = await streaming.start(agent, thread_id="t")
    await running.shows(TextChunk)
    await running.cancel()
    told = await running.told()
    [_, message] = runs[told.result.message_id]
    assert (from_wire(message).text, message.meta["finish_reason"]) == ("Hel", "cancelled")


async def test_errors_carry_no_exception_text_of_a_tool(
    driver: Driver, provide: Provide, agent_over: AgentOver, log: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        """Fails."""
        raise ValueError(SECRET)

    _, generator = await provide([call_turn(("fail", {})), text_turn("sorry")])
    told = await driver.tell(agent_over(generator, tools=[fail]))
    [(_, result, is_error)] = told.tool_results
    assert is_error
    assert result.startswith("The tool fail failed (ref ")
    assert SECRET not in told.everything + log.text


async def test_a_rejected_reply_is_followed_by_another_with_the_feedback(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide([*TURNS, text_turn("Three.")], kind)
    ran: list[int] = []

    def add(a: int, b: int) -> int:
        """Adds."""
        ran.append(a)
        return a + b

    def judge(run: HookRun, response: ModelResponse) -> Retry | None:
        return Retry(f"again, not {response.finish_reason}") if run.step < 3 else None

    agent = agent_over(generator, tools=[add], hooks=[hook(on_model_response=judge)])
    told = await driver.tell(agent)

    # Calls of a rejected reply are answered, and not run.
    assert ran == []
    assert told.roles == ["assistant", "tool", "user", "assistant", "user", "assistant"]
    assert provider.requests[2].body["messages"][-1]["content"] == "again, not stop"
    assert (told.answer, told.usage.total_tokens) == ("Three.", 45)
    if driver.streams:
        rejected = [event.step for event in told.of(Data) if event.data_type == "reply_rejected"]
        assert len(rejected) == 2


async def test_the_first_retry_decides_and_counts_as_a_model_call(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([text_turn("Hello")])
    hooks = [hook(on_model_response=Retry("one")), hook(on_model_response=Retry("two"))]
    told = await driver.tell(agent_over(generator, hooks=hooks), options={"max_turns": 2})
    assert (told.code, len(provider.requests)) == ("max_turns", 2)
    assert provider.requests[1].body["messages"][-1]["content"] == "one"


class TestHeadlessToolRuns:
    """`tools=True` runs the agent's own tools only when all three conditions hold."""

    @pytest.fixture(autouse=True)
    def _headless_only(self, driver: Driver) -> None:
        if driver.streams:
            pytest.skip("a stream always has its tools")

    async def test_without_tools_true_they_are_never_resolved(
        self, driver: Driver, provide: Provide, agent_over: AgentOver
    ) -> None:
        def get_tools(self: Any, thread_id: Any = None, user: Any = None) -> Any:
            raise AssertionError("resolved")

        provider, generator = await provide([text_turn("Hello")])
        told = await driver.tell(agent_over(generator, get_tools=get_tools), tools=False)
        assert told.answer == "Hello"
        assert "tools" not in provider.requests[0].body

    @pytest.mark.parametrize("own", [True, False])
    async def test_a_response_format_in_force_wins(
        self, driver: Driver, provide: Provide, agent_over: AgentOver, own: bool
    ) -> None:
        form = {"type": "object", "properties": {"sum": {"type": "integer"}}}
        provider, generator = await provide([text_turn('{"sum": 3}')])
        agent = agent_over(generator, tools=[add], response_format=form if own else None)
        asked: dict[str, Any] = {} if own else {"response_format": form}
        told = await driver.tell(agent, **asked)
        assert told.answer == {"sum": 3}
        assert "tools" not in provider.requests[0].body

    async def test_the_call_overrides_the_agents_own_format(
        self, driver: Driver, provide: Provide, agent_over: AgentOver
    ) -> None:
        _, generator = await provide(TURNS)
        agent = agent_over(generator, tools=[add], response_format={"type": "object"})
        told = await driver.tell(agent, response_format=None)
        assert told.answer == "It is 3."

    async def test_a_run_adapter_of_another_kind_is_called_unchanged(
        self, driver: Driver, provide: Provide, agent_over: AgentOver
    ) -> None:
        class Own:
            async def run(self, messages: Any, system_prompt: Any, response_format: Any) -> str:
                return f"{len(messages)} {system_prompt} {response_format}"

        _, generator = await provide(TURNS)
        agent = agent_over(
            generator,
            tools=[add],
            instructions="own",
            get_run_adapter=lambda self, thread_id, user: Own(),
        )
        assert (await driver.tell(agent)).answer == "1 own None"

    async def test_a_subclass_of_run_keeps_the_tools(
        self, driver: Driver, provide: Provide, agent_over: AgentOver
    ) -> None:
        class Own(Run):
            pass

        _, generator = await provide(TURNS)
        agent = agent_over(
            generator, tools=[add], get_run_adapter=lambda self, thread_id, user: Own(generator)
        )
        assert (await driver.tell(agent)).answer == "It is 3."

    async def test_the_answer_is_the_last_messages_text_cut_short_or_not_or_null(
        self, driver: Driver, provide: Provide, agent_over: AgentOver
    ) -> None:
        for turn, answer in [
            (text_turn("Hel", finish="length"), "Hel"),
            (text_turn("Hello"), "Hello"),
            (text_turn(), None),
        ]:
            _, generator = await provide([turn])
            assert (await driver.tell(agent_over(generator, tools=[add]))).answer == answer
