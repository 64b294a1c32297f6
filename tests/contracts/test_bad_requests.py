"""Every bad request is refused with the documented code, and the refusal names the field."""

import time

import pytest
from tests.contracts.bad_requests import BAD_REQUESTS, BadRequest

from hayrunner_contracts.codec import decode_request, peek_message_id
from hayrunner_contracts.errors import RunError


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
def test_a_bad_request_is_refused_and_the_field_named(bad: BadRequest) -> None:
    with pytest.raises(RunError) as caught:
        decode_request(bad.data)
    assert caught.value.code == bad.code
    assert caught.value.field == bad.field
    assert bad.message in caught.value.message
    assert caught.value.message.startswith(f"{bad.field or 'request'}: ")
    assert not caught.value.retryable


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
def test_looking_for_the_id_of_a_bad_request_never_raises(bad: BadRequest) -> None:
    assert peek_message_id(bad.data) in (None, "01981a60-0000-7000-8000-000000000001")


def test_there_are_enough_bad_requests_and_each_has_a_name_of_its_own() -> None:
    names = [bad.name for bad in BAD_REQUESTS]
    assert len(names) >= 40
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt":"' + b'\\"' * 440_000,
        b'{"a":[' + b"{}," * 290_000,
        b'"' + b"\\" * 890_000,
        b"[" * 890_000,
        b'{"a":"' + b"[" * 890_000,
        b'{"prompt":"hi","options":{"tool_context":{"a":[' + b"1," * 440_000 + b"1]}}}",
        b'{"prompt":"hi","x":{' + b",".join(b'"%d":0' % i for i in range(90_000)) + b"}}",
    ],
    ids=["quotes", "objects", "backslashes", "open", "open in a string", "numbers", "keys"],
)
def test_a_hostile_body_of_the_largest_size_costs_bounded_time(data: bytes) -> None:
    began = time.process_time()
    for work in (decode_request, peek_message_id):
        try:
            work(data)
        except RunError:
            pass
    assert time.process_time() - began < 2.0
