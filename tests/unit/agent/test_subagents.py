"""Agents that call agents, in one process."""

import asyncio
from typing import Any

import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import Document
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    kinds,
    outputs_of,
    request,
    tell,
    text_turn,
)

from hayrunner.agent import Agent
from hayrunner.hooks import HookRun, ModelCall, RunHooks, Stop
from hayrunner.registry import Registry
from hayrunner.tool_context import ToolCallInfo, current_tool_call
from hayrunner_contracts.events import (
    ReasoningChunk,
    Source,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
)
from hayrunner_contracts.testing import assert_valid_stream, eventually

ASK = call_turn(("researcher", {"task": "find it", "context": "order 7"}))
CALL_EVENTS = (ToolCallStart, ToolInputComplete, ToolExecutionCommitted, ToolOutput)


def look_up(name: str) -> str:
    """Looks a thing up."""
    return f"{name} is blue"


def named(generator: Any, name: str, **settings: Any) -> Agent:
    agent = agent_over(generator, **settings)
    agent.name = name
    return agent


def steps_of(events: list[StreamEvent], agent: str | None) -> list[str]:
    return kinds([e for e in events if isinstance(e, CALL_EVENTS) and e.agent == agent])


async def test_a_subagents_tool_activity_streams_tagged_and_its_text_does_not(
    provide: Provide,
) -> None:
    parent_side, parent = await provide([ASK, text_turn("It is blue.")])
    child_side, child = await provide(
        [call_turn(("look_up", {"name": "tea"}), text="Looking."), text_turn("Blue", " tea")]
    )
    researcher = named(child, "researcher", tools=[look_up], instructions="Research.")

    told = await tell(agent_over(parent, subagents=[researcher]))

    assert told.outcome.answer == told.text == "It is blue."
    whole_call = ["ToolCallStart", "ToolInputComplete", "ToolExecutionCommitted", "ToolOutput"]
    assert steps_of(told.events, "researcher") == whole_call
    assert steps_of(told.events, None) == whole_call
    assert {e.step for e in told.events if isinstance(e, CALL_EVENTS)} == {1}
    assert told.of(ReasoningChunk) == []
    # What the child is told, and what becomes of its answer.
    first = child_side.requests[0].body["messages"]
    assert [m["role"] for m in first] == ["system", "user"]
    assert first[1]["content"] == "find it\n\nContext:\norder 7"
    assert outputs_of(told.events) == [("tea is blue", False), ("Blue tea", False)]
    assert parent_side.requests[1].body["messages"][-1]["content"] == "Blue tea"
    # Two calls each.
    assert told.outcome.usage.total_tokens == 60
    assert told.outcome.model_calls == 4


async def test_call_ids_are_unique_in_the_whole_run(provide: Provide) -> None:
    # Every scripted turn calls its first tool `call_0`.
    both = call_turn(("researcher", {"task": "a"}), ("researcher", {"task": "b"}))
    _, parent = await provide([both, text_turn("ok")])
    child_side, child = await provide([call_turn(("look_up", {"name": "tea"})), text_turn("ok")])
    agent = agent_over(
        parent, subagents=[named(child, "researcher", tools=[look_up])], tool_concurrency=2
    )
    told = await tell(agent)
    ids = [event.tool_call_id for event in told.of(ToolCallStart)]
    assert len(ids) == len(set(ids)) == 4
    assert len(child_side.requests) == 4
    seconds = [r.body["messages"] for r in child_side.requests if len(r.body["messages"]) > 1]
    assert all(m[-1]["tool_call_id"] == m[-2]["tool_calls"][0]["id"] for m in seconds)


async def test_a_loop_cut_short_is_concluded_by_one_call_without_tools(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    again = call_turn(("look_up", {"name": "tea"}))
    child_side, child = await provide([again, again, text_turn("It was blue.")])
    researcher = named(
        child, "researcher", tools=[look_up], max_agent_steps=2, instructions="Research."
    )

    told = await tell(agent_over(parent, subagents=[researcher]))

    assert len(child_side.requests) == 3
    last = child_side.requests[-1].body
    assert "tools" not in last
    assert [m["role"] for m in last["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "user",
    ]  # fmt: skip
    assert outputs_of(told.events)[-1] == ("It was blue.", False)
    assert told.outcome.model_calls == 5


async def test_a_loop_cut_short_is_concluded_once_even_if_it_goes_on_calling(
    provide: Provide,
) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    child_side, child = await provide([call_turn(("look_up", {"name": "tea"}), text="Well.")])
    researcher = named(child, "researcher", tools=[look_up], max_agent_steps=1)
    told = await tell(agent_over(parent, subagents=[researcher]))
    assert len(child_side.requests) == 2
    assert outputs_of(told.events)[-1] == ("Well.", False)


async def test_a_loop_that_ends_with_a_tool_is_concluded(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    child_side, child = await provide([call_turn(("look_up", {"name": "tea"})), text_turn("Blue.")])
    tools = agent_over(child, tools=[look_up]).run_tools(None, None)
    registry = Registry([agent_over(parent, subagents=["researcher"])])
    registry.add(
        "researcher",
        HaystackAgent(
            chat_generator=child,
            tools=tools,
            exit_conditions=["look_up"],
            system_prompt="Research.",
        ),
    )

    told = await tell(registry.get("support"))

    assert outputs_of(told.events) == [("tea is blue", False), ("Blue.", False)]
    roles = [m["role"] for m in child_side.requests[1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]


async def test_the_parents_turns_and_the_childs_are_counted_apart(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    _, child = await provide([call_turn(("look_up", {"name": "tea"})), text_turn("Blue.")])
    agent = agent_over(parent, subagents=[named(child, "researcher", tools=[look_up])])
    told = await tell(agent, options={"max_turns": 2})
    assert (told.outcome.status, told.outcome.model_calls) == ("completed", 4)


async def test_the_parents_token_budget_holds_for_both(provide: Provide) -> None:
    parent_side, parent = await provide([ASK, text_turn("ok")])
    child_side, child = await provide([call_turn(("look_up", {"name": "tea"}))])
    agent = agent_over(parent, subagents=[named(child, "researcher", tools=[look_up])])

    told = await tell(agent, options={"token_budget": 40})

    # 15 for the parent, then 15 a call: the child may make two, and the parent none after it.
    assert len(child_side.requests) == 2
    assert len(parent_side.requests) == 1
    assert (told.code, told.outcome.usage.total_tokens) == ("budget_exceeded", 45)
    output, is_error = outputs_of(told.events)[-1]
    assert is_error
    assert "token_budget" in output


async def test_tool_context_and_user_pass_down_thread_and_settings_do_not(
    provide: Provide,
) -> None:
    seen: list[ToolCallInfo] = []

    def note(name: str) -> str:
        """Notes."""
        seen.append(current_tool_call())
        return "noted"

    _, parent = await provide([ASK, text_turn("ok")])
    child_side, child = await provide([call_turn(("note", {"name": "tea"})), text_turn("Blue.")])
    agent = agent_over(parent, subagents=[named(child, "researcher", tools=[note])])

    await tell(
        agent,
        options={"tool_context": {"tenant": 7}, "temperature": 0.5, "preamble": "Be brief."},
        thread_id="t1",
        user="ann",
    )

    (info,) = seen
    assert (info.agent, info.user, info.thread_id) == ("researcher", "ann", None)
    assert info.tool_context == {"tenant": 7}
    assert info.message_id == MESSAGE_ID
    body = child_side.requests[0].body
    assert "temperature" not in body
    assert [m["role"] for m in body["messages"]] == ["user"]


class Stopping(RunHooks):
    async def on_model_call(self, run: HookRun, call: ModelCall) -> Stop | None:
        assert run.agent == "researcher"
        return Stop("not today")


async def test_a_childs_failure_is_a_tool_error_and_the_parent_goes_on(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("Sorry.")])
    _, child = await provide([[{"$status": 500, "body": {"error": "card 4711"}}]])

    told = await tell(agent_over(parent, subagents=[named(child, "researcher")]))

    ((output, is_error),) = outputs_of(told.events)
    assert is_error
    assert output.startswith("The agent researcher gave no answer: ")
    assert "4711" not in output
    assert told.outcome.answer == "Sorry."


async def test_a_child_has_its_own_hooks(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("Sorry.")])
    child_side, child = await provide([text_turn("never")])
    agent = agent_over(parent, subagents=[named(child, "researcher", hooks=[Stopping()])])
    told = await tell(agent)
    assert child_side.requests == []
    ((output, is_error),) = outputs_of(told.events)
    assert (is_error, "not today" in output) == (True, True)


async def test_cancelling_the_parent_cancels_the_child_and_closes_its_calls(
    provide: Provide,
) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    async def wait(name: str) -> str:
        """Waits."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
        return ""

    _, parent = await provide([ASK])
    _, child = await provide([call_turn(("wait", {"name": "tea"}))])
    agent = agent_over(parent, subagents=[named(child, "researcher", tools=[wait])])
    sink = Sink()
    session = agent.open_session(request(), message_id=MESSAGE_ID, sink=sink, agent_name="support")
    running = asyncio.ensure_future(session.run())
    await asyncio.wait_for(begun.wait(), 5)

    session.stop("cancelled", "enough")
    outcome = await running

    assert (outcome.status, outcome.model_calls) == ("cancelled", 2)
    assert outcome.usage.total_tokens == 30
    assert ended == ["tea"]
    events = sink.framed()
    assert_valid_stream(events)
    outputs = [e for e in events if isinstance(e, ToolOutput)]
    assert [(e.agent, e.is_error) for e in outputs] == [("researcher", True), (None, True)]


async def test_a_child_whose_model_hangs_is_cut_with_its_parent(provide: Provide) -> None:
    _, parent = await provide([ASK])
    child_side, child = await provide([[*text_turn("Let")[:1], {"$hang": True}]])
    agent = agent_over(parent, subagents=[named(child, "researcher")])
    sink = Sink()
    session = agent.open_session(request(), message_id=MESSAGE_ID, sink=sink, agent_name="support")
    running = asyncio.ensure_future(session.run())
    await eventually(lambda: child_side.requests and child_side.requests[0].emitted, 5)

    session.stop("deadline_exceeded", "too late")
    outcome = await running

    assert outcome.error is not None
    assert outcome.error.code == "deadline_exceeded"
    await eventually(lambda: child_side.disconnects, 5)
    assert_valid_stream(sink.framed())


async def test_subagents_nest_and_everything_reaches_the_top(provide: Provide) -> None:
    _, top = await provide([ASK, text_turn("ok")])
    _, middle = await provide([call_turn(("reader", {"task": "read"})), text_turn("read it")])
    _, bottom = await provide([call_turn(("look_up", {"name": "tea"})), text_turn("tea!")])
    reader = named(bottom, "reader", tools=[look_up])
    researcher = named(middle, "researcher", subagents=[reader])

    told = await tell(agent_over(top, subagents=[researcher]))

    tags = [(e.tool_name, e.agent) for e in told.of(ToolCallStart)]
    assert tags == [("researcher", None), ("reader", "researcher"), ("look_up", "reader")]
    assert (told.outcome.model_calls, told.outcome.usage.total_tokens) == (6, 90)


async def test_agents_nest_only_so_deep(provide: Provide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYRUNNER_SUBAGENT_DEPTH", "1")
    _, top = await provide([ASK, text_turn("ok")])
    middle_side, middle = await provide([call_turn(("reader", {"task": "r"})), text_turn("no")])
    bottom_side, bottom = await provide([text_turn("never")])
    researcher = named(middle, "researcher", subagents=[named(bottom, "reader")])
    told = await tell(agent_over(top, subagents=[researcher]))
    assert bottom_side.requests == []
    output, is_error = outputs_of(told.events)[0]
    assert (is_error, "1 levels deep" in output) == (True, True)
    assert len(middle_side.requests) == 2


async def test_sources_of_a_subagent_are_numbered_in_the_parents_run(provide: Provide) -> None:
    def find(topic: str) -> list[Document]:
        """Finds."""
        return [Document(id=topic, content=topic)]

    _, parent = await provide(
        [call_turn(("find", {"topic": "a"}), ("researcher", {"task": "t"})), text_turn("[1] [2]")]
    )
    _, child = await provide([call_turn(("find", {"topic": "b"})), text_turn("See [", "2].")])
    researcher = named(child, "researcher", tools=[find])

    told = await tell(agent_over(parent, tools=[find], subagents=[researcher]))

    assert {source.index: source.source_id for source in told.of(Source)} == {1: "a", 2: "b"}
    assert outputs_of(told.events)[-1] == ("See [2].", False)
    by_id = {e.tool_call_id: e for e in told.of(ToolCallStart)}
    assert {by_id[s.tool_call_id or ""].agent for s in told.of(Source)} == {None, "researcher"}


async def test_a_child_with_a_response_format_answers_in_json(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    _, child = await provide([text_turn('{"colour": "blue"}')])
    form = {"type": "object", "required": ["colour"]}
    researcher = named(child, "researcher", response_format=form)
    told = await tell(agent_over(parent, subagents=[researcher]))
    assert outputs_of(told.events) == [('{"colour":"blue"}', False)]


async def test_headless_runs_have_subagents_too(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    _, child = await provide([text_turn("Blue.")])
    agent = agent_over(parent, subagents=[named(child, "researcher")])
    told = await tell(agent, mode="answer", tools=True)
    assert (told.outcome.answer, told.outcome.model_calls) == ("ok", 3)
    assert await agent.run("hi", tools=True) == "ok"


async def test_without_text_or_input_chunks_the_relay_is_only_calls(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    _, child = await provide([call_turn(("look_up", {"name": "tea"}), text="Hm."), text_turn("x")])
    agent = agent_over(parent, subagents=[named(child, "researcher", tools=[look_up])])
    told = await tell(agent)
    relayed = {e.tool_call_id for e in told.of(ToolCallStart) if e.agent}
    assert not [e for e in told.of(ToolInputChunk) if e.tool_call_id in relayed]
    assert [e.content for e in told.of(TextChunk)] == ["ok"]
