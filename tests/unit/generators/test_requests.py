"""A model call as a request body."""

from typing import Any, Literal

import pytest
from haystack.dataclasses import ChatMessage, ImageContent, TextContent, ToolCall
from haystack.tools.tool import Tool
from pydantic import BaseModel

from hayrunner.errors import ConfigurationError, UnsupportedOption
from hayrunner.generators.requests import (
    flat_tools,
    merged_parameters,
    request_body,
    wire_messages,
)
from hayrunner.generators.schemas import strict_schema

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


def add(a: int) -> str:
    return str(a)


ADD = Tool(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"a": {"type": "integer", "default": 1}}},
    function=add,
)


def body(tools: list[Tool] | None = None, strict: bool = False, **parameters: Any) -> Any:
    return request_body(
        model="m",
        messages=[ChatMessage.from_user("hi")],
        parameters=parameters,
        tools=tools or [],
        tools_strict=strict,
    )


def test_a_stream_with_usage_is_always_asked_for() -> None:
    assert body(stream=False) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_stream_options_can_be_set_and_cleared() -> None:
    assert body(stream_options={"x": 1})["stream_options"] == {"x": 1}
    assert "stream_options" not in body(stream_options=None)


def test_a_parameter_of_none_is_left_out_and_others_are_passed_on() -> None:
    sent = body(temperature=None, top_p=0, stop=["x"], extra_body={"top_k": 4, "stop": None})
    assert "temperature" not in sent
    assert "stop" not in sent
    assert (sent["top_p"], sent["top_k"]) == (0, 4)


def test_parameters_merge_per_key_and_none_clears_one() -> None:
    assert merged_parameters({"a": 1, "b": 2}, None, {"b": None}) == {"a": 1, "b": None}


@pytest.mark.parametrize("n", [2, 0, "1"])
def test_more_than_one_reply_is_refused(n: Any) -> None:
    with pytest.raises(UnsupportedOption, match=r"options\.n: one reply"):
        body(n=n)
    assert "n" not in body(n=1)


def test_tools_are_sent_as_functions_and_strict_where_asked() -> None:
    plain = body([ADD])["tools"][0]
    strict = body([ADD], strict=True)["tools"][0]["function"]
    assert plain["type"] == "function"
    assert plain["function"]["parameters"] == ADD.parameters
    assert strict["strict"] is True
    assert strict["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="add"):
        flat_tools([ADD, ADD])


class Actor(BaseModel):
    name: str


class Movie(BaseModel):
    title: str
    year: int | None = None
    kind: Literal["film", "series"] = "film"
    star: Actor
    cast: list[Actor] = []


def test_a_pydantic_class_is_sent_as_a_strict_json_schema() -> None:
    sent = body(response_format=Movie)["response_format"]
    assert sent["type"] == "json_schema"
    assert (sent["json_schema"]["name"], sent["json_schema"]["strict"]) == ("Movie", True)
    schema = sent["json_schema"]["schema"]
    assert schema["required"] == ["title", "year", "kind", "star", "cast"]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Actor"]["additionalProperties"] is False
    assert "default" not in str(schema)


def test_a_response_format_that_is_a_dict_is_sent_as_it_is() -> None:
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert body(response_format=given)["response_format"] == given
    assert "response_format" not in body(response_format=None)


def test_strictness_inlines_a_reference_that_has_company_and_leaves_its_input_alone() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A", "description": "why"}},
        "$defs": {"A": {"type": "object", "properties": {"self": {"$ref": "#/$defs/A"}}}},
    }
    before = str(schema)
    strict = strict_schema(schema)
    assert strict["properties"]["a"]["description"] == "why"
    assert strict["properties"]["a"]["required"] == ["self"]
    assert strict["properties"]["a"]["properties"]["self"] == {"$ref": "#/$defs/A"}
    assert str(schema) == before


def test_a_typed_mapping_is_not_closed_behind_its_authors_back() -> None:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
    assert strict_schema(schema)["additionalProperties"] == {"type": "string"}


def test_calls_without_ids_get_the_same_id_as_their_results() -> None:
    first, second = ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2}, id="")
    sent = wire_messages(
        [
            ChatMessage.from_user("hi"),
            ChatMessage.from_assistant(tool_calls=[first, second]),
            ChatMessage.from_tool("2", ToolCall("add", {"a": 2}, id="")),
            ChatMessage.from_tool("1", first),
        ]
    )
    calls = [call["id"] for call in sent[1]["tool_calls"]]
    assert calls == ["call_1_0", "call_1_1"]
    assert [message["tool_call_id"] for message in sent[2:]] == [calls[1], calls[0]]


def test_equal_calls_without_ids_are_answered_one_each() -> None:
    calls = [ToolCall("add", {"a": 1}), ToolCall("add", {"a": 1})]
    results = [ChatMessage.from_tool("2", ToolCall("add", {"a": 1})) for _ in calls]
    sent = wire_messages([ChatMessage.from_assistant(tool_calls=calls), *results])
    assert [message["tool_call_id"] for message in sent[1:]] == ["call_0_0", "call_0_1"]


def test_invalid_arguments_go_back_as_the_model_wrote_them() -> None:
    call = ToolCall("add", {}, "A", {"invalid_arguments": '{"a":'})
    (sent,) = wire_messages([ChatMessage.from_assistant("Calling.", tool_calls=[call])])
    assert sent["content"] == "Calling."
    assert sent["tool_calls"] == [
        {"id": "A", "type": "function", "function": {"name": "add", "arguments": '{"a":'}}
    ]


def test_reasoning_is_not_sent_and_several_texts_are() -> None:
    message = ChatMessage.from_assistant("one", reasoning="secret")
    parts = ChatMessage.from_dict(
        {"role": "assistant", "content": [{"text": "one"}, {"text": "two"}]}
    )
    assert wire_messages([message, parts]) == [
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "one\ntwo"},
    ]


def test_an_own_refusal_goes_back_as_text() -> None:
    message = ChatMessage.from_assistant("No.", meta={"refusal": True})
    assert wire_messages([message]) == [{"role": "assistant", "content": "No."}]


def test_images_are_sent_to_the_model_by_users_only() -> None:
    image = ImageContent(PIXEL, "image/png")
    user = ChatMessage.from_user(content_parts=["look", image])
    assert wire_messages([user])[0]["content"][1]["type"] == "image_url"
    call = ToolCall("look", {}, "A")
    texts = ChatMessage.from_tool([TextContent("a"), TextContent("b")], call)
    assert wire_messages([texts])[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    with pytest.raises(ConfigurationError) as caught:
        wire_messages([ChatMessage.from_tool([image], call)])
    assert PIXEL[:20] not in str(caught.value)
