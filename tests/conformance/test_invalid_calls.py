"""Calls that cannot be run: fed back in call order within `max_invalid_tool_call_retries`, unless
`on_invalid_tool_call` says fail, retry, repair, skip or stop."""

from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.conformance.hooked import hook
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.hooks import Fail, HookRun, InvalidCall, Patch, Repair, Retry, Skip, Stop
from hayrunner_contracts.events import ToolExecutionCommitted, ToolInputComplete, ToolOutput

INVALID = {
    "unknown tool": ("nosuch", {"a": 1}, "there is no tool of that name. The tools are: add."),
    "no JSON": ("add", '{"a": ', "its arguments are not a JSON object."),
    "a list": ("add", "[1, 2]", "its arguments are not a JSON object."),
    "the schema": ("add", {"a": "x"}, "its arguments do not satisfy the tool's schema: "),
}


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


@pytest.fixture(params=INVALID)
def invalid(request: pytest.FixtureRequest) -> tuple[str, Any, str]:
    return INVALID[request.param]


def turns(*calls: tuple[str, Any]) -> list[Any]:
    return [call_turn(*calls), text_turn("sorry")]


async def test_the_calls_error_is_fed_back_to_the_model(
    driver: Driver,
    provide: Provide,
    agent_over: AgentOver,
    kind: str,
    invalid: tuple[str, Any, str],
) -> None:
    name, arguments, problem = invalid
    provider, generator = await provide(turns((name, arguments)), kind)
    told = await driver.tell(agent_over(generator, tools=[add]))
    [(_, result, is_error)] = told.tool_results
    assert is_error
    assert problem in result
    assert provider.requests[1].body["messages"][-1]["content"] == result
    assert told.answer == "sorry"
    assert told.of(ToolExecutionCommitted) == []


async def test_a_call_under_tool_choice_none_is_one(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(("add", {"a": 1})))
    told = await driver.tell(agent_over(generator, tools=[add]), options={"tool_choice": "none"})
    [(_, result, is_error)] = told.tool_results
    assert (is_error, result) == (True, "This call was not run: tools may not be called now.")


@pytest.mark.parametrize(("option", "patched", "runs"), [("none", "auto", 1), ("auto", "none", 0)])
async def test_the_choice_that_counts_is_the_one_that_was_sent(
    driver: Driver,
    provide: Provide,
    agent_over: AgentOver,
    option: str,
    patched: Any,
    runs: int,
) -> None:
    _, generator = await provide(turns(("add", {"a": 1})))
    agent = agent_over(
        generator, tools=[add], hooks=[hook(on_model_call=Patch(tool_choice=patched))]
    )
    told = await driver.tell(agent, options={"tool_choice": option})
    assert sum(not is_error for *_, is_error in told.tool_results) == runs


async def test_they_are_fed_back_in_call_order_and_valid_siblings_run(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    calls = ("nosuch", {}), ("add", {"a": 1}), ("add", "[]"), ("add", {"a": 2})
    _, generator = await provide(turns(*calls))
    told = await driver.tell(agent_over(generator, tools=[add]))
    assert [call for call, *_ in told.tool_results] == ["call_0", "call_1", "call_2", "call_3"]
    assert [is_error for *_, is_error in told.tool_results] == [True, False, True, False]
    if driver.streams:
        assert [e.tool_call_id for e in told.of(ToolOutput)] == [f"call_{n}" for n in range(4)]
        assert [e.tool_call_id for e in told.of(ToolExecutionCommitted)] == ["call_1", "call_3"]


@pytest.mark.parametrize(("option", "calls"), [(..., 3), (0, 1), (1, 2), (4, 5), (None, 1)])
async def test_this_often_then_the_run_ends_with_invalid_tool_call(
    driver: Driver, provide: Provide, agent_over: AgentOver, option: Any, calls: int
) -> None:
    provider, generator = await provide([call_turn(("nosuch", {}), ("add", "[]"))])
    options = {} if option is ... else {"max_invalid_tool_call_retries": option}
    told = await driver.tell(agent_over(generator, tools=[add]), options=options)
    assert (told.code, len(provider.requests)) == ("invalid_tool_call", calls)
    assert told.roles == ["assistant", "tool", "tool"] * calls
    assert told.usage.total_tokens == 15 * calls


async def test_the_raw_text_is_what_is_shown_and_what_goes_back(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(turns(("add", '{"a": ')), kind)
    told = await driver.tell(agent_over(generator, tools=[add]))
    if driver.streams:
        [shown] = told.of(ToolInputComplete)
        assert shown.tool_input == '{"a": '
    if kind == "own":
        [call] = provider.requests[1].body["messages"][1]["tool_calls"]
        assert call["function"]["arguments"] == '{"a": '


async def test_a_hook_sees_the_call_its_problem_and_the_budget(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([call_turn(("add", "[1]")), *turns(("nosuch", {"x": 1}))])
    seen: list[InvalidCall] = []
    hooks = [hook(on_invalid_tool_call=lambda run, call: seen.append(call))]
    await driver.tell(agent_over(generator, tools=[add], hooks=hooks))
    assert [(c.tool_name, c.tool_input, c.retries_left) for c in seen] == [
        ("add", "[1]", 2),
        ("nosuch", {"x": 1}, 1),
    ]
    assert all(call.problem.startswith("This call was not run: ") for call in seen)


async def test_fail_ends_the_run_at_once(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(turns(("add", {"a": 1}), ("nosuch", {})))
    told = await driver.tell(
        agent_over(generator, tools=[add], hooks=[hook(on_invalid_tool_call=Fail())])
    )
    assert (told.code, len(provider.requests)) == ("invalid_tool_call", 1)
    # Its sibling was not run, and history says so.
    assert [is_error for *_, is_error in told.tool_results] == [True, True]


async def test_retry_feeds_the_hooks_words_back_within_the_budget(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([call_turn(("nosuch", {}))])
    hooks = [hook(on_invalid_tool_call=Retry("use add")), hook(on_invalid_tool_call=Fail())]
    told = await driver.tell(agent_over(generator, tools=[add], hooks=hooks))
    assert (told.code, len(provider.requests)) == ("invalid_tool_call", 3)
    assert [result for _, result, _ in told.tool_results[:2]] == ["use add", "use add"]


async def test_repair_runs_the_call_as_mended_and_history_has_it_so(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(turns(("plus", '{"a": '), ("add", {"a": 5})), kind)
    repair = Repair(tool_name="add", tool_input={"a": 1, "b": 2})
    told = await driver.tell(
        agent_over(generator, tools=[add], hooks=[hook(on_invalid_tool_call=repair)]),
        options={"max_invalid_tool_call_retries": 0},
    )
    assert told.tool_results == [("call_0", "3", False), ("call_1", "6", False)]
    assert told.answer == "sorry"
    sent = provider.requests[1].body["messages"][1]["tool_calls"]
    assert [call["function"]["name"] for call in sent] == ["add", "add"]
    if driver.streams:
        committed = told.of(ToolExecutionCommitted)
        assert [event.tool_input for event in committed] == [{"a": 1, "b": 2}, {"a": 5}]


async def test_a_repair_that_repairs_nothing_is_fed_back(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(("nosuch", {})))
    hooks = [hook(on_invalid_tool_call=Repair(tool_input={"a": "x"}, tool_name="add"))]
    told = await driver.tell(agent_over(generator, tools=[add], hooks=hooks))
    [(_, result, is_error)] = told.tool_results
    assert is_error
    assert "do not satisfy the tool's schema" in result


async def test_skip_answers_the_call_and_costs_no_correction(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(("nosuch", {})))
    told = await driver.tell(
        agent_over(generator, tools=[add], hooks=[hook(on_invalid_tool_call=Skip("never mind"))]),
        options={"max_invalid_tool_call_retries": 0},
    )
    assert told.tool_results == [("call_0", "never mind", True)]
    assert told.answer == "sorry"


async def test_stop_ends_the_run_with_its_reason_and_a_valid_history(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(("add", {"a": 1}), ("nosuch", {})))
    told = await driver.tell(
        agent_over(generator, tools=[add], hooks=[hook(on_invalid_tool_call=Stop("no"))])
    )
    assert (told.code, told.why) == ("stopped", "no")
    assert [call for call, *_ in told.tool_results] == ["call_0", "call_1"]


async def test_the_first_answer_decides(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(("nosuch", {})))
    asked: list[HookRun] = []
    hooks = [
        hook(on_invalid_tool_call=None),
        hook(on_invalid_tool_call=Skip("first")),
        hook(on_invalid_tool_call=lambda run, call: asked.append(run)),
    ]
    told = await driver.tell(agent_over(generator, tools=[add], hooks=hooks))
    assert told.tool_results == [("call_0", "first", True)]
    assert asked == []


async def test_no_hook_is_needed_for_the_feedback(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(
        [call_turn(("nosuch", {})), call_turn(("add", {"a": 1})), *turns()]
    )
    told = await driver.tell(agent_over(generator, tools=[add]), options={"max_turns": 2})
    assert told.code == "max_turns"
    assert [is_error for *_, is_error in told.tool_results] == [True, False]
