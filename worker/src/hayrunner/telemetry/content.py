"""Content in the form that the GenAI conventions have for it: `{role, parts: [...]}`, as JSON.

Sizes are bounded, and the JSON stays JSON: long texts are cut and say by how much, files are
named and not copied, and of a conversation that is too long the oldest messages are left out, with
a message in their place that counts them. `meta` and `extra` of a message are no content that
belongs here, and are left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from hayrunner_contracts.messages import ChatMessage, ContentPart, ToolCall, ToolCallResult

__all__ = [
    "MAX_ATTRIBUTE",
    "MAX_TEXT",
    "MessageForms",
    "arguments_json",
    "definitions_json",
    "result_json",
    "system_json",
    "without_system",
]

MAX_TEXT = 8_192
"""Characters of one text."""
MAX_ATTRIBUTE = 65_536
"""Bytes of one attribute, roughly: what marks the cut comes on top."""

_INVALID_ARGUMENTS = "invalid_arguments"
_ENCODER = msgspec.json.Encoder(enc_hook=str)


class MessageForms:
    """The messages of one run in this form, each made once: every model call is given the whole
    conversation, and all but its end is what it was."""

    def __init__(self) -> None:
        # With the message itself, so that its id stays its own.
        self._made: dict[int, tuple[ChatMessage, msgspec.Raw]] = {}
        self._defined: tuple[list[Mapping[str, Any]], str | None] = ([], None)

    def json(self, messages: Iterable[ChatMessage]) -> str:
        """The messages, of those that are too many the last ones."""
        return _joined([self._form(message) for message in messages])

    def output_json(self, message: ChatMessage | None, finish_reason: str) -> str | None:
        """What a model said; None for nothing."""
        if message is None:
            return None
        form = {
            "role": message.role,
            "parts": [_part(part) for part in message.content],
            "finish_reason": finish_reason,
        }
        return _joined([msgspec.Raw(_ENCODER.encode(form))])

    def definitions_json(self, tools: Iterable[Mapping[str, Any]]) -> str | None:
        """See the function of that name; the same tools are mostly there at every step."""
        given = list(tools)
        known, told = self._defined
        if len(given) != len(known) or not all(map(_is_same_tool, given, known)):
            told = definitions_json(given)
            self._defined = (given, told)
        return told

    def _form(self, message: ChatMessage) -> msgspec.Raw:
        made = self._made.get(id(message))
        if made is None:
            form: dict[str, Any] = {"role": message.role}
            if message.name:
                form["name"] = message.name
            form["parts"] = [_part(part) for part in message.content]
            made = self._made[id(message)] = (message, msgspec.Raw(_ENCODER.encode(form)))
        return made[1]


def without_system(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The conversation without the system messages that it begins with."""
    return messages[_first_other(messages) :]


def _is_same_tool(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[key] is other[key] for key in ("name", "description", "parameters"))


def system_json(messages: Sequence[ChatMessage]) -> str | None:
    """The instructions in the system messages that a conversation begins with: their parts,
    without a role. None where there are none."""
    system = messages[: _first_other(messages)]
    parts = [_part(part) for message in system for part in message.content]
    return None if not parts else _joined([msgspec.Raw(_ENCODER.encode(part)) for part in parts])


def _first_other(messages: Sequence[ChatMessage]) -> int:
    return next((at for at, m in enumerate(messages) if m.role != "system"), len(messages))


def definitions_json(tools: Iterable[Mapping[str, Any]]) -> str | None:
    """The tools that a model may call: `name`, `description` and `parameters` of each. None
    where there are none."""
    forms = [msgspec.Raw(_encoded({"type": "function", **tool})) for tool in tools]
    return _joined(forms) if forms else None


def arguments_json(arguments: Mapping[str, Any] | str) -> str:
    """A call's arguments: an object, or the text that a model wrote in place of one."""
    return _encoded(arguments).decode()


def result_json(result: object) -> str:
    """What a call gave: an object, as the conventions want one."""
    if isinstance(result, Mapping):
        return _encoded(result).decode()
    return _encoded({"result": result}).decode()


def _encoded(value: Any) -> bytes:
    """JSON of any value; of one that is too large as much as fits, as text."""
    try:
        data = _ENCODER.encode(value)
        if len(data) <= MAX_TEXT:
            return data  # no text in it can be too long
    except (TypeError, ValueError, RecursionError):
        pass  # keys of other types, or no end: below
    try:
        plain = msgspec.to_builtins(value, enc_hook=str, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        plain = str(type(value).__name__)
    data = _ENCODER.encode(_shortened(plain))
    if len(data) <= MAX_ATTRIBUTE:
        return data
    return _ENCODER.encode({"truncated": _cut(data.decode(), MAX_ATTRIBUTE // 2)})


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value, MAX_TEXT)
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        return {name: _shortened(item) for name, item in found.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in cast("list[Any]", value)]
    return value


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}… [truncated: {len(text) - most} more characters]"


def _joined(forms: Sequence[msgspec.Raw]) -> str:
    """A JSON array of the last of `forms` that fit, and of a count of the others."""
    room, first = MAX_ATTRIBUTE, len(forms)
    while first and (room := room - len(memoryview(forms[first - 1])) - 1) >= 0:
        first -= 1
    kept = list(forms[first:])
    if first:
        lost = {"role": "truncated", "parts": [{"type": "truncated", "left_out": first}]}
        kept.insert(0, msgspec.Raw(_ENCODER.encode(lost)))
    return _ENCODER.encode(kept).decode()


def _part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part.text, str):
        return {"type": "text", "content": _cut(part.text, MAX_TEXT)}
    if isinstance(part.tool_call, ToolCall):
        return _call(part.tool_call)
    if isinstance(part.tool_call_result, ToolCallResult):
        return _response(part.tool_call_result)
    if not isinstance(part.reasoning, msgspec.UnsetType):
        return {"type": "reasoning", "content": _cut(part.reasoning.reasoning_text, MAX_TEXT)}
    if not isinstance(part.image, msgspec.UnsetType):
        return _blob("image", part.image.mime_type, len(part.image.base64_image))
    if not isinstance(part.file, msgspec.UnsetType):
        form = _blob("document", part.file.mime_type, len(part.file.base64_data))
        return form if part.file.filename is None else {**form, "name": part.file.filename}
    return {"type": "unknown"}


def _call(call: ToolCall) -> dict[str, Any]:
    raw = (call.extra or {}).get(_INVALID_ARGUMENTS)
    arguments = call.arguments if raw is None else str(raw)
    form = {"type": "tool_call", "id": call.id, "name": call.tool_name}
    return {**form, "arguments": msgspec.Raw(_encoded(arguments))}


def _response(result: ToolCallResult) -> dict[str, Any]:
    told: Any = result.result
    if isinstance(told, str):
        told = _cut(told, MAX_TEXT)
    else:
        told = [_part(part) for part in told]
    return {"type": "tool_call_response", "id": result.origin.id, "response": told}


def _blob(modality: str, mime_type: str | None, size: int) -> dict[str, Any]:
    # Base64 of an image can be larger than everything else in a trace.
    content = f"[truncated: {size} characters of base64]"
    return {"type": "blob", "modality": modality, "mime_type": mime_type, "content": content}
