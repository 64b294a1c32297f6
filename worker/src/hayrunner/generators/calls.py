"""Tool calls put together from a provider's deltas, with their ids and borders repaired.

The rules, in the order they are asked (`CallAssembler`):

1. The provider's `index` is a slot; a slot holds one open call. No index: the slot of the id,
   else the last one used.
2. An empty slot opens a call.
3. A name with arguments opens a call once the arguments so far are a complete object: nothing
   could be added to those.
4. An id seen at the slot before goes on with its call.
5. A different id opens a call if a name comes with it, or arguments after a complete object;
   else the server makes up an id for every delta.
6. Without an id, a different name opens a call unless the arguments are unfinished.
7. Anything else goes on with the slot's call.

An id that is missing, empty or already taken in this reply is replaced by a new one.
"""

import uuid
from typing import Any

import msgspec
from haystack.dataclasses import ToolCall, ToolCallDelta

from hayrunner.generators.wire import FunctionPart, ToolCallPart

__all__ = ["INVALID_ARGUMENTS", "UNNAMED_TOOL", "CallAssembler", "tool_call_of"]

INVALID_ARGUMENTS = "invalid_arguments"
"""The key in `ToolCall.extra` that holds arguments which are not a JSON object, as written."""

UNNAMED_TOOL = "unnamed_tool"
"""Stands in for a name the provider never sent, so that the call can be answered with an error."""

_LEGACY_SLOT = -1


class _OpenCall:
    __slots__ = ("announced", "arguments", "id", "name", "number", "sent_id")

    def __init__(self, number: int, call_id: str) -> None:
        self.number = number
        self.id = call_id
        self.sent_id = ""
        self.name = ""
        self.arguments = ""
        self.announced = False


class CallAssembler:
    """The tool calls of one reply.

    `add` gives deltas with the call's id and name in the first one only, and an `index` that
    counts calls from 0 in the order they were opened.
    """

    def __init__(self) -> None:
        self._calls: list[_OpenCall] = []
        self._slots: dict[int, _OpenCall] = {}
        self._by_id: dict[tuple[int, str], _OpenCall] = {}
        self._last_slot = 0

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, part: ToolCallPart) -> ToolCallDelta | None:
        """Take in one delta. None where it holds nothing to show yet."""
        function = part.function or FunctionPart()
        name = function.name or ""
        arguments = _text(function.arguments)
        sent_id = str(part.id) if part.id not in (None, "") else ""
        slot = self._slot(part.index, sent_id)
        known = self._by_id.get((slot, sent_id))
        call = known or self._slots.get(slot)
        if call is None or _opens(
            call,
            name,
            arguments,
            known_id=known is not None,
            other_id=known is None and bool(sent_id and call.sent_id),
        ):
            call = self._open(sent_id)
        call.sent_id = call.sent_id or sent_id
        if sent_id:
            self._by_id[slot, sent_id] = call
        self._slots[slot] = call
        self._last_slot = slot
        call.name = call.name or name
        call.arguments += arguments
        return _delta(call, arguments)

    def add_legacy(self, function: FunctionPart) -> ToolCallDelta | None:
        """Take in a `function_call`, the form that came before tool calls: one call, no id."""
        return self.add(ToolCallPart(index=_LEGACY_SLOT, function=function))

    def close(self) -> list[ToolCallDelta]:
        """Deltas for the calls whose name never came."""
        late = [call for call in self._calls if not call.announced]
        for call in late:
            call.name = UNNAMED_TOOL
        return [delta for call in late if (delta := _delta(call, ""))]

    def tool_calls(self) -> list[ToolCall]:
        """The calls so far, in the order they were opened."""
        return [tool_call_of(call.id, call.name, call.arguments) for call in self._calls]

    def _slot(self, index: int | None, sent_id: str) -> int:
        if index is not None:
            return index
        known = (slot for slot, known_id in self._by_id if known_id == sent_id)
        return next(known, self._last_slot)

    def _open(self, sent_id: str) -> _OpenCall:
        taken = {call.id for call in self._calls}
        usable = sent_id if sent_id and sent_id not in taken else f"call_{uuid.uuid4().hex}"
        call = _OpenCall(len(self._calls), usable)
        self._calls.append(call)
        return call


def tool_call_of(call_id: str, name: str, arguments: str) -> ToolCall:
    """The finished call. Nothing, blanks and null are no arguments; what is not a JSON object is
    kept as an invalid call, see `INVALID_ARGUMENTS`.
    """
    if not arguments.strip():
        return ToolCall(tool_name=name, arguments={}, id=call_id)
    try:
        value: object = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        value = arguments
    if isinstance(value, dict):
        return ToolCall(tool_name=name, arguments=value, id=call_id)
    if value is None:
        return ToolCall(tool_name=name, arguments={}, id=call_id)
    return ToolCall(tool_name=name, arguments={}, id=call_id, extra={INVALID_ARGUMENTS: arguments})


def _opens(call: _OpenCall, name: str, arguments: str, *, known_id: bool, other_id: bool) -> bool:
    """Whether a delta at the slot of `call` begins another one: rules 3 to 6."""
    more = bool(arguments.strip())
    if more and (name or other_id) and _is_complete(call.arguments):
        return True
    if known_id or other_id:
        return other_id and bool(name)
    renamed = bool(name and call.name) and name != call.name
    return renamed and (not call.arguments.strip() or _is_complete(call.arguments))


def _delta(call: _OpenCall, arguments: str) -> ToolCallDelta | None:
    if call.announced:
        return ToolCallDelta(call.number, None, arguments) if arguments else None
    if not call.name:
        return None
    call.announced = True
    return ToolCallDelta(call.number, call.name, call.arguments or None, call.id)


def _text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()


def _is_complete(arguments: str) -> bool:
    """Whether the text is a JSON object that nothing can be added to."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
