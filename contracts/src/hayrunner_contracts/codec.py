"""Bytes to types and back. (Limits, near-miss names and depth checks are being completed.)"""

from typing import Union

import msgspec

from hayrunner_contracts.commands import COMMAND_TYPES, RunCommand
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import EVENT_TYPES, StreamEvent, UnknownEvent
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult

__all__ = [
    "decode_command",
    "decode_event",
    "decode_request",
    "decode_result",
    "encode",
]

_ENCODER = msgspec.json.Encoder()
_EVENTS = msgspec.json.Decoder(Union[tuple(EVENT_TYPES.values())])  # pyright: ignore
_COMMANDS = msgspec.json.Decoder(Union[tuple(COMMAND_TYPES.values())])  # pyright: ignore
_REQUESTS = msgspec.json.Decoder(RunRequest)
_RESULTS = msgspec.json.Decoder(RunResult)

encode = _ENCODER.encode


def decode_event(data: bytes) -> StreamEvent | UnknownEvent:
    return _EVENTS.decode(data)


def decode_command(data: bytes) -> RunCommand:
    return _COMMANDS.decode(data)


def decode_result(data: bytes) -> RunResult:
    return _RESULTS.decode(data)


def decode_request(data: bytes) -> RunRequest:
    try:
        return _REQUESTS.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from error
