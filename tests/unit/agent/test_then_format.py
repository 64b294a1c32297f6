"""`then_format`: the tools first, then what came of it in a form."""

from typing import Any

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import ALL, SPOKEN
from tests.unit.agent.runs import agent_over, inputs_of, tell
from tests.unit.agent.test_structured import BAD, GOOD, SCHEMA, Sum, add, rejected

from hayrunner.adapted import HaystackAgentAdapter
from hayrunner.adapters.run import Run
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import TextChunk

STREAM: dict[str, Any] = {"mode": "stream"}
ANSWER: dict[str, Any] = {"mode": "answer", "tools": True}
BOTH = pytest.mark.parametrize("mode", [STREAM, ANSWER], ids=["stream", "answer"])
THEN: dict[str, Any] = {"then_format": SCHEMA}


def scenario(kind: str, *forms: str) -> Any:
    """A call, a sentence, and the JSON replies that are then asked for."""
    spoken = SPOKEN[kind]
    turns = [spoken.calls(("add", {"a": 1, "b": 2})), spoken.text("It is 3.")]
    turns += [spoken.form(form) for form in forms]

    def turn(body: dict[str, Any]) -> Any:
        messages = body.get("messages") or body["input"]
        calls = sum(message.get("type") == "function_call" for message in messages)
        said = sum(message.get("role") == "assistant" for message in messages)
        return turns[min(calls + said, len(turns) - 1)]

    return turn


@BOTH
@pytest.mark.parametrize("kind", ALL)
async def test_the_tools_run_first_and_their_outcome_is_put_into_the_form(
    provide: Provide, kind: str, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(scenario(kind, GOOD), kind)
    spoken = SPOKEN[kind]

    told = await tell(agent_over(generator, tools=[add]), "1+2?", THEN, **mode)

    assert (told.outcome.answer, told.outcome.finish_reason) == ({"sum": 3}, "stop")
    assert inputs_of(told.events) == [("add", {"a": 1, "b": 2})]
    assert [spoken.schema(r.body) for r in provider.requests] == [None, None, SCHEMA]
    offered = [[name for name in spoken.tools(r.body) if name == "add"] for r in provider.requests]
    assert offered == [["add"], ["add"], []]
    assert told.roles == ["assistant", "tool", "assistant", "user", "assistant"]
    assert told.outcome.usage.total_tokens == 45
    assert [(e.step, e.content) for e in told.of(TextChunk)] == [(2, "It is 3."), (3, GOOD)]
    assert rejected(told) == []


@BOTH
@pytest.mark.parametrize("kind", ALL)
async def test_the_structured_call_has_a_repair_turn_of_its_own(
    provide: Provide, kind: str, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(scenario(kind, BAD, GOOD), kind)
    told = await tell(agent_over(generator, tools=[add]), "1+2?", THEN, **mode)
    assert (told.outcome.answer, len(provider.requests)) == ({"sum": 3}, 4)
    assert rejected(told) == [3]


@BOTH
async def test_an_outcome_that_never_fits_is_a_failure_with_its_text(
    provide: Provide, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(scenario("own", BAD))
    told = await tell(agent_over(generator, tools=[add]), "1+2?", THEN, **mode)
    assert (told.code, told.outcome.answer) == ("structured_output", BAD)
    assert len(provider.requests) == 4


@BOTH
async def test_the_structured_call_counts_as_a_turn(provide: Provide, mode: dict[str, Any]) -> None:
    provider, generator = await provide(scenario("own", GOOD))
    options = THEN | {"max_turns": 2}
    told = await tell(agent_over(generator, tools=[add]), "1+2?", options, **mode)
    assert (told.code, told.outcome.answer) == ("max_turns", "It is 3.")
    assert told.roles == ["assistant", "tool", "assistant"]
    assert len(provider.requests) == 2


@BOTH
async def test_a_reply_in_the_form_is_still_put_into_it(
    provide: Provide, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(lambda _: SPOKEN["own"].text(GOOD))
    told = await tell(agent_over(generator), "1+2?", THEN, **mode)
    assert (told.outcome.answer, len(provider.requests)) == ({"sum": 3}, 2)


@pytest.mark.parametrize("mode", [STREAM, ANSWER, {"mode": "answer"}], ids=repr)
async def test_it_must_not_be_given_beside_response_format(
    provide: Provide, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(scenario("own", GOOD))
    with pytest.raises(InvalidRequest) as refused:
        await tell(agent_over(generator), "?", THEN, response_format=SCHEMA, **mode)
    assert refused.value.field == "options.then_format"
    assert provider.requests == []


@BOTH
@pytest.mark.parametrize("cleared", [True, False])
async def test_it_stands_in_place_of_the_agents_own_format(
    provide: Provide, mode: dict[str, Any], cleared: bool
) -> None:
    provider, generator = await provide(scenario("own", GOOD))
    agent = agent_over(generator, tools=[add], response_format={"type": "array"})
    given = mode | ({"response_format": None} if cleared else {})
    told = await tell(agent, "1+2?", THEN, **given)
    assert (told.outcome.answer, len(provider.requests)) == ({"sum": 3}, 3)


@BOTH
async def test_null_is_none(provide: Provide, mode: dict[str, Any]) -> None:
    provider, generator = await provide(scenario("own", GOOD))
    told = await tell(agent_over(generator, tools=[add]), "?", {"then_format": None}, **mode)
    assert (told.outcome.answer, len(provider.requests)) == ("It is 3.", 2)


async def test_an_adapter_of_the_authors_own_cannot_honour_it(provide: Provide) -> None:
    provider, generator = await provide(scenario("own", GOOD))
    agent = agent_over(generator, tools=[add])

    class Foreign:
        async def run(self, *_: Any, **__: Any) -> str:
            return "mine"

    agent.get_run_adapter = lambda thread_id=None, user=None: Foreign()
    told = await tell(agent, "?", THEN, **ANSWER)
    assert told.code == "invalid_request"
    assert told.outcome.error is not None
    assert told.outcome.error.field == "options.then_format"
    assert provider.requests == []


@BOTH
async def test_a_haystack_agent_honours_it_too(provide: Provide, mode: dict[str, Any]) -> None:
    from haystack.components.agents import Agent as HaystackAgent
    from haystack.tools import create_tool_from_function

    provider, generator = await provide(scenario("own", GOOD))
    inner = HaystackAgent(
        chat_generator=generator,
        tools=[create_tool_from_function(add)],
        system_prompt="Be kind.",
    )
    told = await tell(HaystackAgentAdapter("h", inner), "1+2?", THEN, **mode)
    assert told.outcome.answer == {"sum": 3}
    systems = [r.body["messages"] for r in provider.requests]
    assert [[m["content"] for m in ms if m["role"] == "system"] for ms in systems] == [
        ["Be kind."]
    ] * 3


async def test_an_agents_own_format_holds_for_plain_python_streams(provide: Provide) -> None:
    provider, generator = await provide(lambda _: SPOKEN["own"].form(GOOD))
    agent = agent_over(generator, response_format=Sum)
    events = [event async for event in agent.stream("1+2?")]
    assert "".join(e.content for e in events if isinstance(e, TextChunk)) == GOOD
    assert SPOKEN["own"].schema(provider.requests[0].body) == Sum.model_json_schema()
    assert isinstance(agent.get_run_adapter(), Run)


async def test_a_tool_that_ends_the_run_leaves_its_outcome_to_be_put_into_the_form(
    provide: Provide,
) -> None:
    from haystack.components.agents import Agent as HaystackAgent
    from haystack.tools import create_tool_from_function

    for kind in ("own", "anthropic"):
        spoken = SPOKEN[kind]
        turns = [spoken.calls(("add", {"a": 1, "b": 2})), spoken.form(GOOD)]
        provider, generator = await provide(turns, kind)
        inner = HaystackAgent(
            chat_generator=generator,
            tools=[create_tool_from_function(add)],
            exit_conditions=["add"],
        )
        told = await tell(HaystackAgentAdapter("h", inner), response_format=SCHEMA)
        assert (told.outcome.answer, len(provider.requests)) == ({"sum": 3}, 2)
