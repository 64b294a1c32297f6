"""Subagents elsewhere, as the calling run sees them. The bus is a function."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from haystack.dataclasses import Document
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    outputs_of,
    request,
    tell,
    text_turn,
)

from hayrunner.adapters.roster import OnEvent, RemoteCall
from hayrunner.agent import Agent
from hayrunner.registry import Registry
from hayrunner_contracts.errors import InternalError, RunFailure, UnknownAgent
from hayrunner_contracts.events import (
    Data,
    MessageStart,
    RunResumed,
    Source,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolInputComplete,
    ToolOutput,
    UnknownEvent,
)
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subagents import SUBAGENT_PATH
from hayrunner_contracts.testing import assert_valid_stream, some_result, some_tool_events

ASK = call_turn(("far-away", {"task": "find it"}))


class Elsewhere:
    """A bus with one run on it."""

    def __init__(
        self,
        events: Sequence[StreamEvent | UnknownEvent] = (),
        result: RunResult | Exception | Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self._events = events
        self._result = result or some_result("It is blue.")
        self.calls: list[RemoteCall] = []

    async def run(self, call: RemoteCall, on_event: OnEvent) -> RunResult:
        self.calls.append(call)
        for event in self._events:
            await on_event(event)
        if callable(self._result):
            await self._result()
        if isinstance(self._result, Exception):
            raise self._result
        assert isinstance(self._result, RunResult)
        return self._result


def served(agent: Agent, remote: Elsewhere) -> Agent:
    registry = Registry([agent])
    registry.use_remote_agents(remote, max_depth=5)
    return agent


def remote_call() -> list[StreamEvent]:
    return some_tool_events("call_0", "look_up", {"name": "tea"}, "blue")


async def test_its_tool_events_are_relayed_under_ids_of_this_run(provide: Provide) -> None:
    provider, generator = await provide([ASK, text_turn("ok")])
    start = MessageStart(seq=1, message_id=MESSAGE_ID, agent="far-away")
    unknown = UnknownEvent(type="new", seq=9, raw=b"{}")
    data = Data(data_type="progress", data=1)
    remote = Elsewhere([start, *remote_call(), data, TextChunk(content="It is blue."), unknown])

    told = await tell(served(agent_over(generator, subagents=["far-away"]), remote), user="ann")

    assert outputs_of(told.events) == [("blue", False), ("It is blue.", False)]
    tags = [(e.tool_name, e.agent) for e in told.of(ToolCallStart)]
    assert tags == [("far-away", None), ("look_up", "far-away")]
    assert len(told.of(Data)) == 1
    assert told.text == "ok"
    assert provider.requests[1].body["messages"][-1]["content"] == "It is blue."
    # Two calls here, one there, 15 tokens each.
    assert (told.outcome.usage.total_tokens, told.outcome.model_calls) == (45, 3)
    (call,) = remote.calls
    assert (call.agent, call.prompt, call.path, call.user) == (
        "far-away", "find it", ("support",), "ann",
    )  # fmt: skip


async def test_budget_deadline_and_tool_context_go_along(provide: Provide) -> None:
    _, generator = await provide([ASK, text_turn("ok")])
    remote = Elsewhere()
    agent = served(agent_over(generator, subagents=["far-away"]), remote)
    options = {"token_budget": 100, "tool_context": {"tenant": 7}}
    await tell(agent, options=options, deadline="2099-01-01T00:00:00Z")
    (call,) = remote.calls
    assert (call.token_budget, call.tool_context) == (85, {"tenant": 7})
    assert call.deadline == 4070908800.0


async def test_an_interrupted_attempt_over_there_is_closed_here(provide: Provide) -> None:
    _, generator = await provide([ASK, text_turn("ok")])
    cut = remote_call()[:2]
    resumed = RunResumed(attempt=2, discard_after=1)
    unseen = ToolInputComplete(tool_call_id="gone", tool_name="x", tool_input={})
    remote = Elsewhere([*cut, resumed, unseen, *remote_call()])

    told = await tell(served(agent_over(generator, subagents=["far-away"]), remote))

    outputs = [(e.agent, e.is_error) for e in told.of(ToolOutput)]
    assert outputs == [("far-away", True), ("far-away", False), (None, False)]


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (UnknownAgent("no worker ever served it"), "unknown_agent"),
        (InternalError("the agent could not be called over the bus"), "internal"),
        (
            some_result(
                None,
                status="failed",
                finish_reason="error",
                error=RunFailure(code="provider_error", message="the model's server failed"),
            ),
            "provider_error",
        ),
        (
            some_result(
                None,
                status="cancelled",
                finish_reason="cancelled",
                error=RunFailure(code="cancelled", message="the run was cancelled"),
            ),
            "cancelled",
        ),
    ],
)
async def test_its_failure_is_a_tool_error(
    provide: Provide, ending: RunResult | Exception, code: str
) -> None:
    _, generator = await provide([ASK, text_turn("Sorry.")])
    remote = Elsewhere(remote_call()[:1], ending)
    told = await tell(served(agent_over(generator, subagents=["far-away"]), remote))
    (_, lost), (output, is_error) = outputs_of(told.events)
    assert lost
    assert is_error
    assert output.startswith("The agent far-away gave no answer: ")
    assert output.endswith(f"({code}).")
    assert told.outcome.answer == "Sorry."


async def test_its_sources_get_numbers_of_this_run_and_so_do_its_tags(provide: Provide) -> None:
    def find() -> list[Document]:
        """Finds."""
        return [Document(id="a", content="a"), Document(id="b", content="b")]

    turns = [call_turn(("find", {}), ("far-away", {"task": "t"})), text_turn("ok")]
    _, generator = await provide(turns)
    sources = [
        Source(index=1, source_id="c", title="C", tool_call_id="call_0"),
        Source(index=2, source_id="a", title="A"),
    ]
    remote = Elsewhere([*remote_call(), *sources], some_result("See [1], [2] and [9]."))

    told = await tell(served(agent_over(generator, tools=[find], subagents=["far-away"]), remote))

    by_number = {source.index: source.source_id for source in told.of(Source)}
    assert by_number == {1: "a", 2: "b", 3: "c"}
    assert outputs_of(told.events)[-1] == ("See [3], [1] and [9].", False)
    (there,) = (s for s in told.of(Source) if s.source_id == "c")
    (call,) = (e for e in told.of(ToolCallStart) if e.agent)
    assert there.tool_call_id == call.tool_call_id


async def test_a_run_never_asks_an_agent_above_it(provide: Provide) -> None:
    _, generator = await provide([ASK, text_turn("ok")])
    remote = Elsewhere()
    agent = served(agent_over(generator, subagents=["far-away"]), remote)
    told = await tell(agent, metadata={SUBAGENT_PATH: "far-away/middle"})
    ((output, is_error),) = outputs_of(told.events)
    assert (is_error, "was not asked" in output) == (True, True)
    assert remote.calls == []


async def test_depth_is_counted_over_all_workers(provide: Provide) -> None:
    _, generator = await provide([ASK, text_turn("ok")])
    remote = Elsewhere()
    agent = served(agent_over(generator, subagents=["far-away"]), remote)
    await tell(agent, metadata={SUBAGENT_PATH: "a/b/c/d"})
    assert remote.calls[0].path == ("a", "b", "c", "d", "support")
    told = await tell(agent, metadata={SUBAGENT_PATH: "a/b/c/d/e"})
    assert len(remote.calls) == 1
    assert "5 levels deep" in str(outputs_of(told.events)[0][0])


async def test_a_spent_budget_asks_nobody(provide: Provide) -> None:
    _, generator = await provide([ASK, text_turn("ok")])
    remote = Elsewhere()
    agent = served(agent_over(generator, subagents=["far-away"]), remote)
    told = await tell(agent, options={"token_budget": 15})
    assert remote.calls == []
    assert told.code == "budget_exceeded"


async def test_a_subagents_run_is_concluded_wherever_it_runs(provide: Provide) -> None:
    def look_up(name: str) -> str:
        """Looks up."""
        return "blue"

    provider, generator = await provide([call_turn(("look_up", {"name": "t"})), text_turn("Blue.")])
    agent = agent_over(generator, tools=[look_up], max_agent_steps=1)
    told = await tell(agent, metadata={SUBAGENT_PATH: "support"})
    assert (told.outcome.status, told.outcome.answer) == ("completed", "Blue.")
    assert "tools" not in provider.requests[1].body
    assert (await tell(agent)).code == "max_turns"


async def test_a_cancelled_run_closes_what_the_remote_one_left_open(provide: Provide) -> None:
    began = asyncio.Event()
    cut: list[str] = []

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.append("cut")

    _, generator = await provide([ASK])
    agent = served(
        agent_over(generator, subagents=["far-away"]), Elsewhere(remote_call()[:3], wait)
    )
    sink = Sink()
    session = agent.open_session(request(), message_id=MESSAGE_ID, sink=sink, agent_name="support")
    running = asyncio.ensure_future(session.run())
    await asyncio.wait_for(began.wait(), 5)
    session.stop("cancelled", "enough")
    outcome = await running
    assert (outcome.status, cut) == ("cancelled", ["cut"])
    assert_valid_stream(sink.framed())
