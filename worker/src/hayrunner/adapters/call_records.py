"""Tool calls as their deltas tell of them, and how a delta or a reply's call is told to be one."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from haystack.dataclasses import ToolCall, ToolCallDelta

__all__ = ["INVALID_ARGUMENTS", "CallRecord", "is_another", "parse_arguments", "take_match"]

INVALID_ARGUMENTS = "invalid_arguments"
"""The key in `ToolCall.extra` under which the raw text of arguments that are no object stands."""


@dataclass(kw_only=True)
class CallRecord:
    """One tool call of a run, from its first delta to its output."""

    id: str
    provider_id: str
    tool_name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    announced: bool = False
    completed: bool = False
    answered: bool = False

    @property
    def arguments_text(self) -> str:
        return "".join(self.pieces)


def is_another(call: CallRecord, delta: ToolCallDelta) -> bool:
    """Whether a delta at the index of an open call begins a new one."""
    if delta.id and call.provider_id:
        return delta.id != call.provider_id
    if not (delta.tool_name and delta.arguments and call.pieces):
        return False
    # Without ids, a name that comes again with arguments, after arguments that were whole.
    return parse_arguments(call.arguments_text)[1] is None


def take_match(
    left: list[ToolCall], record: CallRecord, arguments: dict[str, Any] | None, ids: set[str]
) -> ToolCall | None:
    """Take the reply's call that is this record's: by its id, or as an equal one whose id is no
    other record's."""
    for position, call in enumerate(left):
        same_id = bool(call.id) and call.id in (record.id, record.provider_id)
        same_call = call.tool_name == record.tool_name and call.arguments == arguments
        as_is = arguments is None or INVALID_ARGUMENTS in (call.extra or {})
        free = same_id or call.id not in ids
        if (same_call and free) or (same_id and as_is):
            return left.pop(position)
    return None


def parse_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """The arguments object of a call, and the raw text where it is none. No text is no
    arguments: `({}, None)`."""
    if not text.strip():
        return {}, None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}, text
    if isinstance(value, dict):
        return value, None  # pyright: ignore[reportUnknownVariableType]
    return ({}, None) if value is None else ({}, text)
