"""Provider parameters and tool_choice of one run, on a generator that all runs share."""

import asyncio
from typing import Any

import pytest
from haystack.components.generators.chat import MockChatGenerator
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, call_turn, tell, text_of, text_turn

from hayrunner_contracts.options import NamedTool

REPLY = [text_turn("Hello")]
KNOWN = ("temperature", "max_tokens", "max_completion_tokens", "top_p", "stop", "seed", "user")
OWN = {"temperature": 0.5, "max_tokens": 100, "top_p": 0.9}


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def subtract(a: int, b: int) -> int:
    """Subtracts the second from the first."""
    return a - b


def parameters(provider: Any, which: int = -1) -> dict[str, Any]:
    body = provider.requests[which].body
    return {name: body[name] for name in KNOWN if name in body}


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, OWN),
    ({"temperature": 0.0}, OWN | {"temperature": 0.0}),
    ({"temperature": None}, {"max_tokens": 100, "top_p": 0.9}),
    ({"max_tokens": 7}, OWN | {"max_tokens": 7}),
    ({"max_tokens": None}, {"temperature": 0.5, "top_p": 0.9}),
    ({"merge_params": {"top_p": 0.1, "seed": 3}}, OWN | {"top_p": 0.1, "seed": 3}),
    ({"merge_params": {"top_p": None}}, {"temperature": 0.5, "max_tokens": 100}),
    ({"merge_params": None}, OWN),
    ({"merge_params": {"stop": ["a"]}}, OWN | {"stop": ["a"]}),
    ({"replace_params": {"seed": 3}}, {"seed": 3}),
    ({"replace_params": None}, {}),
    ({"replace_params": {"seed": 3}, "merge_params": {"top_p": 0.2}}, {"seed": 3, "top_p": 0.2}),
    ({"merge_params": {"temperature": 2.0}, "temperature": 0.1}, OWN | {"temperature": 0.1}),
    ({"replace_params": {"temperature": 2.0}, "temperature": None}, {}),
]


@pytest.mark.parametrize("kind", ["own", "openai"])
@pytest.mark.parametrize(("options", "expected"), CASES, ids=lambda case: repr(case))
async def test_parameters_of_a_request_apply_over_the_generators(
    provide: Provide, kind: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    provider, generator = await provide(REPLY, kind, generation_kwargs=dict(OWN))
    agent = agent_over(generator)

    await tell(agent, options=options)
    await tell(agent)

    assert parameters(provider, 0) == expected
    assert parameters(provider, 1) == generator.generation_kwargs == OWN


@pytest.mark.parametrize(
    ("kind", "spelled"), [("own", "max_tokens"), ("openai", "max_completion_tokens")]
)
async def test_max_tokens_is_spelled_as_the_generators_api_has_it(
    provide: Provide, kind: str, spelled: str
) -> None:
    provider, generator = await provide(REPLY, kind)
    await tell(agent_over(generator), options={"max_tokens": 7})
    assert parameters(provider) == {spelled: 7}


async def test_merging_is_shallow(provide: Provide) -> None:
    own = {"logit_bias": {"1": 1, "2": 2}}
    provider, generator = await provide(REPLY, generation_kwargs=own)
    await tell(agent_over(generator), options={"merge_params": {"logit_bias": {"3": 3}}})
    assert provider.requests[0].body["logit_bias"] == {"3": 3}


async def test_a_baseline_that_is_no_object_is_replaced(provide: Provide) -> None:
    provider, generator = await provide(REPLY)
    generator.generation_kwargs = "nonsense"
    await tell(agent_over(generator), options={"merge_params": {"seed": 3}})
    assert parameters(provider) == {"seed": 3}


async def test_a_generator_without_parameters_refuses_them_before_a_call() -> None:
    agent = agent_over(MockChatGenerator("Hello"))
    for options in ({"temperature": 0.1}, {"merge_params": {}}, {"replace_params": None}):
        told = await tell(agent, options=options)
        assert (told.code, told.outcome.model_calls) == ("invalid_request", 0)
        assert told.outcome.error is not None
        assert told.outcome.error.field == f"options.{next(iter(options))}"


CHOICES: list[tuple[Any, Any]] = [
    ("auto", "auto"),
    ("required", "required"),
    ("none", "none"),
    (NamedTool(name="add"), {"type": "function", "function": {"name": "add"}}),
]


@pytest.mark.parametrize("kind", ["own", "openai"])
@pytest.mark.parametrize(("choice", "on_the_wire"), CHOICES, ids=repr)
async def test_each_form_of_tool_choice_reaches_the_provider(
    provide: Provide, kind: str, choice: Any, on_the_wire: Any
) -> None:
    provider, generator = await provide(REPLY, kind)
    await tell(agent_over(generator, tools=[add]), options={"tool_choice": choice})
    assert provider.requests[0].body["tool_choice"] == on_the_wire


@pytest.mark.parametrize("choice", ["required", NamedTool(name="add")], ids=repr)
async def test_a_forced_choice_is_auto_once_it_was_honoured(provide: Provide, choice: Any) -> None:
    turns = [call_turn(("add", {"a": 1, "b": 2})), call_turn(("add", {"a": 3, "b": 4}))]
    provider, generator = await provide([*turns, text_turn("7")])

    told = await tell(agent_over(generator, tools=[add]), options={"tool_choice": choice})

    assert text_of(told.events) == "7"
    assert [r.body["tool_choice"] for r in provider.requests][1:] == ["auto", "auto"]
    assert provider.requests[0].body["tool_choice"] != "auto"


async def test_none_stays_none_on_every_step(provide: Provide) -> None:
    turns = [call_turn(("add", {"a": 1, "b": 2})), text_turn("3")]
    provider, generator = await provide(turns)
    await tell(agent_over(generator, tools=[add]), options={"tool_choice": "none"})
    assert [r.body["tool_choice"] for r in provider.requests] == ["none", "none"]


async def test_null_removes_the_generators_own_choice(provide: Provide) -> None:
    provider, generator = await provide(REPLY, generation_kwargs={"tool_choice": "required"})
    agent = agent_over(generator, tools=[add])
    await tell(agent, options={"tool_choice": None})
    await tell(agent)
    assert "tool_choice" not in provider.requests[0].body
    assert provider.requests[1].body["tool_choice"] == "required"


REFUSED: list[tuple[Any, list[Any], str]] = [
    ("required", [], "options.tool_choice"),
    (NamedTool(name="nosuch"), [add, subtract], "options.tool_choice.name"),
    (NamedTool(name="add"), [], "options.tool_choice.name"),
]


@pytest.mark.parametrize(("choice", "tools", "field"), REFUSED, ids=repr)
async def test_a_choice_that_cannot_be_honoured_is_refused_before_any_call(
    provide: Provide, choice: Any, tools: list[Any], field: str
) -> None:
    provider, generator = await provide(REPLY)

    told = await tell(agent_over(generator, tools=tools), options={"tool_choice": choice})

    assert provider.requests == []
    assert (told.code, told.outcome.model_calls) == ("invalid_request", 0)
    assert told.outcome.error is not None
    assert told.outcome.error.field == field
    assert not told.outcome.error.retryable


async def test_a_generator_of_an_unknown_kind_refuses_tool_choice_before_a_call() -> None:
    agent = agent_over(MockChatGenerator("Hello"), tools=[add])
    told = await tell(agent, options={"tool_choice": "auto"})
    assert (told.code, told.outcome.model_calls) == ("invalid_request", 0)


async def test_a_repair_turn_of_structured_output_is_not_held_to_a_forced_choice(
    provide: Provide,
) -> None:
    turns = [call_turn(("add", {"a": 1, "b": 2})), text_turn("three"), text_turn('{"sum": 3}')]
    _, generator = await provide(turns)
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    told = await tell(
        agent_over(generator, tools=[add]),
        options={"tool_choice": "required"},
        response_format=schema,
    )
    assert (told.code, told.outcome.answer) == (None, {"sum": 3})


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_options_of_one_run_never_leak_into_another(provide: Provide, kind: str) -> None:
    provider, generator = await provide(REPLY, kind)
    agent = agent_over(generator, tools=[add], instructions="own prompt")

    async def run(number: int) -> None:
        options: dict[str, Any] = {
            "temperature": number / 100,
            "preamble": f"prompt {number}",
            "merge_params": {"seed": number},
            "tool_choice": "none" if number % 2 else "auto",
        }
        await tell(agent, f"question {number}", options if number % 5 else {})

    await asyncio.gather(*(run(number) for number in range(50)))

    assert len(provider.requests) == 50
    seen: set[int] = set()
    for body in (request.body for request in provider.requests):
        system, asked = (message["content"] for message in body["messages"])
        number = int(asked.removeprefix("question "))
        seen.add(number)
        if number % 5:
            assert (body["temperature"], body["seed"]) == (number / 100, number)
            assert system == f"prompt {number}"
            assert body["tool_choice"] == ("none" if number % 2 else "auto")
        else:
            assert not {"temperature", "seed", "tool_choice"} & set(body)
            assert system == "own prompt"
    assert seen == set(range(50))
