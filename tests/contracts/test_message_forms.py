"""Messages in every form that is around become the same message, or are refused with the path."""

from typing import Any

import pytest

from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.examples import MESSAGES
from hayrunner_contracts.message_forms import parse_message, parse_messages
from hayrunner_contracts.messages import (
    ChatMessage,
    ContentPart,
    FilePart,
    ImagePart,
    Reasoning,
    ToolCall,
)
from hayrunner_contracts.openai_form import to_openai

_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
_ADD = ToolCall(tool_name="add", arguments={"a": 1}, id="c1")
_PNG = "iVBORw0KGgo="


def _assistant(*parts: ContentPart, **fields: Any) -> ChatMessage:
    return ChatMessage(role="assistant", content=list(parts), **fields)


@pytest.mark.parametrize(
    "form",
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "user", "content": [{"text": "hi"}], "name": None, "meta": {}},
        {"role": "user", "content": [{"text": "hi"}], "name": None, "meta": None},
        {"role": "user", "content": "hi", "name": None, "meta": {}},
        {"_role": "user", "_content": [{"text": "hi"}], "_name": None, "_meta": {}},
        {"_role": "user", "_content": [{"text": "hi"}]},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ChatMessage.user("hi"),
    ],
)
def test_every_form_of_a_text_is_the_same_message(form: Any) -> None:
    assert parse_message(form) == ChatMessage.user("hi")


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", ["a\nb", [{"type": "text", "text": t} for t in "ab"]])
def test_developer_and_system_messages_are_system_messages(role: str, content: Any) -> None:
    assert parse_message({"role": role, "content": content}) == ChatMessage.system("a\nb")


def test_typed_parts_of_a_user_become_parts() -> None:
    parsed = parse_message(
        {
            "role": "user",
            "name": "ada",
            "content": [
                {"type": "text", "text": "look"},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/png;base64,{_PNG}", "detail": "low"},
                },
                {
                    "type": "file",
                    "file": {"file_data": f"data:text/plain;base64,{_PNG}", "filename": "a.txt"},
                },
                {"type": "input_file", "file_data": _PNG, "filename": "b.txt"},
            ],
        }
    )
    assert parsed == ChatMessage(
        role="user",
        name="ada",
        content=[
            ContentPart(text="look"),
            ContentPart(image=ImagePart(base64_image=_PNG, mime_type="image/png", detail="low")),
            ContentPart(file=FilePart(base64_data=_PNG, mime_type="text/plain", filename="a.txt")),
            ContentPart(file=FilePart(base64_data=_PNG, filename="b.txt")),
        ],
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"content": "hi"}, _assistant(ContentPart(text="hi"))),
        ({"content": ""}, _assistant(ContentPart(text=""))),
        ({"content": None, "tool_calls": [_CALL]}, _assistant(ContentPart(tool_call=_ADD))),
        (
            {"content": "hm", "tool_calls": [_CALL], "annotations": [], "audio": None},
            _assistant(ContentPart(text="hm"), ContentPart(tool_call=_ADD)),
        ),
        (
            {"content": None, "refusal": "I cannot."},
            _assistant(ContentPart(text="I cannot."), meta={"refusal": True}),
        ),
        (
            {"content": [{"type": "refusal", "refusal": "I cannot."}]},
            _assistant(ContentPart(text="I cannot."), meta={"refusal": True}),
        ),
        (
            {"content": "Well.", "refusal": "I cannot."},
            _assistant(ContentPart(text="Well."), meta={"refusal": "I cannot."}),
        ),
        (
            {"content": "hi", "reasoning_content": "hm"},
            _assistant(
                ContentPart(reasoning=Reasoning(reasoning_text="hm")), ContentPart(text="hi")
            ),
        ),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            _assistant(ContentPart(text="a\nb")),
        ),
    ],
)
def test_assistant_messages_of_the_openai_form(
    fields: dict[str, Any], expected: ChatMessage
) -> None:
    assert parse_message({"role": "assistant", **fields}) == expected


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_without_arguments_has_an_empty_object(arguments: Any) -> None:
    call = {"id": "c1", "function": {"name": "now", "arguments": arguments}}
    parsed = parse_message({"role": "assistant", "tool_calls": [call]})
    assert parsed.tool_calls == [ToolCall(tool_name="now", arguments={}, id="c1")]


def test_a_tool_message_finds_the_call_that_it_answers() -> None:
    parsed = parse_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]},
        ]
    )
    assert parsed[1] == ChatMessage.tool("3", origin=_ADD)
    assert parsed[2] == ChatMessage.tool([ContentPart(text="3")], origin=_ADD)


def test_a_part_as_pydantic_dumps_it_is_read() -> None:
    flat = {"tool_name": "add", "arguments": {"a": 1}, "id": "c1", "extra": None}
    parsed = parse_message({"role": "assistant", "content": [flat]})
    assert parsed == ChatMessage.assistant(tool_calls=[_ADD])


def test_an_empty_reply_of_a_model_can_be_sent_back() -> None:
    assert parse_message({"role": "assistant", "content": []}) == _assistant()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "assistant", "content": None, "tool_calls": []}, "m"),
        ({"role": "assistant", "tool_calls": [{"id": "c1"}]}, "m.tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": {}}, "m.tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "m.tool_calls[0].type"),
        (
            {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "a"}}]},
            "m.tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
            "m.tool_calls[0].function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[]"}}]},
            "m.tool_calls[0].function.arguments",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "a", "arguments": "[" * 99999}}],
            },
            "m.tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "content": "a", "function_call": {}}, "m.function_call"),
        ({"role": "assistant", "content": [{"type": "image_url"}]}, "m.content[0].type"),
        ({"role": "assistant", "refusal": 5}, "m.refusal"),
        ({"role": "tool", "content": "3"}, "m.tool_call_id"),
        ({"role": "user", "content": "hi", "tool_calls": [_CALL]}, "m.tool_calls"),
        ({"role": "user", "content": [{"type": "text"}]}, "m.content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "m.content[0].x"),
        ({"role": "user", "content": "hi", "name": 5}, "m.name"),
        ({"role": "user", "content": "hi", "meta": []}, "m.meta"),
        ({"role": 5, "content": "hi"}, "m.role"),
        ({"_role": "user", "content": "hi"}, "m.content"),
        ({"role": "developer", "content": []}, "m.content"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
         "m.content[0].file"),
        ({"role": "user", "content": [{"type": "input_file", "file_url": "https://x"}]},
         "m.content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "data:"}]},
         "m.content[0].image_url"),
        ({"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:text/html;base64,aaaa"}}]},
         "m.content[0].image_url.url"),
        ({"role": "user", "content": [{"image": {"base64_image": _PNG, "detail": "max"}}]},
         "m.content[0].image.detail"),
        ({"role": "user", "content": [{"image": {"base64_image": ""}}]},
         "m.content[0].image.base64_image"),
        ({"role": "user", "content": [{"file": {"base64": _PNG}}]}, "m.content[0].file.base64"),
        ({"role": "assistant", "content": [{"tool_call": {"arguments": {}}}]},
         "m.content[0].tool_call.tool_name"),
        ({"role": "tool", "content": [{"tool_call_result": {"result": "x"}}]},
         "m.content[0].tool_call_result.origin"),
        ({"role": "tool", "content": [{"tool_call_result": {
            "result": [{"reasoning": {}}], "origin": {"tool_name": "a", "arguments": {}}}}]},
         "m.content[0].tool_call_result.result[0].reasoning"),
        ({"role": "tool", "content": [{"tool_call_result": {
            "result": 5, "origin": {"tool_name": "a", "arguments": {}}}}]},
         "m.content[0].tool_call_result.result"),
        ({"role": "user", "content": [{"text": "a"}] * 1001}, "m.content"),
    ],
)  # fmt: skip
def test_what_no_message_is_is_refused_with_its_path(message: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_message(message, "m")
    assert caught.value.field == field


def test_a_refusal_repeats_no_content() -> None:
    secret = "sesame-open"
    for message in (
        {"role": secret, "content": "hi"},
        {"role": "user", "content": [{"image": {"base64_image": secret}}]},
        {"role": "user", "content": [{"image": {"base64_image": _PNG, "detail": secret}}]},
        {"role": "user", "content": [{"type": secret}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": secret}}]},
        {"role": "tool", "tool_call_id": secret, "content": "x"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": secret}}]},
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse_message(message)
        assert secret not in str(caught.value)


# --- out again


@pytest.mark.parametrize("name", ["system", "user", "tool"])
def test_the_openai_form_comes_back_as_the_same_message(name: str) -> None:
    calls = {"call-1": MESSAGES["assistant"].tool_calls[0]}
    assert parse_message(to_openai(MESSAGES[name]), calls=calls) == MESSAGES[name]


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.assistant("hi", tool_calls=[_ADD]),
        ChatMessage.assistant("hi"),
        ChatMessage.assistant(tool_calls=[_ADD]),
        _assistant(ContentPart(text="No."), meta={"refusal": True}),
        _assistant(ContentPart(text="Well."), meta={"refusal": "No."}),
    ],
)
def test_an_assistants_message_comes_back_from_the_openai_form(message: ChatMessage) -> None:
    assert parse_message(to_openai(message)) == message


def test_invalid_arguments_go_back_as_the_model_wrote_them() -> None:
    call = ToolCall(tool_name="f", arguments={}, id="c1", extra={"invalid_arguments": "{oops"})
    sent = to_openai(ChatMessage.assistant(tool_calls=[call]))
    assert sent["tool_calls"][0]["function"]["arguments"] == "{oops"


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.assistant(tool_calls=[ToolCall(tool_name="f", arguments={})]),
        ChatMessage.tool("3", origin=ToolCall(tool_name="f", arguments={})),
        ChatMessage(role="tool", content=ChatMessage.tool("3", origin=_ADD).content * 2),
        ChatMessage.tool([ContentPart(image=ImagePart(base64_image=_PNG))], origin=_ADD),
    ],
)
def test_what_the_openai_form_cannot_hold_is_an_error(message: ChatMessage) -> None:
    with pytest.raises(ValueError, match=r"id|exactly one|only text"):
        to_openai(message)


def test_a_message_knows_its_text_calls_and_results() -> None:
    message = _assistant(ContentPart(text="a"), ContentPart(text="b"), ContentPart(tool_call=_ADD))
    assert message.text == "a\nb"
    assert message.tool_calls == [_ADD]
    assert _assistant().text is None
    results = ChatMessage.tool("3", origin=_ADD).tool_call_results
    assert [result.result for result in results] == ["3"]
