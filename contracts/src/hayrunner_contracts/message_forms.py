"""Messages of a request, in any of the forms that are around, brought into one.

1. Haystack 2.20 and 3.x: `{"role", "content": [parts], "name", "meta"}`, also a part as Pydantic
   dumps it, without its outer key;
2. older Haystack: `content` as a string; `_role`, `_content`, `_name`, `_meta`;
3. OpenAI's chat completions (`hayrunner_contracts.openai_form`).

What comes out keeps the rules of its role: a system message has texts; a user message texts,
images and files, and something in it; an assistant message texts, reasoning and tool calls (it
may be empty, as a model's reply may be); a tool message only results of tool calls.
"""

from typing import Any

from msgspec import UNSET

from hayrunner_contracts.message_parts import MAX_PARTS, parse_part
from hayrunner_contracts.messages import ChatMessage, ContentPart, ToolCall
from hayrunner_contracts.openai_form import is_openai_form, parse_openai_message
from hayrunner_contracts.refusals import (
    as_list,
    as_object,
    as_text,
    at,
    convert,
    known_fields,
    refusal,
)

__all__ = ["parse_message", "parse_messages"]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = ("role", "content", "name", "meta")
_ALLOWED_PARTS = {
    "system": ("text",),
    "user": ("text", "image", "file"),
    "assistant": ("text", "reasoning", "tool_call"),
    "tool": ("tool_call_result",),
}
_WHY = {
    "tool_call": "only an assistant message holds tool calls",
    "tool_call_result": "only a tool message holds results of tool calls",
    "reasoning": "only an assistant message holds reasoning",
    "image": "only a user message, or a tool result, holds images",
    "file": "only a user message, or a tool result, holds files",
    "text": "a tool message holds only results of tool calls",
}


def parse_messages(
    value: Any, path: str = "messages", *, calls: dict[str, ToolCall] | None = None
) -> list[ChatMessage]:
    """The messages of an array. `InvalidRequest` with the path of the first thing wrong.

    `calls` are tool calls of messages before these, by id; calls found here are added to it.
    """
    calls = {} if calls is None else calls
    return [
        parse_message(item, at(path, index), calls=calls)
        for index, item in enumerate(as_list(value, path))
    ]


def parse_message(
    value: Any, path: str = "message", *, calls: dict[str, ToolCall] | None = None
) -> ChatMessage:
    """One message, in any form. A message already made is checked and given back."""
    calls = {} if calls is None else calls
    if isinstance(value, ChatMessage):
        message = value
    else:
        fields = as_object(value, path)
        if "_role" in fields or "_content" in fields:
            fields = _without_underscores(fields, path)
        _check_role(fields, path)
        if is_openai_form(fields):
            message = parse_openai_message(fields, path, calls)
        else:
            message = _haystack_message(fields, path)
    _check_parts(message, path)
    for call in message.tool_calls:
        if call.id:
            calls[call.id] = call
    return message


def _without_underscores(fields: dict[str, Any], path: str) -> dict[str, Any]:
    known_fields(fields, [f"_{name}" for name in _FIELDS], path)
    return {name[1:]: value for name, value in fields.items()}


def _check_role(fields: dict[str, Any], path: str) -> None:
    place = at(path, "role")
    if "role" not in fields:
        raise refusal(place, f"is missing; one of {', '.join(_ROLES)}")
    if as_text(fields["role"], place) not in _ROLES:
        raise refusal(place, f"must be one of {', '.join(_ROLES)}")


def _haystack_message(fields: dict[str, Any], path: str) -> ChatMessage:
    known_fields(fields, _FIELDS, path)
    place = at(path, "content")
    if "content" not in fields:
        raise refusal(place, "is missing")
    content = fields["content"]
    if isinstance(content, str):
        parts = [ContentPart(text=content)]
    elif isinstance(content, list):
        parts = _parts(as_list(content, place), place)
    else:
        raise refusal(place, "must be a string or an array of content parts")
    made = {**fields, "content": parts}
    if made.get("meta", 0) is None:
        del made["meta"]
    return convert(made, ChatMessage, path)


def _parts(content: list[Any], path: str) -> list[ContentPart]:
    if len(content) > MAX_PARTS:
        raise refusal(path, f"has {len(content)} parts; at most {MAX_PARTS} are allowed")
    return [parse_part(value, at(path, index)) for index, value in enumerate(content)]


def _check_parts(message: ChatMessage, path: str) -> None:
    place = at(path, "content")
    allowed = _ALLOWED_PARTS[message.role]
    for index, part in enumerate(message.content):
        for kind in _kinds(part):
            if kind not in allowed:
                raise refusal(at(at(place, index), kind), _WHY[kind])
    if message.role == "assistant":
        return
    if not message.content:
        raise refusal(place, "must not be empty")
    if message.role == "user" and all(_is_blank(part) for part in message.content):
        raise refusal(place, "must not be empty: there is no text, image or file in it")


def _kinds(part: ContentPart) -> list[str]:
    return [name for name in part.__struct_fields__ if getattr(part, name) is not UNSET]


def _is_blank(part: ContentPart) -> bool:
    return isinstance(part.text, str) and not part.text.strip()
