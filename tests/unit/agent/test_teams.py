"""Who may be a subagent, and who is meant by one."""

from typing import Any

import pytest
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

from hayrunner import Subagent
from hayrunner.agent import Agent
from hayrunner.errors import ConfigurationError
from hayrunner.registry import Registry


def named(generator: Any, name: str, **settings: Any) -> Agent:
    agent = agent_over(generator, **settings)
    agent.name = name
    return agent


class Archive(Agent):
    name = "archive"


def test_a_circle_is_refused_where_it_is_closed() -> None:
    registry = Registry()
    registry.add_agent(named(None, "first", subagents=["second"]))
    with pytest.raises(ConfigurationError, match="circle: second → first → second"):
        registry.add_agent(named(None, "second", subagents=["first"]))
    assert registry.names() == ["first"]


def test_a_circle_of_classes_is_refused_before_anything_is_made() -> None:
    class Left(Agent):
        name = "left"

    class Right(Agent):
        name = "right"
        subagents = (Left,)

    Left.subagents = (Right,)
    with pytest.raises(ConfigurationError, match="circle: left → right → left"):
        Registry([Left])
    with pytest.raises(ConfigurationError, match="circle"):
        _ = Left().team


def test_an_agent_that_calls_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="circle: loop → loop"):
        Registry([named(None, "loop", subagents=["loop"])])


@pytest.mark.parametrize("source", [object(), "not a name", 7, type("Nameless", (Agent,), {})])
def test_what_cannot_be_a_subagent_is_refused(source: Any) -> None:
    with pytest.raises(ConfigurationError):
        Registry([named(None, "support", subagents=[source])])


def test_two_tools_of_one_name_are_refused() -> None:
    def archive() -> str:
        """A tool."""
        return ""

    with pytest.raises(ConfigurationError, match="two of its tools are named archive"):
        _ = named(None, "support", tools=[archive], subagents=[Archive]).team
    with pytest.raises(ConfigurationError, match="two of its tools are named archive"):
        _ = named(None, "support", subagents=[Archive, Archive()]).team


async def test_a_registered_agent_is_called_as_it_is_registered(provide: Provide) -> None:
    _, parent = await provide([call_turn(("archive", {"task": "t"})), text_turn("ok")])
    _, child = await provide([text_turn("Old.")])

    class Known(Archive):
        def get_llm(self) -> Any:
            return child

    registry = Registry([named(parent, "support", subagents=[Known]), Known])
    told = await tell(registry.get("support"))
    assert outputs_of(told.events) == [("Old.", False)]
    # The one object: it has its client from that run.
    assert registry.get("archive").llm is child


async def test_a_name_that_is_nobodys_fails_a_run_without_a_bus(provide: Provide) -> None:
    provider, parent = await provide([text_turn("ok")])
    sink = Sink()
    agent = agent_over(parent, subagents=["elsewhere"])
    session = agent.open_session(request(), message_id=MESSAGE_ID, sink=sink, agent_name="support")
    outcome = await session.run()
    assert outcome.error is not None
    assert "no bus to call it over" in outcome.error.message
    assert provider.requests == []


async def test_subagents_are_warmed_up_and_closed_with_their_agent(provide: Provide) -> None:
    seen: list[str] = []

    class Noting(Archive):
        def get_llm(self) -> Any:
            return generator

        async def warm_up(self) -> None:
            seen.append("warm")

        async def close(self) -> None:
            seen.append("closed")

    _, generator = await provide([text_turn("ok")])
    agent = agent_over(generator, subagents=[Noting])
    await agent.warm_up()
    await agent.close()
    assert seen == ["warm", "closed"]


def test_a_subagent_is_described_by_its_description_or_docstring() -> None:
    class Documented(Agent):
        """Reads the archive."""

        name = "documented"

    class Described(Documented):
        """Not this."""

        name = "described"
        description = "Reads the news."

    class Bare(Documented):
        name = "bare"

    registry = Registry()
    sources = [Documented, Described, Bare, Subagent(Archive, "Keeps it.")]
    agent = registry.add_agent(named(None, "support", subagents=sources))
    assert [(tool.name, tool.description) for tool in agent.team.tools] == [
        ("documented", "Reads the archive."),
        ("described", "Reads the news."),
        ("bare", "Asks the agent bare."),
        ("archive", "Keeps it."),
    ]
