"""The Run adapter: one reply, as text or in a form."""

import asyncio
from typing import Any

import pytest
from haystack import component
from haystack.dataclasses import ChatMessage, ToolCall
from pydantic import BaseModel
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.adapters.run import Run
from hayrunner.errors import (
    ConfigurationError,
    InvalidToolCall,
    ProviderError,
    StructuredOutputError,
    UnsupportedResponseFormat,
)
from hayrunner_contracts.errors import InvalidRequest

SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Order state",
    "properties": {"state": {"enum": ["sent", "lost"]}},
    "required": ["state"],
    "additionalProperties": False,
}


class Movie(BaseModel):
    title: str
    year: int


def sent(provider: Any, which: int = -1) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in provider.requests[which].body["messages"]]


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_without_a_form_the_reply_is_its_text(provide: Provide, kind: str) -> None:
    provider, generator = await provide([text_turn("Hel", "lo")], kind)
    assert await Run(generator).run("hi") == "Hello"
    assert sent(provider) == [("user", "hi")]
    assert not {"tools", "response_format"} & set(provider.requests[0].body)


async def test_only_user_and_assistant_messages_are_sent_after_the_prompt(
    provide: Provide,
) -> None:
    provider, generator = await provide([text_turn("Hello")], turn_of=lambda _: 0)
    call = ToolCall(tool_name="add", arguments={}, id="c")
    conversation = [
        ChatMessage.from_system("not this"),
        ChatMessage.from_user("1+2?"),
        ChatMessage.from_assistant("Let me see.", tool_calls=[call]),
        ChatMessage.from_tool("3", origin=call),
        ChatMessage.from_assistant(tool_calls=[call]),
        ChatMessage.from_assistant("3"),
        ChatMessage.from_user("sure?"),
    ]
    kept = [
        ("user", "1+2?"),
        ("assistant", "Let me see."),
        ("assistant", "3"),
        ("user", "sure?"),
    ]

    run = Run(generator, instructions="Be kind.")
    await run.run(conversation)
    await run.run(conversation, system_prompt="Be {{ brief }}.")

    assert sent(provider, 0) == [("system", "Be kind."), *kept]
    assert sent(provider, 1) == [("system", "Be {{ brief }}."), *kept]
    assert all("tool_calls" not in m for m in provider.requests[0].body["messages"])


async def test_another_model_is_used_without_changing_the_shared_generator(
    provide: Provide,
) -> None:
    provider, generator = await provide([text_turn("Hello")])
    await Run(generator, model="small").run("hi")
    assert provider.requests[0].body["model"] == "small"
    assert generator.model == "m"


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_a_pydantic_model_gives_an_instance(provide: Provide, kind: str) -> None:
    provider, generator = await provide([text_turn('{"title": "Alien", ', '"year": 1979}')], kind)

    movie = await Run(generator).run("a movie", response_format=Movie)

    assert movie == Movie(title="Alien", year=1979)
    form = provider.requests[0].body["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["name"] == "Movie"
    assert form["json_schema"]["schema"] == Movie.model_json_schema()
    # The model allows more properties, which a strict schema may not: it is sent as a hint.
    assert form["json_schema"]["strict"] is False


async def test_a_schema_gives_the_value_and_a_closed_one_is_strict(provide: Provide) -> None:
    provider, generator = await provide([text_turn('{"state": "sent"}')])
    assert await Run(generator).run("?", response_format=SCHEMA) == {"state": "sent"}
    form = provider.requests[0].body["response_format"]["json_schema"]
    assert form == {"name": "Order_state", "schema": SCHEMA, "strict": True}


async def test_the_responses_api_is_asked_in_its_own_way(provide: Provide) -> None:
    completed = {
        "type": "response.completed",
        "sequence_number": 1,
        "response": {"id": "r", "object": "response", "created_at": 1, "model": "m"}
        | {"status": "completed", "output": [], "parallel_tool_calls": True, "tools": []}
        | {"tool_choice": "auto", "usage": None, "error": None, "metadata": {}}
        | {"incomplete_details": None, "instructions": None},
    }
    delta = {
        "type": "response.output_text.delta",
        "sequence_number": 0,
        "item_id": "m",
        "output_index": 0,
        "content_index": 0,
        "delta": '{"state": "lost"}',
        "logprobs": [],
    }
    provider, generator = await provide([[delta, completed]], "responses")
    assert await Run(generator).run("?", response_format=SCHEMA) == {"state": "lost"}
    form = provider.requests[0].body["text"]["format"]
    assert form == {"type": "json_schema", "name": "Order_state", "schema": SCHEMA, "strict": True}


BAD_REPLIES = [
    ("not json", "The reply is not JSON"),
    ('```json\n{"state": "sent"}\n```', "The reply is not JSON"),
    ('{"state": "eaten"}', "at state:"),
    ("{}", "'state' is a required property"),
    ('["sent"]', "at the root:"),
]


@pytest.mark.parametrize(("bad", "fault"), BAD_REPLIES)
async def test_a_wrong_reply_gets_one_repair_turn_with_its_fault(
    provide: Provide, bad: str, fault: str
) -> None:
    provider, generator = await provide([text_turn(bad), text_turn('{"state": "sent"}')])

    assert await Run(generator).run("?", response_format=SCHEMA) == {"state": "sent"}

    assert len(provider.requests) == 2
    assert sent(provider, 1)[:2] == [("user", "?"), ("assistant", bad)]
    role, feedback = sent(provider, 1)[2]
    assert role == "user"
    assert fault in feedback
    assert provider.requests[1].body["response_format"]["type"] == "json_schema"


async def test_a_second_wrong_reply_is_an_error_that_holds_it(provide: Provide) -> None:
    provider, generator = await provide([text_turn("no"), text_turn("still no")])
    with pytest.raises(StructuredOutputError) as raised:
        await Run(generator).run("?", response_format=SCHEMA)
    assert raised.value.raw == "still no"
    assert "still no" not in str(raised.value)
    assert len(provider.requests) == 2


@component
class TextGenerator:
    """Takes messages and nothing else."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        pytest.fail("the model was called")


async def test_a_generator_that_takes_neither_form_nor_tools_is_refused_before_any_call() -> None:
    with pytest.raises(UnsupportedResponseFormat, match="TextGenerator"):
        await Run(TextGenerator()).run("?", response_format=SCHEMA)


BAD_SCHEMAS = [{"type": "nonsense"}, {"properties": []}, {"enum": 5}]


@pytest.mark.parametrize("schema", BAD_SCHEMAS, ids=repr)
async def test_a_schema_that_is_none_is_refused_before_any_call(
    provide: Provide, schema: dict[str, Any]
) -> None:
    provider, generator = await provide([text_turn("{}")])
    with pytest.raises(ConfigurationError, match="no valid JSON Schema"):
        await Run(generator).run("?", response_format=schema)
    assert provider.requests == []


async def test_a_reference_to_another_place_is_never_followed(provide: Provide) -> None:
    _, generator = await provide([text_turn("{}")])
    with pytest.raises(ConfigurationError, match="not part of it"):
        await Run(generator).run("?", response_format={"$ref": "http://127.0.0.1:1/schema"})


async def test_a_provider_failure_is_raised_as_what_it_is(provide: Provide) -> None:
    for kind in ("own", "openai"):
        _, generator = await provide([[{"$status": 429, "body": {}}]], kind)
        with pytest.raises(ProviderError) as raised:
            await Run(generator).run("hi")
        assert (raised.value.code, raised.value.status) == ("provider_rate_limited", 429)


async def test_nothing_to_answer_is_refused(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")])
    for nothing in ([], [ChatMessage.from_system("only this")]):
        with pytest.raises(InvalidRequest):
            await Run(generator, instructions="Be kind.").run(nothing)
    assert provider.requests == []


async def test_a_model_that_calls_tools_it_does_not_have_does_not_loop_forever(
    provide: Provide,
) -> None:
    provider, generator = await provide([call_turn(("add", {"a": 1}))])
    with pytest.raises(InvalidToolCall):
        await Run(generator).run("hi")
    assert len(provider.requests) == 3


async def test_one_run_adapter_serves_runs_at_once(provide: Provide) -> None:
    def turn(body: dict[str, Any]) -> list[dict[str, Any]]:
        return text_turn("re: ", body["messages"][-1]["content"])

    _, generator = await provide(turn)
    run = Run(generator)
    answers = await asyncio.gather(*(run.run(f"q{n}") for n in range(20)))
    assert answers == [f"re: q{n}" for n in range(20)]
