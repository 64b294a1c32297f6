"""Between the contract's messages and Haystack's."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from haystack.dataclasses import (
    ChatMessage,
    ChatRole,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)

from hayrunner.adapters import haystack_internals as internals
from hayrunner_contracts import messages as wire
from hayrunner_contracts.errors import InvalidRequest

__all__ = [
    "WireMessages",
    "as_chat_messages",
    "from_wire",
    "merge_same_role",
    "to_wire",
    "to_wire_parts",
    "unanswered_calls",
    "with_text",
]

_NO_CALL = ToolCall(tool_name="", arguments={})


def from_wire(message: wire.ChatMessage) -> ChatMessage:
    """The Haystack message. The wire form was validated, which `from_dict` does not do; what
    Haystack alone can tell, such as that data without a media type is no image, is an
    `InvalidRequest`, too."""
    try:
        return ChatMessage.from_dict(msgspec.to_builtins(message))
    except ValueError:
        # Without its text, which can hold content.
        raise InvalidRequest(
            "a message has a part that cannot be used: give images and files their mime_type",
            field="messages",
        ) from None


def to_wire(message: ChatMessage) -> wire.ChatMessage:
    """The wire form. Values in `meta` or `extra` that JSON has no form for become their text."""
    parts = [_wire_part(part) for part in internals.content_parts(message)]
    if None not in parts:
        return wire.ChatMessage(
            role=message.role.value,
            content=cast("list[wire.ContentPart]", parts),
            name=message.name,
            meta=_plain(message.meta),
        )
    return msgspec.convert(_plain(message.to_dict()), wire.ChatMessage)


def _wire_part(part: Any) -> wire.ContentPart | None:
    """The usual parts; None for the others, which go by Haystack's own form of them."""
    if isinstance(part, TextContent):
        return wire.ContentPart(text=part.text)
    if isinstance(part, ToolCall):
        return wire.ContentPart(tool_call=_wire_call(part))
    if isinstance(part, ToolCallResult) and isinstance(part.result, str):
        result = wire.ToolCallResult(
            result=part.result, origin=_wire_call(part.origin), error=part.error
        )
        return wire.ContentPart(tool_call_result=result)
    if isinstance(part, ReasoningContent):
        reasoning = wire.Reasoning(reasoning_text=part.reasoning_text, extra=_plain(part.extra))
        return wire.ContentPart(reasoning=reasoning)
    return None


def _wire_call(call: ToolCall) -> wire.ToolCall:
    return wire.ToolCall(
        tool_name=call.tool_name,
        arguments=_plain(call.arguments),
        id=call.id,
        extra=_plain(call.extra),
    )


def _plain(value: Any) -> Any:
    if not value:
        return value if value is None else type(value)()
    return msgspec.to_builtins(value, enc_hook=_as_text, str_keys=True)


class WireMessages:
    """The wire forms of a run's messages, each made once: a conversation is asked for at every
    step, and all but its end is what it was."""

    def __init__(self) -> None:
        # With the message itself, so that its id stays its own.
        self._made: dict[int, tuple[ChatMessage, wire.ChatMessage]] = {}

    def __call__(self, messages: Iterable[ChatMessage]) -> list[wire.ChatMessage]:
        made = self._made
        return [(made.get(id(message)) or self._make(message))[1] for message in messages]

    def _make(self, message: ChatMessage) -> tuple[ChatMessage, wire.ChatMessage]:
        made = self._made[id(message)] = (message, to_wire(message))
        return made


def to_wire_parts(result: Any) -> str | list[dict[str, Any]]:
    """A tool result as it travels: its text, or its content parts."""
    if isinstance(result, str):
        return result
    # A part's own `to_dict` lacks the name that says what it is: in a message it has one.
    parts = ToolCallResult(result=result, origin=_NO_CALL, error=False).to_dict()["result"]
    return _plain(parts)


def _as_text(value: object) -> str:
    return str(value)


def as_chat_messages(
    messages: str | ChatMessage | wire.ChatMessage | Iterable[ChatMessage | wire.ChatMessage],
) -> list[ChatMessage]:
    """What an author may pass to `run` and `stream`: a text, a message, or messages."""
    if isinstance(messages, str):
        return [ChatMessage.from_user(messages)]
    if isinstance(messages, ChatMessage | wire.ChatMessage):
        messages = [messages]
    return [m if isinstance(m, ChatMessage) else from_wire(m) for m in messages]


def merge_same_role(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Join neighbouring text-only messages of the same user or assistant by a blank line: some
    providers refuse two in a row."""
    merged: list[ChatMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is not None and _mergeable(last, message):
            text = f"{last.text}\n\n{message.text}"
            make = ChatMessage.from_user if last.is_from(ChatRole.USER) else _assistant
            merged[-1] = make(text, name=last.name, meta={**last.meta, **message.meta})
        else:
            merged.append(message)
    return merged


def _assistant(text: str, *, name: str | None, meta: dict[str, Any]) -> ChatMessage:
    return ChatMessage.from_assistant(text, name=name, meta=meta)


def _mergeable(first: ChatMessage, second: ChatMessage) -> bool:
    if first.role != second.role or first.role not in (ChatRole.USER, ChatRole.ASSISTANT):
        return False
    if first.name != second.name:
        return False
    return all(m.text is not None and len(_parts(m)) == 1 for m in (first, second))


def _parts(message: ChatMessage) -> list[Any]:
    return message.to_dict()["content"]


def with_text(message: ChatMessage, text: str | None) -> ChatMessage:
    """The assistant message with another text."""
    return ChatMessage.from_assistant(
        text=text,
        tool_calls=message.tool_calls,
        reasoning=message.reasoning,
        name=message.name,
        meta=message.meta,
    )


def unanswered_calls(messages: Sequence[ChatMessage]) -> list[ToolCall]:
    """Tool calls that no tool message answers, in order."""
    calls = [call for message in messages for call in message.tool_calls]
    answered = {result.origin.id for message in messages for result in message.tool_call_results}
    return [call for call in calls if call.id not in answered]
