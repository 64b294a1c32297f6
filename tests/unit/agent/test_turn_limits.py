"""max_turns and max_invalid_tool_call_retries: how many model calls a run may make."""

from typing import Any

import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.tools import create_tool_from_function
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, call_turn, outputs_of, tell, text_turn

from hayrunner.adapted import HaystackAgentAdapter
from hayrunner_contracts.events import Error, MessageEnd, ToolExecutionCommitted, ToolOutput

LOOPING = [call_turn(("add", {"a": 1, "b": 2}), text="Adding.")]
MALFORMED = call_turn(("add", '{"a":'))


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_no_turns_make_no_model_call(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")])

    told = await tell(agent_over(generator), options={"max_turns": 0})

    assert provider.requests == []
    assert told.kinds == ["MessageStart", "Error", "MessageEnd", "StreamEnd"]
    assert (told.outcome.status, told.code, told.outcome.finish_reason) == (
        "failed",
        "max_turns",
        "max_turns",
    )
    assert told.outcome.model_calls == 0
    assert told.outcome.answer is None
    assert told.outcome.messages == []


async def test_tools_of_the_last_allowed_call_still_run(provide: Provide) -> None:
    provider, generator = await provide(LOOPING)

    told = await tell(agent_over(generator, tools=[add]), options={"max_turns": 1})

    assert len(provider.requests) == told.outcome.model_calls == 1
    assert outputs_of(told.events) == [("3", False)]
    assert told.code == "max_turns"
    assert told.of(MessageEnd)[0].finish_reason == told.outcome.finish_reason == "max_turns"
    assert told.of(Error)[0].error_code == "max_turns"
    assert told.outcome.usage.total_tokens == 15
    assert told.roles == ["assistant", "tool"]
    assert told.outcome.answer is None


async def test_a_run_that_fits_its_turns_is_not_cut(provide: Provide) -> None:
    _, generator = await provide([*LOOPING, text_turn("3")])
    told = await tell(agent_over(generator, tools=[add]), options={"max_turns": 2})
    assert (told.outcome.status, told.outcome.answer) == ("completed", "3")


@pytest.mark.parametrize(("options", "calls"), [({}, 3), ({"max_turns": 5}, 5)])
async def test_a_request_overrides_the_agents_own_limit(
    provide: Provide, options: dict[str, Any], calls: int
) -> None:
    provider, generator = await provide(LOOPING)
    told = await tell(agent_over(generator, tools=[add], max_agent_steps=3), options=options)
    assert (told.code, len(provider.requests)) == ("max_turns", calls)


async def test_null_removes_the_limit(provide: Provide) -> None:
    scenario = [*([LOOPING[0]] * 12), text_turn("done")]
    provider, generator = await provide(scenario)
    told = await tell(agent_over(generator, tools=[add]), options={"max_turns": None})
    assert (told.outcome.answer, len(provider.requests)) == ("done", 13)


async def test_a_haystack_agents_own_step_limit_counts(provide: Provide) -> None:
    provider, generator = await provide(LOOPING)
    inner = HaystackAgent(
        chat_generator=generator, tools=[create_tool_from_function(add)], max_agent_steps=2
    )
    told = await tell(HaystackAgentAdapter("calc", inner))
    assert (told.code, len(provider.requests)) == ("max_turns", 2)


@pytest.mark.parametrize(("allowed", "calls"), [(0, 1), (1, 2), (2, 3), (None, 1), (..., 3)])
async def test_invalid_calls_are_fed_back_as_often_as_allowed(
    provide: Provide, allowed: Any, calls: int
) -> None:
    provider, generator = await provide([MALFORMED])
    options = {} if allowed is ... else {"max_invalid_tool_call_retries": allowed}

    told = await tell(agent_over(generator, tools=[add]), options=options)

    assert len(provider.requests) == calls
    assert told.code == "invalid_tool_call"
    assert told.outcome.finish_reason == "error"
    assert told.of(ToolExecutionCommitted) == []
    # Every call has its output, and its tool message, the fatal one too.
    assert all(is_error for _, is_error in outputs_of(told.events))
    assert told.roles == ["assistant", "tool"] * calls


@pytest.mark.parametrize("turn", [MALFORMED, call_turn(("nosuch", {}))])
async def test_the_model_is_told_what_was_wrong_with_its_call(
    provide: Provide, turn: list[dict[str, Any]]
) -> None:
    provider, generator = await provide([turn, text_turn("sorry")])

    told = await tell(agent_over(generator, tools=[add]))

    assert told.outcome.answer == "sorry"
    sent = provider.requests[1].body["messages"][-1]
    assert sent["role"] == "tool"
    assert sent["content"] == told.of(ToolOutput)[0].tool_output
    assert sent["content"].startswith("This call was not run: ")


async def test_corrections_count_against_max_turns(provide: Provide) -> None:
    _, generator = await provide([MALFORMED])
    told = await tell(
        agent_over(generator, tools=[add]),
        options={"max_turns": 2, "max_invalid_tool_call_retries": 5},
    )
    assert (told.code, told.outcome.model_calls) == ("max_turns", 2)


async def test_valid_calls_beside_an_invalid_one_run_while_corrections_are_left(
    provide: Provide,
) -> None:
    mixed = call_turn(("add", {"a": 1, "b": 2}), ("nosuch", {}))
    _, generator = await provide([mixed, mixed])
    agent = agent_over(generator, tools=[add])

    told = await tell(agent, options={"max_invalid_tool_call_retries": 1})

    ran = [event.tool_input for event in told.of(ToolExecutionCommitted)]
    assert ran == [{"a": 1, "b": 2}]
    assert told.code == "invalid_tool_call"
    assert [is_error for _, is_error in outputs_of(told.events)] == [False, True, True, True]
