"""Whatever comes in, the readers answer with a value or with the documented error."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hayrunner_contracts.codec import (
    check_request,
    decode_command,
    decode_event,
    decode_request,
    decode_result,
    encode,
    peek_message_id,
)
from hayrunner_contracts.commands import COMMAND_TYPES
from hayrunner_contracts.errors import ContractError, InvalidRequest, PayloadTooLarge
from hayrunner_contracts.events import EVENT_TYPES
from hayrunner_contracts.examples import FULL_REQUEST, MESSAGES
from hayrunner_contracts.messages import ChatMessage, ContentPart, ImagePart, ToolCall
from hayrunner_contracts.options import RunOptions
from hayrunner_contracts.requests import RunRequest

_WORDS = st.sampled_from(
    [
        *RunRequest.__struct_fields__, *RunOptions.__struct_fields__,
        *ChatMessage.__struct_fields__, *ContentPart.__struct_fields__,
        *ToolCall.__struct_fields__, *ImagePart.__struct_fields__,
        "type", "tool_calls", "function", "tool_call_id", "refusal", "image_url", "url", "origin",
        "result", "_role", "_content", "$ref", "properties", "seq",
    ]
)  # fmt: skip
_VALUES = st.sampled_from(
    [
        "user", "assistant", "tool", "developer", "text", "file", "aGk=", "data:a;base64,aGk=", "",
        "object", "{}", "stream", "answer", "01981a60-0000-7000-8000-000000000001",
        "2026-01-31T12:00:00Z", 0, -1, 1.5, None, True, *EVENT_TYPES, *COMMAND_TYPES,
    ]
)  # fmt: skip
_NEARLY = st.recursive(
    _VALUES | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=12,
)
_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.just("hi") | _NEARLY,
        "messages": st.lists(_NEARLY | st.sampled_from([
            json.loads(encode(message)) for message in MESSAGES.values()
        ]), max_size=3) | _NEARLY,
        "options": _NEARLY,
        "metadata": _NEARLY,
        "response_format": _NEARLY,
        "deadline": _NEARLY,
    },
)  # fmt: skip
_FULL = encode(FULL_REQUEST)


def _answers(data: bytes) -> None:
    """Every reader, on the same bytes."""
    refused = ""
    try:
        request = decode_request(data)
    except (InvalidRequest, PayloadTooLarge) as error:
        refused = error.message
    else:
        # What was read once is canonical: it is written and read as the same.
        assert check_request(request) == request
    assert refused.isprintable()
    assert len(refused) < 1_000
    try:
        decode_command(data)
    except InvalidRequest:
        pass
    for read in (decode_event, decode_result):
        try:
            read(data)
        except ContractError:
            pass
    peek_message_id(data)


@settings(max_examples=300, deadline=None)
@given(_REQUESTS | _NEARLY)
def test_nearly_good_requests(value: Any) -> None:
    _answers(json.dumps(value).encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    _answers(data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(_FULL) - 1), st.binary(max_size=3), st.integers(0, 30))
def test_a_good_request_with_a_few_bytes_changed(place: int, put: bytes, cut: int) -> None:
    _answers(_FULL[:place] + put + _FULL[place + cut :])
