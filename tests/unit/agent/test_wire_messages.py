"""A message's wire form, made directly, is what Haystack's own form of it gives."""

from datetime import datetime
from typing import Any

import msgspec
import pytest
from haystack.dataclasses import ChatMessage, ImageContent, TextContent, ToolCall

from hayrunner.adapters.convert import WireMessages, from_wire, to_wire
from hayrunner_contracts import messages as wire

IMAGE = ImageContent(base64_image="aGk=", validation=False)
CALL = ToolCall(tool_name="add", arguments={"a": [1, {"b": None}]}, id="c1", extra={"x": 1})
MESSAGES = [
    ChatMessage.from_system("Be brief."),
    ChatMessage.from_user("hi", name="ann", meta={"k": [1, 2]}),
    ChatMessage.from_user(content_parts=["look", IMAGE]),
    ChatMessage.from_assistant("ok", tool_calls=[CALL], reasoning="why", meta={"usage": {"t": 1}}),
    ChatMessage.from_assistant(tool_calls=[ToolCall(tool_name="add", arguments={})]),
    ChatMessage.from_assistant(""),
    ChatMessage.from_tool("3", origin=CALL, error=True),
    ChatMessage.from_tool([TextContent("3")], origin=CALL),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message.role))
def test_the_wire_form_is_that_of_haystacks_own(message: ChatMessage) -> None:
    assert to_wire(message) == msgspec.convert(message.to_dict(), wire.ChatMessage)
    assert from_wire(to_wire(message)) == message


def test_values_without_a_form_in_json_become_their_text() -> None:
    when = datetime(2026, 1, 1)
    odd: Any = object()
    given: dict[Any, Any] = {"when": when, "odd": odd, 1: 2}
    meta = to_wire(ChatMessage.from_assistant("x", meta=given)).meta
    assert meta == {"when": "2026-01-01T00:00:00", "odd": str(odd), "1": 2}


def test_the_wire_form_shares_nothing_with_the_message() -> None:
    message = ChatMessage.from_assistant("x", meta={"list": []})
    to_wire(message).meta["list"].append(1)
    assert message.meta == {"list": []}


def test_a_message_is_converted_once() -> None:
    convert = WireMessages()
    [first] = convert(MESSAGES[:1])
    again, _ = convert(MESSAGES[:2])
    assert again is first
