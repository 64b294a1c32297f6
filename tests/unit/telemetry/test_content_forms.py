"""Content as JSON: the form of the conventions, within bounds, whatever is in it."""

import json
from typing import Any

import pytest

from hayrunner.telemetry import content
from hayrunner.telemetry.content import (
    MAX_ATTRIBUTE,
    MAX_TEXT,
    MessageForms,
    arguments_json,
    definitions_json,
    result_json,
    system_json,
    without_system,
)
from hayrunner_contracts.messages import (
    ChatMessage,
    ContentPart,
    FilePart,
    ImagePart,
    ToolCall,
)


def user(text: str) -> ChatMessage:
    return ChatMessage.user(text)


def test_a_long_text_is_cut_and_says_by_how_much() -> None:
    (message,) = json.loads(MessageForms().json([user("x" * (MAX_TEXT + 5))]))
    said = message["parts"][0]["content"]
    assert said == "x" * MAX_TEXT + "… [truncated: 5 more characters]"


def test_of_a_long_conversation_the_last_messages_stay() -> None:
    messages = [user(f"{n}:" + "x" * 1_000) for n in range(200)]
    told = MessageForms().json(messages)
    assert len(told.encode()) < MAX_ATTRIBUTE + 200
    first, *rest = json.loads(told)
    assert first == {
        "role": "truncated",
        "parts": [{"type": "truncated", "left_out": 200 - len(rest)}],
    }
    assert [m["parts"][0]["content"].split(":")[0] for m in rest] == [
        str(n) for n in range(200 - len(rest), 200)
    ]


def test_one_message_that_is_too_large_leaves_json() -> None:
    parts = [ContentPart(text="x" * MAX_TEXT) for _ in range(20)]
    message = ChatMessage(role="user", content=parts)
    (left,) = json.loads(MessageForms().json([message]))
    assert left["role"] == "truncated"


def test_each_message_is_made_once() -> None:
    forms, message = MessageForms(), user("hi")
    forms.json([message])
    made = forms._made[id(message)]  # pyright: ignore[reportPrivateUsage]
    forms.json([message, user("ho")])
    assert forms._made[id(message)] is made  # pyright: ignore[reportPrivateUsage]


def test_files_and_images_are_named_and_not_copied() -> None:
    data = "QUJD" * 50
    message = ChatMessage(
        role="user",
        content=[
            ContentPart(image=ImagePart(base64_image=data, mime_type="image/png")),
            ContentPart(file=FilePart(base64_data=data, filename="a.pdf")),
        ],
    )
    told = MessageForms().json([message])
    assert data not in told
    image, file = json.loads(told)[0]["parts"]
    assert (image["type"], image["modality"], image["mime_type"]) == ("blob", "image", "image/png")
    assert (file["modality"], file["name"]) == ("document", "a.pdf")


def test_metadata_of_messages_is_left_out() -> None:
    call = ToolCall(tool_name="add", arguments={}, id="c", extra={"secret": "sentinel"})
    message = ChatMessage(
        role="assistant", content=[ContentPart(tool_call=call)], meta={"secret": "sentinel"}
    )
    assert "sentinel" not in MessageForms().json([message])


def test_arguments_that_are_no_object_are_what_the_model_wrote() -> None:
    call = ToolCall(tool_name="add", arguments={}, id="c", extra={"invalid_arguments": "[1,"})
    message = ChatMessage(role="assistant", content=[ContentPart(tool_call=call)])
    assert json.loads(MessageForms().json([message]))[0]["parts"][0]["arguments"] == "[1,"


def test_system_messages_stand_apart() -> None:
    messages = [ChatMessage.system("a"), ChatMessage.system("b"), user("c")]
    texts = [part["content"] for part in json.loads(system_json(messages) or "")]
    assert texts == ["a", "b"]
    assert without_system(messages) == [user("c")]
    assert system_json([user("c")]) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x" * 100_000},
        {"many": ["x" * 8_000] * 50},
        {str(n): "x" * 1_000 for n in range(1_000)},
        {"deep": {"er": {"text": "x" * 100_000}}},
    ],
)
def test_large_arguments_stay_json_within_bounds(arguments: dict[str, Any]) -> None:
    told = arguments_json(arguments)
    assert len(told.encode()) <= MAX_ATTRIBUTE
    assert isinstance(json.loads(told), dict)
    assert "truncated" in told


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"a": 1}, {"a": 1}),
        ("3", {"result": "3"}),
        ([1, 2], {"result": [1, 2]}),
        (None, {"result": None}),
    ],
)
def test_a_result_is_an_object(result: Any, told: Any) -> None:
    assert json.loads(result_json(result)) == told


def test_values_without_a_json_form_become_text() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    told = json.loads(arguments_json({"a": Odd(), "b": {1: Odd()}, "c": float("nan")}))
    assert told == {"a": "odd", "b": {"1": "odd"}, "c": None}


def test_endless_values_are_bounded() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert json.loads(arguments_json({"a": endless}))


def test_no_tools_are_no_definitions() -> None:
    assert definitions_json([]) is None
    assert content.__all__ == sorted(content.__all__)
