"""Messages whose content is elsewhere: what says so, and what stands in their place."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hayrunner_contracts import examples
from hayrunner_contracts.codec import decode_event, decode_result, encode, peek_message_id
from hayrunner_contracts.errors import InvalidRequest, RunFailure
from hayrunner_contracts.events import EVENT_TYPES, Data, Error, ToolInputComplete, ToolOutput
from hayrunner_contracts.headers import BLOB, BLOB_DIGEST
from hayrunner_contracts.references import (
    BlobReference,
    digest_of,
    event_stub,
    new_blob_name,
    reference_of,
    request_stub,
    result_stub,
)
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import blob_parts

ID = "01981a60-0000-7000-8000-000000000001"
NAME = f"default.{ID}.event.12.8f3a"
DIGEST = "SHA-256=" + "A" * 43 + "="
LARGE = "x" * 100_000


def test_a_reference_travels_in_two_headers() -> None:
    reference = BlobReference(NAME, digest_of(b"hi"))
    assert reference.headers == {
        "Hayrunner-Blob": NAME,
        "Hayrunner-Blob-Digest": "SHA-256=j0NDRmSPa5bfid2pAcUXaxCm2Dlh3TwayItZstwyeqQ=",
    }
    assert reference_of({**reference.headers, "other": "1"}, namespace="default") == reference


@pytest.mark.parametrize("headers", [None, {}, {BLOB_DIGEST: DIGEST}, {"a": "b"}])
def test_a_message_without_the_header_is_whole(headers: dict[str, str] | None) -> None:
    assert reference_of(headers) is None


@pytest.mark.parametrize(
    ("name", "digest", "field"),
    [
        ("", DIGEST, BLOB),
        ("default.m", DIGEST, BLOB),
        ("default.m.*", DIGEST, BLOB),
        ("default..m.request", DIGEST, BLOB),
        ("default.m.a.b.c.d.e", DIGEST, BLOB),
        (f"default.m.{'a' * 65}", DIGEST, BLOB),
        ("default.m.request\n", DIGEST, BLOB),
        ("../x.m.request", DIGEST, BLOB),
        ("other.m.request", DIGEST, BLOB),
        (NAME, None, BLOB_DIGEST),
        (NAME, "", BLOB_DIGEST),
        (NAME, DIGEST[:-1], BLOB_DIGEST),
        (NAME, DIGEST + "=", BLOB_DIGEST),
        (NAME, DIGEST.lower(), BLOB_DIGEST),
        (NAME, DIGEST.replace("A=", "/="), BLOB_DIGEST),
    ],
)
def test_a_broken_reference_is_an_invalid_request(
    name: str, digest: str | None, field: str
) -> None:
    headers = {BLOB: name} if digest is None else {BLOB: name, BLOB_DIGEST: digest}
    with pytest.raises(InvalidRequest) as caught:
        reference_of(headers, namespace="default")
    assert caught.value.field == field
    assert not name or name.strip() not in caught.value.message


_NAMES = st.from_regex(re.compile(r"[a-z.*> \n-]{0,20}"), fullmatch=True) | st.text(max_size=10)
_DIGESTS = st.none() | st.text(max_size=60) | st.binary(max_size=9).map(digest_of)


@given(_NAMES | st.just(NAME), _DIGESTS)
@example(NAME, DIGEST)
def test_any_headers_give_a_reference_or_the_documented_error(
    name: str, digest: str | None
) -> None:
    headers = {BLOB: name} if digest is None else {BLOB: name, BLOB_DIGEST: digest}
    reference, refused = None, None
    try:
        reference = reference_of(headers)
    except InvalidRequest as error:
        refused = error.field
    if reference is None:
        assert refused in (BLOB, BLOB_DIGEST)
    else:
        assert reference == BlobReference(name, str(digest))
        assert blob_parts(name)[0] == name.split(".")[0]


@given(st.sampled_from(["request", "result", "event.7", "step.1.2"]))
def test_a_new_name_is_a_name_and_no_other(what: str) -> None:
    names = {new_blob_name("default", ID, what) for _ in range(20)}
    assert len(names) == 20
    for name in names:
        namespace, message, told = blob_parts(name)
        assert (namespace, message) == ("default", ID)
        assert re.fullmatch(re.escape(what) + r"\.[0-9a-f]{16}", told)


def test_every_event_has_a_small_stub_of_its_own_type() -> None:
    for event in examples.EVENTS.values():
        large = _grown(event)
        assert isinstance(event, tuple(EVENT_TYPES.values()))
        stub = decode_event(encode(event_stub(msgspec.convert(large, type(event)))))
        assert (type(stub), stub.seq) == (type(event), event.seq)
        assert len(encode(stub)) < 2_000


def _grown(event: Any) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name, value in fields.items():
        if isinstance(value, str) and name not in ("type", "finish_reason"):
            fields[name] = LARGE
        elif isinstance(value, list) and value and isinstance(value[0], str):
            fields[name] = [LARGE]
        elif isinstance(value, dict) and name != "usage":
            fields[name] = {"a": LARGE}
    return fields


def test_a_stub_keeps_what_is_small() -> None:
    output = ToolOutput(
        seq=4, step=2, tool_call_id="c1", tool_output=[{"text": LARGE}], is_error=True, agent="a"
    )
    assert event_stub(output) == ToolOutput(
        seq=4, step=2, tool_call_id="c1", tool_output=[], is_error=True, agent="a"
    )
    call = ToolInputComplete(seq=1, tool_call_id="c1", tool_name="add", tool_input=LARGE)
    assert event_stub(call).tool_input == ""
    assert event_stub(Data(data_type="big", data={"a": LARGE})) == Data(data_type="big", data={})
    assert event_stub(Data(data_type="big", data=7)) == Data(data_type="big", data=7)
    error = Error(error_code="internal", error_message="short")
    assert event_stub(error) == error


def test_a_results_stub_says_how_it_ended_and_not_with_what() -> None:
    result = RunResult(
        message_id=ID,
        agent="support",
        status="failed",
        answer=LARGE,
        error=RunFailure(code="structured_output", message=LARGE),
        metadata={"a": LARGE},
        last_seq=9,
    )
    stub = decode_result(encode(result_stub(result)))
    assert (stub.status, stub.answer, stub.last_seq, stub.metadata) == ("failed", None, 9, {})
    assert stub.error == RunFailure(code="structured_output", message="x" * 1_000)
    small = msgspec.structs.replace(result, error=None, metadata={"a": "b"})
    assert result_stub(small) == msgspec.structs.replace(small, answer=None)


def test_a_requests_stub_has_its_id() -> None:
    assert peek_message_id(request_stub(ID)) == ID
    assert request_stub(None) == b"{}"
