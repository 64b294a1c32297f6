"""Runs that end before their model is done: stopped, out of time, or given up by their worker."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import SPOKEN
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    chunk,
    kinds,
    outputs_of,
    request,
    text_of,
    text_turn,
)

from hayrunner.adapters.convert import from_wire, unanswered_calls
from hayrunner.adapters.outcome import RunOutcome
from hayrunner.agent import Agent, AgentSession
from hayrunner.storage.memory import InMemoryStorage
from hayrunner_contracts.events import (
    Error,
    MessageEnd,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
)
from hayrunner_contracts.testing import assert_valid_stream, eventually

HANGING = [chunk({"content": "Hel"}), {"$hang": True}]
HANGING_RESPONSE = [
    {
        "type": "response.output_text.delta",
        "sequence_number": 0,
        "item_id": "m",
        "output_index": 0,
        "content_index": 0,
        "delta": "Hel",
        "logprobs": [],
    },
    {"$hang": True},
]
NO_RESULT = "This call has no result: the run ended first (cancelled)."


class Running:
    """A session that runs in a task of its own."""

    def __init__(self, agent: Agent, sink: Sink | None = None, **fields: Any) -> None:
        self.sink = sink or Sink()
        self.session: AgentSession = agent.open_session(
            request(**fields), message_id=MESSAGE_ID, sink=self.sink, agent_name="support"
        )
        self.task = asyncio.ensure_future(self.session.run())

    async def saw(self, kind: type[StreamEvent]) -> None:
        await eventually(
            lambda: any(isinstance(event, kind) for event in self.sink.events), what=str(kind)
        )

    async def end(self) -> RunOutcome:
        outcome = await asyncio.wait_for(self.task, 5)
        assert_valid_stream(self.sink.framed())
        return outcome


async def test_a_run_stopped_before_it_starts_makes_no_call(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")])
    running = Running(agent_over(generator))
    running.session.stop("cancelled", "changed my mind")

    outcome = await running.end()

    assert provider.requests == []
    assert kinds(running.sink.events) == ["MessageEnd"]
    assert (outcome.status, outcome.finish_reason) == ("cancelled", "cancelled")
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("cancelled", "changed my mind")
    assert (outcome.messages, outcome.model_calls) == ([], 0)


@pytest.mark.parametrize("kind", ["own", "openai", "responses"])
async def test_stopping_closes_the_providers_connection_and_keeps_the_partial_text(
    provide: Provide, kind: str
) -> None:
    turn = HANGING_RESPONSE if kind == "responses" else HANGING
    provider, generator = await provide([turn], kind)
    running = Running(agent_over(generator))
    await running.saw(TextChunk)

    stopped_at = time.monotonic()
    running.session.stop("cancelled", "enough")
    outcome = await running.end()
    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")

    assert provider.disconnects[0] - stopped_at < 0.1
    assert outcome.status == "cancelled"
    assert outcome.answer == "Hel"
    (message,) = outcome.messages
    assert message.meta["finish_reason"] == "cancelled"
    assert from_wire(message).text == "Hel"
    assert kinds(running.sink.events) == ["TextChunk", "MessageEnd"]
    end = running.sink.events[-1]
    assert isinstance(end, MessageEnd)
    assert end.finish_reason == "cancelled"


async def test_a_call_that_was_being_written_gets_an_error_output(provide: Provide) -> None:
    turn = [event for event in call_turn(("add", '{"a": 1')) if event["choices"]][:1]
    _, generator = await provide([[*turn, {"$hang": True}]])
    running = Running(agent_over(generator))
    await running.saw(ToolInputChunk)

    running.session.stop("cancelled", "enough")
    outcome = await running.end()

    assert outputs_of(running.sink.events) == [(NO_RESULT, True)]
    # A call that never was whole is not part of the conversation.
    assert outcome.messages == []


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_stopping_cancels_running_tools_and_answers_their_calls(
    provide: Provide, concurrency: int
) -> None:
    began: list[int] = []
    cancelled: list[int] = []

    async def wait(n: int) -> str:
        """Waits."""
        began.append(n)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(n)
            raise
        return ""

    _, generator = await provide([call_turn(("wait", {"n": 1}), ("wait", {"n": 2}))])
    storage = InMemoryStorage()
    agent = agent_over(generator, tools=[wait], tool_concurrency=concurrency)
    agent.get_storage = lambda thread_id: storage
    running = Running(agent, thread_id="t")
    await eventually(lambda: len(began) == concurrency)

    running.session.stop("cancelled", "enough")
    outcome = await running.end()

    assert cancelled == began
    assert outputs_of(running.sink.events) == [(NO_RESULT, True)] * 2
    stored = [from_wire(message) for message in await storage.load()]
    assert [message.role for message in stored] == ["user", "assistant", "tool", "tool"]
    assert unanswered_calls(stored) == []
    assert outcome.usage.total_tokens == 15


async def test_stopping_twice_is_one_stop_and_the_first_code_stands(provide: Provide) -> None:
    _, generator = await provide([HANGING])
    running = Running(agent_over(generator))
    await running.saw(TextChunk)
    running.session.stop("deadline_exceeded", "too late")
    running.session.stop("cancelled", "enough")

    outcome = await running.end()
    running.session.stop("cancelled", "once more, after the end")

    assert outcome.error is not None
    assert outcome.error.code == "deadline_exceeded"
    assert kinds(running.sink.events) == ["TextChunk", "Error", "MessageEnd"]


async def test_a_deadline_is_a_failure_with_its_own_code(provide: Provide) -> None:
    _, generator = await provide([HANGING])
    running = Running(agent_over(generator))
    await running.saw(TextChunk)
    running.session.stop("deadline_exceeded", "the deadline has passed")

    outcome = await running.end()

    assert (outcome.status, outcome.finish_reason) == ("failed", "cancelled")
    (error,) = [event for event in running.sink.events if isinstance(event, Error)]
    assert (error.error_code, error.error_message) == (
        "deadline_exceeded",
        "the deadline has passed",
    )


async def test_a_stop_after_the_end_changes_nothing(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    running = Running(agent_over(generator))
    outcome = await running.end()
    running.session.stop("cancelled", "too late")
    assert outcome.status == "completed"
    assert text_of(running.sink.events) == "Hello"


async def test_a_run_cancelled_from_outside_says_and_stores_nothing(provide: Provide) -> None:
    provider, generator = await provide([HANGING])
    storage = InMemoryStorage()
    agent = agent_over(generator)
    agent.get_storage = lambda thread_id: storage
    running = Running(agent, thread_id="t")
    await running.saw(TextChunk)

    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running.task
    await eventually(lambda: provider.disconnects, what="the provider seeing the client leave")

    assert kinds(running.sink.events) == ["TextChunk"]
    assert await storage.load() == []


class HoldingSink(Sink):
    """Takes events, and does not come back for the first that `holds`."""

    def __init__(self, holds: Callable[[StreamEvent], bool]) -> None:
        super().__init__()
        self.holding = False
        self._holds = holds

    async def emit(self, event: StreamEvent) -> None:
        await super().emit(event)
        if not self.holding and self._holds(event):
            self.holding = True
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    "kind", [ToolCallStart, ToolInputChunk, ToolInputComplete, ToolExecutionCommitted, ToolOutput]
)
async def test_a_stop_while_an_event_waits_leaves_a_valid_stream(
    provide: Provide, kind: type[StreamEvent]
) -> None:
    def add(a: int) -> int:
        """Adds."""
        return a

    _, generator = await provide([call_turn(("add", {"a": 1}), ("add", {"a": 2}))])
    sink = HoldingSink(lambda event: isinstance(event, kind))
    running = Running(agent_over(generator, tools=[add]), sink)
    await eventually(lambda: sink.holding)

    running.session.stop("cancelled", "enough")
    outcome = await running.end()

    assert outcome.status == "cancelled"
    assert unanswered_calls([from_wire(message) for message in outcome.messages]) == []


@pytest.mark.parametrize("kind", list(SPOKEN))
async def test_a_stop_while_an_event_waits_closes_the_providers_connection(
    provide: Provide, kind: str
) -> None:
    whole = SPOKEN[kind].text("Hel", "lo")
    first = 1 + next(n for n, element in enumerate(whole) if "Hel" in json.dumps(element))
    provider, generator = await provide([[*whole[:first], {"$hang": True}]], kind)
    sink = HoldingSink(lambda event: isinstance(event, TextChunk))
    running = Running(agent_over(generator), sink)
    await eventually(lambda: sink.holding)

    running.session.stop("cancelled", "enough")
    outcome = await running.end()
    await eventually(lambda: provider.disconnects, 2, what="the provider seeing the client leave")

    assert (outcome.status, outcome.answer) == ("cancelled", "Hel")


@pytest.mark.parametrize("kind", list(SPOKEN))
async def test_a_stop_while_the_last_event_waits_is_not_forgotten(
    provide: Provide, kind: str
) -> None:
    turns = [SPOKEN[kind].calls(("add", {"a": 1}), text="Hel")]
    _, generator = await provide(turns, kind)
    ran: list[int] = []

    def add(a: int) -> int:
        """Adds."""
        ran.append(a)
        return a

    sink = HoldingSink(lambda event: isinstance(event, TextChunk))
    running = Running(agent_over(generator, tools=[add]), sink)
    await eventually(lambda: sink.holding)
    running.session.stop("cancelled", "enough")
    assert (await running.end()).status == "cancelled"
    assert ran == []


async def test_a_slow_consumer_slows_the_provider_down(provide: Provide) -> None:
    total = 400
    words = [chunk({"content": "x" * 64_000})] * total
    provider, generator = await provide([[*words, chunk({}, "stop")]])
    gate = asyncio.Event()

    class SlowSink(Sink):
        async def emit(self, event: StreamEvent) -> None:
            await super().emit(event)
            await gate.wait()

    running = Running(agent_over(generator), SlowSink())
    await running.saw(TextChunk)
    sent: list[int] = []

    def has_stalled() -> bool:
        sent.append(len(provider.requests[0].emitted))
        return len(sent) > 20 and len(set(sent[-20:])) == 1

    await eventually(has_stalled, what="the provider waiting")
    assert len(running.sink.events) == 1
    assert sent[-1] < total

    gate.set()
    await running.end()
    assert len(text_of(running.sink.events)) == total * 64_000
    assert [e for e in running.sink.events if isinstance(e, ToolOutput)] == []
