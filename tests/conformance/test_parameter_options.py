"""`temperature`, `max_tokens`, `merge_params`, `replace_params`, `tool_choice`, `token_budget`,
`deadline`; and that what a generator cannot honour is an error before the first call."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from haystack import component
from haystack.dataclasses import ChatMessage
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import BusDriver, Driver
from tests.conformance.hooked import hook
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.hooks import Retry

REPLY = [text_turn("Hello")]
CALLING = [call_turn(("add", {"a": 1, "b": 2}))]


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize(
    ("own", "given", "sent"),
    [
        ({"a": 1, "b": {"x": 1}}, {"b": {"y": 2}, "c": 3}, {"a": 1, "b": {"y": 2}, "c": 3}),
        ({"a": 1}, {"a": None}, {}),
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, None, {"a": 1}),
        ([1, 2], {"a": 1}, {"a": 1}),
        ("text", {"a": 1}, {"a": 1}),
        (None, {"a": 1}, {"a": 1}),
    ],
    ids=[
        "shallow",
        "null member",
        "empty",
        "null",
        "list baseline",
        "text baseline",
        "no baseline",
    ],
)
async def test_merge_params_merge_shallowly_and_a_baseline_that_is_no_object_is_replaced(
    driver: Driver, provide: Provide, agent_over: AgentOver, own: Any, given: Any, sent: Any
) -> None:
    provider, generator = await provide(REPLY)
    generator.generation_kwargs = own
    told = await driver.tell(agent_over(generator), options={"merge_params": given})
    assert told.answer == "Hello"
    body = provider.requests[0].body
    assert {name: body[name] for name in ("a", "b", "c") if name in body} == sent
    assert generator.generation_kwargs == own


async def test_replace_params_is_wholesale_and_null_removes_all(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(REPLY, kind, generation_kwargs={"seed": 1, "top_p": 0.1})
    agent = agent_over(generator)
    await driver.tell(agent, options={"replace_params": {"seed": 2}})
    await driver.tell(agent, options={"replace_params": None})
    one, two = (request.body for request in provider.requests)
    assert (one["seed"], "top_p" in one) == (2, False)
    assert not {"seed", "top_p"} & set(two)


async def test_they_apply_in_order_replace_merge_then_the_named_ones(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(REPLY, kind, generation_kwargs={"user": "own"})
    options = {
        "replace_params": {"seed": 1, "temperature": 0.1, "top_p": 0.1},
        "merge_params": {"seed": 2, "temperature": 0.2},
        "temperature": 0.3,
    }
    await driver.tell(agent_over(generator), options=options)
    body = provider.requests[0].body
    assert (body["seed"], body["top_p"], body["temperature"]) == (2, 0.1, 0.3)
    assert "user" not in body


@pytest.mark.parametrize("choice", ["auto", "required", "none", {"name": "add"}])
async def test_a_tool_choice_reaches_the_provider(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str, choice: Any
) -> None:
    provider, generator = await provide(REPLY, kind)
    await driver.tell(agent_over(generator, tools=[add]), options={"tool_choice": choice})
    named = {"type": "function", "function": {"name": "add"}}
    sent = provider.requests[0].body["tool_choice"]
    assert sent == (choice if isinstance(choice, str) else named)


@pytest.mark.parametrize(
    ("choice", "tools"), [("required", []), ({"name": "nosuch"}, [add]), ({"name": "add"}, [])]
)
async def test_required_with_no_tools_or_an_unknown_name_is_an_error_before_any_model_call(
    driver: Driver, provide: Provide, agent_over: AgentOver, choice: Any, tools: list[Any]
) -> None:
    provider, generator = await provide(REPLY)
    told = await driver.tell(agent_over(generator, tools=tools), options={"tool_choice": choice})
    assert (told.code, provider.requests) == ("invalid_request", [])
    assert (told.field or "").startswith("options.tool_choice")


@pytest.mark.parametrize("choice", ["required", {"name": "add"}])
@pytest.mark.parametrize("every_step", [None, False, True])
async def test_after_required_was_honoured_once_later_steps_go_back_to_auto_unless_every_step(
    driver: Driver,
    provide: Provide,
    agent_over: AgentOver,
    choice: Any,
    every_step: bool | None,
) -> None:
    provider, generator = await provide([*CALLING, *CALLING, text_turn("done")])
    options = {"tool_choice": choice, "tool_choice_every_step": every_step}
    await driver.tell(agent_over(generator, tools=[add]), options=options)
    choices = [request.body["tool_choice"] for request in provider.requests]
    assert choices[1:] == ([choices[0]] * 2 if every_step else ["auto", "auto"])


async def test_a_reply_without_the_call_has_not_honoured_it(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([text_turn("no"), *CALLING, text_turn("done")])
    retries = [Retry("call add")]
    hooks = [hook(on_model_response=lambda *_: retries.pop() if retries else None)]
    agent = agent_over(generator, tools=[add], hooks=hooks)
    await driver.tell(agent, options={"tool_choice": "required"})
    choices = [request.body["tool_choice"] for request in provider.requests]
    assert choices == ["required", "required", "auto"]


async def test_a_call_that_a_hook_rejected_has_not_honoured_it(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([*CALLING, *CALLING, text_turn("done")])
    retries = [Retry("another")]
    hooks = [hook(on_model_response=lambda *_: retries.pop() if retries else None)]
    agent = agent_over(generator, tools=[add], hooks=hooks)
    await driver.tell(agent, options={"tool_choice": "required"})
    choices = [request.body["tool_choice"] for request in provider.requests]
    assert choices == ["required", "required", "auto"]


@pytest.mark.parametrize("kept", ["own", "option"])
async def test_past_the_token_budget_the_run_stops_with_budget_exceeded(
    driver: Driver, provide: Provide, agent_over: AgentOver, kept: str
) -> None:
    provider, generator = await provide(CALLING)
    agent = agent_over(generator, tools=[add], token_budget=20 if kept == "own" else None)
    told = await driver.tell(agent, options={} if kept == "own" else {"token_budget": 20})
    assert len(provider.requests) == 2
    assert (told.code, told.result.finish_reason) == ("budget_exceeded", "stopped")
    assert told.usage.total_tokens == 30
    assert told.roles == ["assistant", "tool"] * 2


async def test_a_run_that_is_done_within_its_last_call_has_not_exceeded_it(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(REPLY)
    told = await driver.tell(agent_over(generator), options={"token_budget": 1})
    assert (told.result.status, told.answer) == ("completed", "Hello")


@pytest.mark.parametrize("mode", ["stream", "answer"])
@pytest.mark.parametrize(("left_s", "code"), [(-1, "deadline_exceeded"), (60, None), (..., None)])
async def test_past_the_deadline_the_run_is_cancelled_with_its_code(
    request: pytest.FixtureRequest,
    provide: Provide,
    agent_over: AgentOver,
    mode: str,
    left_s: Any,
    code: str | None,
) -> None:
    _, generator = await provide(REPLY)
    driver = BusDriver(mode, *request.getfixturevalue("bus"))
    deadline = None if left_s is ... else datetime.now(UTC) + timedelta(seconds=left_s)
    given = None if deadline is None else deadline.isoformat()
    told = await driver.tell(agent_over(generator), options={"deadline": given})
    assert told.code == code


@component
class Plain:
    """A generator without parameters, and of no known kind."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        return {"replies": [ChatMessage.from_assistant("Hello")]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        raise AssertionError("a model call")


@pytest.mark.parametrize(
    "option",
    [
        {"temperature": 0.1},
        {"max_tokens": 10},
        {"merge_params": {"seed": 1}},
        {"replace_params": None},
        {"tool_choice": "auto"},
    ],
    ids=lambda option: next(iter(option)),
)
async def test_what_a_generator_cannot_honour_is_an_error_before_the_first_call(
    driver: Driver, agent_over: AgentOver, option: dict[str, Any]
) -> None:
    told = await driver.tell(agent_over(Plain(), tools=[add]), options=option)
    assert (told.code, told.result.model_calls) == ("invalid_request", 0)
    assert told.field == f"options.{next(iter(option))}"


async def test_what_an_agents_own_run_adapter_cannot_honour_is_an_error_before_any_call(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    class Own:
        called = 0

        async def run(self, messages: Any, **_: Any) -> str:
            Own.called += 1
            return "own answer"

    provider, generator = await provide(REPLY)
    agent = agent_over(generator, get_run_adapter=lambda self, thread_id, user: Own())
    told = await driver.tell(agent, options={"temperature": 0.1})
    if driver.streams:
        assert (told.answer, provider.requests[0].body["temperature"]) == ("Hello", 0.1)
    else:
        assert (told.code, told.field) == ("invalid_request", "options.temperature")
        assert Own.called == 0
        assert (await driver.tell(agent, options={"history": []})).answer == "own answer"
