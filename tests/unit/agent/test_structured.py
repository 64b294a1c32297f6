"""Structured output, on every generator in its own way."""

import json
from typing import Any

import pytest
from haystack import component
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import ToolsType
from pydantic import BaseModel, ConfigDict, field_validator
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import ALL, ANTHROPIC, SPOKEN
from tests.unit.agent.runs import agent_over, inputs_of, tell

from hayrunner.adapters.run import Run
from hayrunner.errors import StructuredOutputError
from hayrunner.hooks import HookRun, RunHooks, Stop
from hayrunner_contracts.errors import StructuredOutputFailed
from hayrunner_contracts.events import Data, ModelCallEnd, TextChunk, ToolCallStart
from hayrunner_contracts.options import NamedTool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}
GOOD, BAD = '{"sum": 3}', '{"sum": "three"}'


class Sum(BaseModel):
    sum: int


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def rejected(told: Any) -> list[int]:
    return [e.data["step"] for e in told.of(Data) if e.data_type == "reply_rejected"]


@pytest.mark.parametrize("kind", ALL)
async def test_the_schema_reaches_the_provider_and_the_answer_is_its_value(
    provide: Provide, kind: str
) -> None:
    provider, generator = await provide([SPOKEN[kind].form('{"sum"', ": 3}")], kind)

    assert await Run(generator).run("1+2?", response_format=SCHEMA) == {"sum": 3}

    [request] = provider.requests
    assert SPOKEN[kind].schema(request.body) == SCHEMA


@pytest.mark.parametrize("kind", ALL)
async def test_a_pydantic_model_gives_an_instance(provide: Provide, kind: str) -> None:
    provider, generator = await provide([SPOKEN[kind].form(GOOD)], kind)
    assert await Run(generator).run("1+2?", response_format=Sum) == Sum(sum=3)
    assert SPOKEN[kind].schema(provider.requests[0].body) == Sum.model_json_schema()


@pytest.mark.parametrize("kind", ALL)
async def test_the_shared_generator_is_left_as_it_was(provide: Provide, kind: str) -> None:
    provider, generator = await provide(
        lambda body: SPOKEN[kind].form(GOOD) if SPOKEN[kind].schema(body) else SPOKEN[kind].text(),
        kind,
    )
    run = Run(generator)
    assert await run.run("1+2?", response_format=SCHEMA) == {"sum": 3}
    assert await run.run("hi") is None
    assert SPOKEN[kind].schema(provider.requests[1].body) is None
    assert SPOKEN[kind].tools(provider.requests[1].body) == []


@pytest.mark.parametrize("mode", ["stream", "answer"])
@pytest.mark.parametrize("kind", ALL)
async def test_the_answer_is_text_for_the_consumer_and_in_history(
    provide: Provide, kind: str, mode: str
) -> None:
    _, generator = await provide([SPOKEN[kind].form('{"sum"', ": 3}")], kind)

    told = await tell(agent_over(generator), response_format=SCHEMA, mode=mode)

    assert told.text == GOOD
    assert told.of(ToolCallStart) == []
    assert told.roles == ["assistant"]
    assert [part.text for part in told.outcome.messages[0].content] == [GOOD]  # pyright: ignore
    assert (told.outcome.answer, told.outcome.finish_reason) == ({"sum": 3}, "stop")
    assert [end.finish_reason for end in told.of(ModelCallEnd)] == ["stop"]
    assert told.outcome.usage.total_tokens == 15


@pytest.mark.parametrize("kind", ALL)
async def test_a_wrong_reply_is_told_what_is_wrong_with_it_once(
    provide: Provide, kind: str
) -> None:
    spoken = SPOKEN[kind]
    provider, generator = await provide(_by_history(spoken.form(BAD), spoken.form(GOOD)), kind)

    told = await tell(agent_over(generator), "1+2?", response_format=SCHEMA)

    assert (told.outcome.answer, told.outcome.model_calls) == ({"sum": 3}, 2)
    assert told.outcome.usage.total_tokens == 30
    question, reply, feedback = spoken.said(provider.requests[1].body)
    assert (question, reply) == (("user", "1+2?"), ("assistant", BAD))
    assert feedback[0] == "user"
    assert "at sum: 'three' is not of type 'integer'" in feedback[1]
    assert spoken.schema(provider.requests[1].body) == SCHEMA
    # A consumer that leaves out the rejected step has the JSON alone.
    assert rejected(told) == [1]
    kept = [e.content for e in told.of(TextChunk) if e.step not in rejected(told)]
    assert "".join(kept) == GOOD


@pytest.mark.parametrize("mode", ["stream", "answer"])
@pytest.mark.parametrize("kind", ALL)
async def test_a_second_wrong_reply_fails_the_run_and_is_its_answer(
    provide: Provide, kind: str, mode: str
) -> None:
    provider, generator = await provide(lambda _: SPOKEN[kind].form(BAD), kind)

    told = await tell(agent_over(generator), response_format=SCHEMA, mode=mode)

    assert (told.code, told.outcome.answer, told.outcome.model_calls) == (
        "structured_output",
        BAD,
        2,
    )
    assert told.outcome.error is not None
    assert "three" not in told.outcome.error.message
    assert not told.outcome.error.retryable
    with pytest.raises(StructuredOutputError) as raised:
        await Run(generator).run("?", response_format=SCHEMA)
    assert raised.value.raw == BAD
    assert len(provider.requests) == 4


async def test_the_error_of_agent_run_holds_the_raw_text(provide: Provide) -> None:
    _, generator = await provide(lambda _: SPOKEN["own"].form(BAD))
    with pytest.raises(StructuredOutputFailed) as raised:
        await agent_over(generator).run("?", response_format=SCHEMA)
    assert raised.value.raw == BAD
    assert raised.value.result.usage.total_tokens == 30


@pytest.mark.parametrize("kind", ALL)
async def test_a_reply_that_is_cut_off_gets_one_repair_turn_and_no_more(
    provide: Provide, kind: str
) -> None:
    provider, generator = await provide(
        lambda _: SPOKEN[kind].form('{"sum"', finish="length"), kind
    )
    told = await tell(agent_over(generator), response_format=SCHEMA)
    assert (told.code, told.outcome.answer) == ("structured_output", '{"sum"')
    assert len(provider.requests) == 2


@pytest.mark.parametrize("kind", ALL)
async def test_the_repair_turn_counts_as_a_turn(provide: Provide, kind: str) -> None:
    provider, generator = await provide(lambda _: SPOKEN[kind].form(BAD), kind)

    told = await tell(agent_over(generator), options={"max_turns": 1}, response_format=SCHEMA)

    assert (told.code, told.outcome.answer) == ("max_turns", BAD)
    assert told.roles == ["assistant"]
    assert len(provider.requests) == 1
    told = await tell(agent_over(generator), options={"max_turns": 0}, response_format=SCHEMA)
    assert (told.code, told.outcome.answer, len(provider.requests)) == ("max_turns", None, 1)


async def test_the_repair_turn_counts_against_the_token_budget(provide: Provide) -> None:
    provider, generator = await provide(lambda _: SPOKEN["own"].form(BAD))
    told = await tell(agent_over(generator), options={"token_budget": 15}, response_format=SCHEMA)
    assert (told.code, told.outcome.answer, len(provider.requests)) == ("budget_exceeded", BAD, 1)


@pytest.mark.parametrize("kind", ALL)
async def test_a_streaming_run_has_its_tools_and_the_form(provide: Provide, kind: str) -> None:
    spoken = SPOKEN[kind]
    turns = [spoken.calls(("add", {"a": 1, "b": 2}), text="Let me add."), spoken.form(GOOD)]
    provider, generator = await provide(turns, kind)

    told = await tell(agent_over(generator, tools=[add]), response_format=SCHEMA)

    assert inputs_of(told.events) == [("add", {"a": 1, "b": 2})]
    assert told.outcome.answer == {"sum": 3}
    assert [e.content for e in told.of(TextChunk)] == ["Let me add.", GOOD]
    assert told.roles == ["assistant", "tool", "assistant"]
    assert all("add" in spoken.tools(request.body) for request in provider.requests)
    assert len(provider.requests) == 2


# --- the forced tool


async def test_without_other_tools_the_model_is_made_to_call_the_one_that_is_the_answer(
    provide: Provide,
) -> None:
    provider, generator = await provide([ANTHROPIC.form(GOOD)], "anthropic")
    await Run(generator).run("1+2?", response_format=SCHEMA)
    body = provider.requests[0].body
    assert ANTHROPIC.tools(body) == ["answer"]
    assert body["tool_choice"] == {
        "type": "tool",
        "name": "answer",
        "disable_parallel_tool_use": True,
    }


async def test_beside_other_tools_it_is_made_to_call_some_tool(provide: Provide) -> None:
    turns = [ANTHROPIC.calls(("add", {"a": 1, "b": 2})), ANTHROPIC.form(GOOD)]
    provider, generator = await provide(turns, "anthropic")
    await tell(agent_over(generator, tools=[add]), response_format=SCHEMA)
    assert [r.body["tool_choice"] for r in provider.requests] == [{"type": "any"}] * 2
    assert [ANTHROPIC.tools(r.body) for r in provider.requests] == [["add", "answer"]] * 2


@pytest.mark.parametrize("choice", ["required", NamedTool(name="add")], ids=repr)
async def test_a_choice_that_forces_a_tool_is_honoured_before_an_answer_is_asked_for(
    provide: Provide, choice: Any
) -> None:
    turns = [ANTHROPIC.calls(("add", {"a": 1, "b": 2})), ANTHROPIC.form(GOOD)]
    provider, generator = await provide(turns, "anthropic")
    options = {"tool_choice": choice}
    told = await tell(agent_over(generator, tools=[add]), options=options, response_format=SCHEMA)
    assert told.outcome.answer == {"sum": 3}
    assert [ANTHROPIC.tools(r.body) for r in provider.requests] == [["add"], ["add", "answer"]]


async def test_under_the_choice_none_only_the_answer_can_be_called(provide: Provide) -> None:
    provider, generator = await provide([ANTHROPIC.form(GOOD)], "anthropic")
    options = {"tool_choice": "none"}
    told = await tell(agent_over(generator, tools=[add]), options=options, response_format=SCHEMA)
    assert told.outcome.answer == {"sum": 3}
    assert ANTHROPIC.tools(provider.requests[0].body) == ["answer"]
    assert provider.requests[0].body["tool_choice"]["name"] == "answer"


async def test_an_answer_beside_other_calls_is_asked_for_again(provide: Provide) -> None:
    early = ("answer", ['{"sum": 0}'])
    turns = [ANTHROPIC.raw_calls(early, ("add", ['{"a": 1, "b": 2}'])), ANTHROPIC.form(GOOD)]
    provider, generator = await provide(turns, "anthropic")

    told = await tell(agent_over(generator, tools=[add]), response_format=SCHEMA)

    assert (told.outcome.answer, told.text) == ({"sum": 3}, GOOD)
    assert inputs_of(told.events) == [("add", {"a": 1, "b": 2})]
    blocks = [b for m in provider.requests[1].body["messages"] for b in m["content"]]
    assert [b["name"] for b in blocks if b["type"] == "tool_use"] == ["add"]


async def test_of_two_answers_the_first_counts(provide: Provide) -> None:
    turn = ANTHROPIC.raw_calls(("answer", [GOOD]), ("answer", ['{"sum": 4}']))
    _, generator = await provide([turn], "anthropic")
    told = await tell(agent_over(generator), response_format=SCHEMA)
    assert (told.outcome.answer, told.text) == ({"sum": 3}, GOOD)


async def test_what_is_said_beside_the_answer_is_no_part_of_it(provide: Provide) -> None:
    turn = ANTHROPIC.raw_calls(("answer", [GOOD]), text="Here you are:")
    _, generator = await provide([turn], "anthropic")
    told = await tell(agent_over(generator), response_format=SCHEMA)
    assert (told.outcome.answer, told.text) == ({"sum": 3}, GOOD)


async def test_text_in_place_of_the_call_is_read_as_the_answer(provide: Provide) -> None:
    _, generator = await provide([ANTHROPIC.text('{"sum"', ": 3}")], "anthropic")
    told = await tell(agent_over(generator), response_format=SCHEMA)
    assert (told.outcome.answer, told.text) == ({"sum": 3}, GOOD)


async def test_the_tool_has_a_name_that_the_runs_tools_do_not_have(provide: Provide) -> None:
    def answer(text: str) -> str:
        """A tool of the agent's own."""
        return text

    turns = [ANTHROPIC.calls(("answer", {"text": "x"})), ANTHROPIC.raw_calls(("answer_2", [GOOD]))]
    provider, generator = await provide(turns, "anthropic")

    told = await tell(agent_over(generator, tools=[answer]), response_format=SCHEMA)

    assert inputs_of(told.events) == [("answer", {"text": "x"})]
    assert told.outcome.answer == {"sum": 3}
    assert ANTHROPIC.tools(provider.requests[0].body) == ["answer", "answer_2"]


THINKING = [
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"thinking_budget_tokens": 1024},
    {"adaptive_thinking_effort": "high"},
]


@pytest.mark.parametrize("thinking", THINKING, ids=repr)
async def test_a_model_that_thinks_first_is_offered_the_tool_and_not_made_to_call_it(
    provide: Provide, thinking: dict[str, Any]
) -> None:
    turns = [ANTHROPIC.form(GOOD)]
    provider, generator = await provide(turns, "anthropic", generation_kwargs=thinking)
    told = await tell(agent_over(generator), response_format=SCHEMA)
    assert told.outcome.answer == {"sum": 3}
    assert "tool_choice" not in provider.requests[0].body
    assert ANTHROPIC.tools(provider.requests[0].body) == ["answer"]


async def test_any_generator_that_takes_tools_is_given_one() -> None:
    call = ToolCall(tool_name="answer", arguments={"sum": 3}, id="c")
    generator = MockChatGenerator([ChatMessage.from_assistant(tool_calls=[call])])

    told = await tell(agent_over(generator), response_format=SCHEMA)

    assert told.outcome.answer == {"sum": 3}
    assert json.loads(told.text) == {"sum": 3}
    assert len(told.of(TextChunk)) == 1
    assert told.of(ToolCallStart) == []


async def test_a_generator_without_a_stream_answers_by_its_tool_too() -> None:
    offered: list[list[str]] = []

    @component
    class Silent:
        @component.output_types(replies=list[ChatMessage])
        def run(
            self, messages: list[ChatMessage], tools: ToolsType | None = None
        ) -> dict[str, Any]:
            offered.append([tool.name for tool in tools or ()])  # pyright: ignore
            call = ToolCall(tool_name="answer", arguments={"sum": 3})
            return {"replies": [ChatMessage.from_assistant(tool_calls=[call])]}

    told = await tell(agent_over(Silent()), response_format=SCHEMA)
    assert told.outcome.answer == {"sum": 3}
    assert offered == [["answer"]]


@pytest.mark.parametrize("kind", ALL)
async def test_hooks_see_the_answer_before_consumers_do(provide: Provide, kind: str) -> None:
    class Guard(RunHooks):
        async def on_text_delta(self, run: HookRun, text: str) -> Stop | None:
            return Stop(reason="no sums") if "sum" in text else None

    _, generator = await provide([SPOKEN[kind].form(GOOD)], kind)
    told = await tell(agent_over(generator, hooks=[Guard()]), response_format=SCHEMA)
    assert (told.code, told.text) == ("stopped", "")


LIST = {"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}
ROOTS: list[tuple[dict[str, Any], Any]] = [
    (LIST, [1, 2]),
    ({"enum": ["yes", "no"]}, "yes"),
    ({"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"a": {}}}]}, {"a": 1}),
    ({"type": ["object", "null"]}, None),
]


@pytest.mark.parametrize(("schema", "value"), ROOTS, ids=repr)
async def test_an_answer_that_is_no_object_is_an_argument_of_the_tool(
    provide: Provide, schema: dict[str, Any], value: Any
) -> None:
    provider, generator = await provide(
        [ANTHROPIC.form(json.dumps({"answer": value}))], "anthropic"
    )

    told = await tell(agent_over(generator), response_format=schema)

    assert told.outcome.answer == value
    assert json.loads(told.text) == value
    sent = ANTHROPIC.schema(provider.requests[0].body)
    assert (sent["type"], sent["required"]) == ("object", ["answer"])


# --- Ollama


async def test_ollama_is_asked_for_the_form_once_no_tools_are_left_to_call(
    provide: Provide,
) -> None:
    spoken = SPOKEN["ollama"]
    turns = [spoken.calls(("add", {"a": 1, "b": 2})), spoken.text("It is 3."), spoken.form(GOOD)]
    provider, generator = await provide(turns, "ollama")

    told = await tell(agent_over(generator, tools=[add]), response_format=SCHEMA)

    assert told.outcome.answer == {"sum": 3}
    assert [spoken.schema(r.body) for r in provider.requests] == [None, None, SCHEMA]
    assert [spoken.tools(r.body) for r in provider.requests] == [["add"], ["add"], []]
    assert rejected(told) == [2]
    assert generator.response_format is None


# --- what a model of Pydantic's can say that no schema can


class Even(BaseModel):
    model_config = ConfigDict(strict=True)
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


async def test_a_validator_of_the_model_is_part_of_what_is_repaired(provide: Provide) -> None:
    spoken = SPOKEN["own"]
    turns = [spoken.form('{"number": 3}'), spoken.form('{"number": 4}')]
    provider, generator = await provide(turns)
    assert await Run(generator).run("?", response_format=Even) == Even(number=4)
    assert "at number: Value error, must be even" in spoken.said(provider.requests[1].body)[2][1]


def _by_history(*turns: Any) -> Any:
    """The turn after as many assistant messages, whatever the protocol."""

    def turn(body: dict[str, Any]) -> Any:
        messages = body.get("messages") or body["input"]
        said = sum(message.get("role") == "assistant" for message in messages)
        return turns[min(said, len(turns) - 1)]

    return turn
