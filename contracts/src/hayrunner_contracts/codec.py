"""Bytes to types and back: what stands on the wire, and what is refused there.

Events and results come from workers: they are read leniently, so that an old consumer survives
a newer worker. Requests and commands come from anyone: they are read strictly, and every refusal
names the field.
"""

from typing import TypeVar, Union

import msgspec

from hayrunner_contracts import rules, subjects
from hayrunner_contracts.commands import COMMAND_TYPES, RunCommand
from hayrunner_contracts.errors import ContractError, InvalidRequest
from hayrunner_contracts.events import EVENT_TYPES, StreamEvent, UnknownEvent
from hayrunner_contracts.refusals import as_object, as_text, at, convert, known_fields, refusal
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.rules import deadline_of
from hayrunner_contracts.strict_json import RequestLimits, read_json, top_level_uuid

__all__ = [
    "RequestLimits",
    "check_request",
    "deadline_of",
    "decode_command",
    "decode_event",
    "decode_request",
    "decode_result",
    "encode",
    "peek_message_id",
]

T = TypeVar("T")

DEFAULT_LIMITS = RequestLimits()

_MAX_COMMAND_TEXT = 100_000
_MAX_REASON = 1_024
# How much of a refused request is searched for its id, and up to which size it is parsed for it.
_PEEK_SEARCHED = 65_536
_PEEK_PARSED = 8_388_608


class _EventHead(msgspec.Struct):
    type: str
    seq: int = 0


class _RequestHead(msgspec.Struct):
    message_id: str | None = None


_ENCODER = msgspec.json.Encoder()
_EVENTS: "msgspec.json.Decoder[StreamEvent]" = msgspec.json.Decoder(
    Union[tuple(EVENT_TYPES.values())]  # noqa: UP007 # pyright: ignore[reportArgumentType, reportCallIssue]
)
_RESULTS = msgspec.json.Decoder(RunResult)
_EVENT_HEADS = msgspec.json.Decoder(_EventHead)
_REQUEST_HEADS = msgspec.json.Decoder(_RequestHead)

encode = _ENCODER.encode
"""The JSON of any type of the contract, as UTF-8."""


def decode_event(data: bytes) -> StreamEvent | UnknownEvent:
    """One event. A type that this version does not know becomes `UnknownEvent`, fields that it
    does not know are dropped; `ContractError` for anything that is no event."""
    try:
        return _EVENTS.decode(data)
    except msgspec.ValidationError as error:
        # Only here is the type looked at first: known events cost one decoding.
        head = _decoded(_EVENT_HEADS, data, "event")
        if head.type in EVENT_TYPES:
            raise _unreadable(f"{head.type} event", error) from None
        return UnknownEvent(type=head.type, seq=head.seq, raw=bytes(data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable("event", error) from None


def decode_result(data: bytes) -> RunResult:
    """One result, unknown fields dropped; `ContractError` for anything that is none."""
    return _decoded(_RESULTS, data, "result")


def decode_request(data: bytes, *, limits: RequestLimits = DEFAULT_LIMITS) -> RunRequest:
    """One request, held against every rule of docs/contract.md.

    Messages may come in any of their forms, the message id is made canonical. `InvalidRequest`
    with `field` set to the path of what is wrong, or `PayloadTooLarge`; no other error.
    """
    return rules.request_from_fields(read_json(data, limits), limits)


def check_request(request: RunRequest, *, limits: RequestLimits = DEFAULT_LIMITS) -> RunRequest:
    """A request built in Python, held against the same rules; what the worker would read.

    The types of a request's fields are not checked when it is built: they are here.
    """
    try:
        data = encode(request)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"request: cannot be written as JSON ({type(error).__name__})") from (
            error
        )
    return decode_request(data, limits=limits)


def decode_command(data: bytes, *, limits: RequestLimits = DEFAULT_LIMITS) -> RunCommand:
    """One command, read as strictly as a request: `InvalidRequest` or `PayloadTooLarge`."""
    fields = dict(as_object(read_json(data, limits), "command"))
    known = ", ".join(COMMAND_TYPES)
    if "type" not in fields:
        raise refusal("type", f"is missing; one of {known}")
    kind = COMMAND_TYPES.get(as_text(fields.pop("type"), "type"))
    if kind is None:
        raise refusal("type", f"must be one of {known}")
    known_fields(fields, kind.__struct_fields__, "")
    for name, most in (("text", _MAX_COMMAND_TEXT), ("reason", _MAX_REASON)):
        if fields.get(name) is not None and len(as_text(fields[name], name)) > most:
            raise refusal(name, f"must be at most {most} characters long")
    for name in ("tool_call_id", "text"):
        if name in fields and not as_text(fields[name], name).strip():
            raise refusal(at("", name), "must not be empty")
    return convert({"type": kind.__struct_config__.tag, **fields}, kind)


def peek_message_id(data: bytes) -> str | None:
    """The message id of a request that was refused, in canonical form, so that its refusal can
    be published; None where there is no telling. Never raises, and takes bounded time."""
    found: str | None = None
    if len(data) <= _PEEK_PARSED:
        try:
            found = _REQUEST_HEADS.decode(data).message_id
        except (msgspec.DecodeError, RecursionError):
            pass  # broken or too deep: search its beginning instead
    found = found or top_level_uuid(data[:_PEEK_SEARCHED], "message_id")
    try:
        return subjects.message_id(found) if found else None
    except InvalidRequest:
        return None


def _decoded(decoder: "msgspec.json.Decoder[T]", data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(what, error) from None


def _unreadable(what: str, error: Exception) -> ContractError:
    """msgspec quotes the value only for a literal that is none of the allowed."""
    text = str(error) if isinstance(error, msgspec.DecodeError) else "nested too deeply"
    if text.startswith("Invalid enum value"):
        text = "A value that is not allowed" + text[text.find(" - at") :]
    return ContractError(f"not a valid {what}: {text}")
