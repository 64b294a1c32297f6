"""Subagents: each a tool; what a local one does streams into the parent's events, a remote one's
is relayed the same way; circles are refused."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide, ServeElsewhere
from tests.conformance.drivers import BusDriver, Driver, Told
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.agent import Agent
from hayrunner.errors import ConfigurationError
from hayrunner.registry import Registry
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.events import (
    TextChunk,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
)

ASK = call_turn(("researcher", {"task": "find it", "context": "order 7"}))
LOOKS = [call_turn(("look_up", {"name": "tea"}), text="Looking."), text_turn("Blue", " tea")]
ACTIVITY = (ToolCallStart, ToolInputComplete, ToolExecutionCommitted, ToolOutput)

Teamed = Callable[..., Awaitable[tuple[ScriptedProvider, ScriptedProvider, Agent]]]


def look_up(name: str) -> str:
    """Looks a thing up."""
    return f"{name} is blue"


@pytest.fixture
def teamed(provide: Provide, agent_over: AgentOver) -> Teamed:
    """`parent_side, child_side, agent = await teamed(turns, **settings)`: an agent that asks its
    subagent once, which says these turns and has these settings."""

    async def make(turns: Any, **settings: Any) -> tuple[ScriptedProvider, ScriptedProvider, Agent]:
        parent_side, parent = await provide([ASK, text_turn("It is blue.")])
        child_side, child = await provide(turns)
        researcher = agent_over(child, **({"name": "researcher", "tools": [look_up]} | settings))
        return parent_side, child_side, agent_over(parent, subagents=[researcher])

    return make


def assert_relayed(told: Told, agent: str) -> None:
    """The tool activity of the subagent is there, tagged; its tokens are not."""
    events = [event for kind in ACTIVITY for event in told.of(kind)]
    assert [(e.agent, e.tool_name) for e in told.of(ToolCallStart)] == [
        (None, agent),
        (agent, "look_up"),
    ]
    for kind in ACTIVITY:
        assert [e.agent for e in told.of(kind)].count(agent) == 1
    assert len({event.tool_call_id for event in events}) == 2
    assert [(e.agent, e.tool_output) for e in told.of(ToolOutput)] == [
        (agent, "tea is blue"),
        (None, "Blue tea"),
    ]
    assert "".join(event.content for event in told.of(TextChunk)) == "It is blue."


async def test_each_is_exposed_as_a_tool(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    child_side, child = await provide([text_turn("Blue.")])

    class Researcher(Agent):
        """Reads the archive."""

        name = "researcher"

        def get_llm(self) -> Any:
            return child

    class Writer(Researcher):
        name = "writer"
        description = "Writes."

    parent_side, parent = await provide([ASK, text_turn("ok")])
    told = await driver.tell(agent_over(parent, tools=[look_up], subagents=[Researcher, Writer]))

    tools = [tool["function"] for tool in parent_side.requests[0].body["tools"]]
    assert [tool["name"] for tool in tools] == ["look_up", "researcher", "writer"]
    assert [tool["description"] for tool in tools[1:]] == ["Reads the archive.", "Writes."]
    assert list(tools[1]["parameters"]["properties"]) == ["task", "context"]
    [asked] = child_side.requests[0].body["messages"]
    assert (asked["role"], asked["content"]) == ("user", "find it\n\nContext:\norder 7")
    assert told.answer == "ok"


async def test_its_tool_activity_streams_tagged_with_agent_and_its_tokens_do_not(
    streaming: Driver, teamed: Teamed
) -> None:
    _, _, agent = await teamed(LOOKS)
    assert_relayed(await streaming.tell(agent), "researcher")


async def test_its_answer_is_the_final_text(driver: Driver, teamed: Teamed) -> None:
    parent_side, _, agent = await teamed(LOOKS)
    told = await driver.tell(agent)
    assert told.tool_results == [("call_0", "Blue tea", False)]
    assert parent_side.requests[1].body["messages"][-1]["content"] == "Blue tea"
    # What the subagent said on its way is nobody's message here.
    assert told.roles == ["assistant", "tool", "assistant"]
    assert told.answer == "It is blue."


async def test_where_the_loop_was_cut_short_its_answer_is_one_extra_call_without_tools(
    driver: Driver, teamed: Teamed
) -> None:
    again = call_turn(("look_up", {"name": "tea"}))
    _, child_side, agent = await teamed(
        [again, again, text_turn("It was blue.")], max_agent_steps=2
    )
    told = await driver.tell(agent)
    assert ["tools" in request.body for request in child_side.requests] == [True, True, False]
    # Over what it found.
    last = child_side.requests[-1].body["messages"]
    assert [m["content"] for m in last if m["role"] == "tool"] == ["tea is blue", "tea is blue"]
    assert told.tool_results == [("call_0", "It was blue.", False)]
    assert told.answer == "It is blue."


async def test_its_usage_adds_to_the_parents(driver: Driver, teamed: Teamed) -> None:
    _, _, agent = await teamed(LOOKS)
    told = await driver.tell(agent)
    assert (told.usage.total_tokens, told.result.model_calls) == (60, 4)


async def test_its_failure_is_an_error_of_the_call_without_its_text(
    driver: Driver, teamed: Teamed
) -> None:
    failing = [[{"$status": 500, "body": {"error": {"message": "card 4711"}}}]]
    _, _, agent = await teamed(failing)
    told = await driver.tell(agent)
    [(_, result, is_error)] = told.tool_results
    assert is_error
    assert result.startswith("The agent researcher gave no answer: ")
    assert "4711" not in told.everything
    assert told.answer == "It is blue."


async def test_one_that_is_not_registered_here_is_called_over_the_bus_and_relayed_the_same_way(
    durable: BusDriver, provide: Provide, agent_over: AgentOver, serve_elsewhere: ServeElsewhere
) -> None:
    ask = call_turn(("far-away", {"task": "find it"}))
    _, parent = await provide([ask, text_turn("It is blue.")])
    far_side, far = await provide(LOOKS)
    await serve_elsewhere(agent_over(far, name="far-away", tools=[look_up]))

    told = await durable.tell(agent_over(parent, subagents=["far-away"]))

    if durable.streams:
        assert_relayed(told, "far-away")
    assert told.tool_results == [("call_0", "Blue tea", False)]
    assert (told.usage.total_tokens, told.result.model_calls) == (60, 4)
    assert (told.answer, len(far_side.requests)) == ("It is blue.", 2)


async def test_a_circle_over_the_bus_is_refused_where_it_would_close(
    durable: BusDriver, provide: Provide, agent_over: AgentOver, serve_elsewhere: ServeElsewhere
) -> None:
    parent_side, parent = await provide([call_turn(("far-away", {"task": "t"})), text_turn("ok")])
    back = call_turn(("stage", {"task": "t"}))
    far_side, far = await provide([back, text_turn("Alone.")])
    await serve_elsewhere(agent_over(far, name="far-away", subagents=["stage"]))

    told = await durable.tell(agent_over(parent, subagents=["far-away"]))

    assert "was not asked" in far_side.requests[1].body["messages"][-1]["content"]
    assert told.tool_results == [("call_0", "Alone.", False)]
    assert len(parent_side.requests) == 2


@pytest.mark.parametrize("by_name", [True, False])
def test_a_circle_is_refused_where_agents_are_registered(by_name: bool) -> None:
    class Left(Agent):
        name = "left"

    class Right(Agent):
        name = "right"
        subagents = (Left,)

    Left.subagents = ("right",) if by_name else (Right,)
    with pytest.raises(ConfigurationError, match="circle"):
        Registry([Left, Right])
