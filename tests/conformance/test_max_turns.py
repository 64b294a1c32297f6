"""`max_turns`, and how a run ends that reaches it."""

from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner_contracts.events import Error, MessageEnd, ToolOutput

LOOPING = [call_turn(("look", {"n": 1}), text="Let me look. ")]


class Looks:
    def __init__(self) -> None:
        self.runs = 0

    async def look(self, n: int) -> str:
        """Looks."""
        self.runs += 1
        return f"saw {n}"


async def test_zero_makes_no_call(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide([text_turn("Hello")], kind)
    told = await driver.tell(agent_over(generator), options={"max_turns": 0})
    assert provider.requests == []
    assert (told.result.status, told.code) == ("failed", "max_turns")
    assert told.result.model_calls == 0
    assert told.messages == []


async def test_exceeding_it_ends_the_run_with_its_code_carrying_usage_and_history_so_far(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(LOOPING, kind)
    agent = agent_over(generator, tools=[Looks().look])
    told = await driver.tell(agent, options={"max_turns": 2})
    assert len(provider.requests) == 2
    assert (told.code, told.result.finish_reason) == ("max_turns", "max_turns")
    assert told.roles == ["assistant", "tool", "assistant", "tool"]
    assert told.usage.total_tokens == 30
    assert told.result.model_calls == 2
    [error] = told.of(Error)
    assert error.error_code == "max_turns"
    [end] = told.of(MessageEnd)
    assert end.finish_reason == "max_turns"
    assert end.usage == told.usage


async def test_tools_of_the_last_allowed_call_still_run(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    _, generator = await provide(LOOPING, kind)
    looks = Looks()
    told = await driver.tell(agent_over(generator, tools=[looks.look]), options={"max_turns": 1})
    assert looks.runs == 1
    assert [result for _, result, _ in told.tool_results] == ["saw 1"]
    if driver.streams:
        assert [output.tool_output for output in told.of(ToolOutput)] == ["saw 1"]


async def test_it_counts_the_first_call_and_every_retry_and_continuation(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    unknown, bad = call_turn(("nosuch", {})), call_turn(("look", "[1]"))
    provider, generator = await provide([unknown, bad, call_turn(("look", {"n": 1}))])
    agent = agent_over(generator, tools=[Looks().look])
    told = await driver.tell(agent, options={"max_turns": 3, "max_invalid_tool_call_retries": 5})
    assert len(provider.requests) == 3
    assert told.code == "max_turns"


async def test_it_counts_the_repair_turn_of_structured_output(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([text_turn("no JSON")])
    told = await driver.tell(
        agent_over(generator), options={"max_turns": 1}, response_format={"type": "object"}
    )
    assert len(provider.requests) == 1
    assert told.code == "max_turns"


@pytest.mark.parametrize(("own", "option", "calls"), [(2, ..., 2), (2, 4, 4), (5, 1, 1)])
async def test_the_requests_limit_goes_over_the_agents(
    driver: Driver,
    provide: Provide,
    agent_over: AgentOver,
    own: int,
    option: Any,
    calls: int,
) -> None:
    provider, generator = await provide(LOOPING)
    agent = agent_over(generator, tools=[Looks().look], max_agent_steps=own)
    await driver.tell(agent, options={} if option is ... else {"max_turns": option})
    assert len(provider.requests) == calls


async def test_null_removes_the_limit(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    turns = [*(call_turn(("look", {"n": n})) for n in range(9)), text_turn("done")]
    provider, generator = await provide(turns)
    agent = agent_over(generator, tools=[Looks().look], max_agent_steps=2)
    told = await driver.tell(agent, options={"max_turns": None})
    assert len(provider.requests) == 10
    assert told.answer == "done"


async def test_six_is_the_default(driver: Driver, provide: Provide, agent_over: AgentOver) -> None:
    provider, generator = await provide(LOOPING)
    await driver.tell(agent_over(generator, tools=[Looks().look]))
    assert len(provider.requests) == 6
