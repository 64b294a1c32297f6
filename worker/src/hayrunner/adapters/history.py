"""What of a thread a model is shown: valid, and not more than it should be."""

from collections.abc import Iterable, Sequence

import msgspec

from hayrunner_contracts.messages import ChatMessage, ContentPart, ToolCall

__all__ = ["last_messages", "repaired"]

_NO_RESULT = "This call has no result: it was lost before it was remembered."


def repaired(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """The messages with every tool call answered and every answer belonging to a call.

    Providers refuse anything else, and then the whole thread would be lost for one message. A
    call without a result gets one that says so, as an error, after the results that its message
    has; a result without a call, or a second one, is dropped. What a thread holds stays as it is.
    """
    found: list[ChatMessage] = []
    open_calls: list[ToolCall] = []
    for message in messages:
        if message.role == "tool":
            kept = _answers(message, open_calls)
            if kept is not None:
                found.append(kept)
            continue
        found.extend(_lost(open_calls))
        open_calls = list(message.tool_calls)
        found.append(message)
    found.extend(_lost(open_calls))
    return found


def last_messages(messages: Sequence[ChatMessage], most: int | None) -> list[ChatMessage]:
    """The last `most` messages, None for all. What is cut begins with a user's message, so it may
    be shorter: a model must not be shown an answer without its question."""
    if most is None or len(messages) <= most:
        return list(messages)
    kept = list(messages[-most:]) if most else []
    first = next((at for at, message in enumerate(kept) if message.role == "user"), len(kept))
    return kept[first:]


def _answers(message: ChatMessage, open_calls: list[ToolCall]) -> ChatMessage | None:
    """The message with the results of open calls, which are then no longer open."""
    parts: list[ContentPart] = []
    for part in message.content:
        result = part.tool_call_result
        if isinstance(result, msgspec.UnsetType):
            continue
        call = next((call for call in open_calls if _same(call, result.origin)), None)
        if call is not None:
            open_calls.remove(call)
            parts.append(part)
    return msgspec.structs.replace(message, content=parts) if parts else None


def _same(call: ToolCall, origin: ToolCall) -> bool:
    if call.id is None or origin.id is None:
        return call.id == origin.id and call.tool_name == origin.tool_name
    return call.id == origin.id


def _lost(open_calls: Iterable[ToolCall]) -> list[ChatMessage]:
    return [ChatMessage.tool(_NO_RESULT, origin=call, error=True) for call in open_calls]
