"""The Run adapter: text, or what a format asks for; and `then_format`, the form of what the tools
brought. What makes a headless run use tools at all is in `test_runs`."""

from typing import Any

import msgspec
import pytest
from haystack import component
from haystack.dataclasses import ChatMessage
from pydantic import BaseModel
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import BusDriver, Driver
from tests.unit.agent.dialects import ANTHROPIC, SPOKEN

from hayrunner.adapters.run import Run
from hayrunner.errors import StructuredOutputError, UnsupportedResponseFormat
from hayrunner_contracts.errors import StructuredOutputFailed
from hayrunner_contracts.events import Data, TextChunk

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}
GOOD, BAD = '{"sum": 3}', '{"sum": "three"}'


class Sum(BaseModel):
    sum: int


class StructSum(msgspec.Struct):
    sum: int


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture(params=["own", "openai", "anthropic"])
def spoken_by(request: pytest.FixtureRequest) -> str:
    """Generators that take a format, and one that has no such parameter."""
    return request.param


async def test_only_user_and_assistant_messages_are_kept_behind_the_system_prompt(
    headless: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide([SPOKEN["own"].text("Hello")], kind)
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    given: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "Adding.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        {"role": "user", "content": "Well?"},
    ]
    agent = agent_over(generator, tools=[add], instructions="own")
    told = await headless.tell(agent, messages=given, tools=False)
    assert told.answer == "Hello"
    assert SPOKEN[kind].said(provider.requests[0].body) == [
        ("system", "own"),
        ("user", "1+2?"),
        ("assistant", "Adding."),
        ("user", "Well?"),
    ]


async def test_without_a_format_the_answer_is_the_replys_text(
    driver: Driver, provide: Provide, agent_over: AgentOver, spoken_by: str
) -> None:
    provider, generator = await provide([SPOKEN[spoken_by].text('{"sum"', ": 3}")], spoken_by)
    assert (await driver.tell(agent_over(generator), tools=False)).answer == GOOD
    assert SPOKEN[spoken_by].schema(provider.requests[0].body) is None
    assert await Run(generator).run("1+2?") == GOOD


async def test_the_schema_is_sent_the_way_that_generator_takes_it(
    driver: Driver, provide: Provide, agent_over: AgentOver, spoken_by: str
) -> None:
    spoken = SPOKEN[spoken_by]
    provider, generator = await provide([spoken.form('{"sum"', ": 3}")], spoken_by)
    told = await driver.tell(agent_over(generator), response_format=SCHEMA)
    assert told.answer == {"sum": 3}
    assert spoken.schema(provider.requests[0].body) == SCHEMA
    if driver.streams:
        assert "".join(event.content for event in told.of(TextChunk)) == GOOD


async def test_with_a_pydantic_model_an_instance_is_returned(
    provide: Provide, agent_over: AgentOver, spoken_by: str
) -> None:
    provider, generator = await provide([SPOKEN[spoken_by].form(GOOD)], spoken_by)
    assert await Run(generator).run("1+2?", response_format=Sum) == Sum(sum=3)
    assert await agent_over(generator, response_format=Sum).run("1+2?") == Sum(sum=3)
    for request in provider.requests:
        assert SPOKEN[spoken_by].schema(request.body) == Sum.model_json_schema()


async def test_a_reply_that_does_not_validate_gets_one_repair_turn_with_the_error_fed_back(
    driver: Driver, provide: Provide, agent_over: AgentOver, spoken_by: str
) -> None:
    spoken = SPOKEN[spoken_by]
    provider, generator = await provide([spoken.form(BAD), spoken.form(GOOD)], spoken_by)
    told = await driver.tell(agent_over(generator), "1+2?", response_format=SCHEMA)
    assert (told.answer, told.result.model_calls) == ({"sum": 3}, 2)
    question, reply, (role, feedback) = spoken.said(provider.requests[1].body)
    assert (question, reply, role) == (("user", "1+2?"), ("assistant", BAD), "user")
    assert "at sum: 'three' is not of type 'integer'" in feedback
    if driver.streams:
        [rejected] = [e.data["step"] for e in told.of(Data) if e.data_type == "reply_rejected"]
        kept = [e.content for e in told.of(TextChunk) if e.step != rejected]
        assert "".join(kept) == GOOD


async def test_a_second_one_is_structured_output_error_with_the_raw_text(
    driver: Driver, provide: Provide, agent_over: AgentOver, spoken_by: str
) -> None:
    provider, generator = await provide(lambda _: SPOKEN[spoken_by].form(BAD), spoken_by)
    told = await driver.tell(agent_over(generator), response_format=SCHEMA)
    assert (told.code, told.answer, len(provider.requests)) == ("structured_output", BAD, 2)
    assert "three" not in told.why
    with pytest.raises(StructuredOutputError) as raised:
        await Run(generator).run("1+2?", response_format=Sum)
    assert raised.value.raw == BAD


async def test_a_generator_without_such_a_parameter_gets_a_forced_tool(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([ANTHROPIC.form(GOOD)], "anthropic")
    told = await driver.tell(agent_over(generator), response_format=SCHEMA)
    [request] = provider.requests
    assert ANTHROPIC.tools(request.body) == ["answer"]
    assert request.body["tool_choice"]["name"] == "answer"
    # Nobody is told of a tool call.
    assert (told.answer, told.roles) == ({"sum": 3}, ["assistant"])
    assert "ToolCallStart" not in told.kinds


async def test_one_that_cannot_do_it_at_all_is_a_clear_error_before_any_model_call(
    driver: Driver, agent_over: AgentOver
) -> None:
    calls: list[str] = []

    @component
    class Bare:
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
            calls.append("run")
            return {"replies": [ChatMessage.from_assistant(GOOD)]}

    told = await driver.tell(agent_over(Bare()), response_format=SCHEMA)
    assert (told.result.status, calls) == ("failed", [])
    assert "Bare" in told.why
    with pytest.raises(UnsupportedResponseFormat, match="Bare"):
        await Run(Bare()).run("1+2?", response_format=Sum)
    assert calls == []


@pytest.mark.parametrize(("wanted", "answer"), [(Sum, Sum(sum=3)), (StructSum, StructSum(sum=3))])
async def test_over_the_bus_it_is_a_schema_and_the_client_makes_the_callers_type_of_the_answer(
    bus: Any, provide: Provide, agent_over: AgentOver, spoken_by: str, wanted: Any, answer: Any
) -> None:
    provider, generator = await provide([SPOKEN[spoken_by].form(GOOD)], spoken_by)
    client = BusDriver("answer", *bus).client_of(agent_over(generator))
    assert await client.run("stage", "1+2?", response_format=wanted) == answer
    sent = SPOKEN[spoken_by].schema(provider.requests[0].body)
    assert sent["properties"]["sum"]["type"] == "integer"
    run = await client.submit("stage", "1+2?", response_format=wanted)
    assert (await run.result()).answer == {"sum": 3}


async def test_over_the_bus_what_does_not_satisfy_it_raises_with_the_raw_text(
    bus: Any, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(lambda _: SPOKEN["own"].form(BAD))
    client = BusDriver("answer", *bus).client_of(agent_over(generator))
    with pytest.raises(StructuredOutputFailed) as raised:
        await client.run("stage", "1+2?", response_format=StructSum)
    assert raised.value.raw == BAD


def then(kind: str, *forms: str) -> Any:
    """A call, a sentence, and the replies that are then asked for."""
    spoken = SPOKEN[kind]
    turns = [spoken.calls(("add", {"a": 1, "b": 2})), spoken.text("It is 3.")]
    return [*turns, *(spoken.form(form) for form in forms)]


async def test_then_format_runs_the_tool_loop_first_and_one_structured_call_over_its_outcome(
    driver: Driver, provide: Provide, agent_over: AgentOver, spoken_by: str
) -> None:
    spoken = SPOKEN[spoken_by]
    provider, generator = await provide(then(spoken_by, GOOD), spoken_by)
    agent = agent_over(generator, tools=[add])
    told = await driver.tell(agent, options={"then_format": SCHEMA})
    assert (told.answer, told.result.model_calls) == ({"sum": 3}, 3)
    assert [spoken.schema(r.body) for r in provider.requests] == [None, None, SCHEMA]
    assert ["add" in spoken.tools(r.body) for r in provider.requests] == [True, True, False]
    assert told.roles == ["assistant", "tool", "assistant", "user", "assistant"]
    [(_, result, is_error)] = told.tool_results
    assert (result, is_error) == ("3", False)


async def test_then_formats_call_has_the_one_repair_turn_too(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(then("own", BAD, GOOD))
    agent = agent_over(generator, tools=[add])
    told = await driver.tell(agent, options={"then_format": SCHEMA})
    assert (told.answer, len(provider.requests)) == ({"sum": 3}, 4)
    _, generator = await provide(then("own", BAD))
    told = await driver.tell(agent_over(generator, tools=[add]), options={"then_format": SCHEMA})
    assert (told.code, told.answer) == ("structured_output", BAD)
