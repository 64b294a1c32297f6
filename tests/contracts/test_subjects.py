"""Subjects hold only what was meant to be in them; errors survive the wire."""

import pytest

from hayrunner_contracts import subjects
from hayrunner_contracts.errors import (
    ERROR_CODES,
    ErrorCode,
    InternalError,
    InvalidRequest,
    ProviderFailed,
    RunError,
    RunFailure,
    error_from_wire,
    is_retryable,
)
from hayrunner_contracts.subjects import consumer_name, derived_message_id, parse_requests_subject

_ID = "01981a60-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    "token", ["", "a.b", "*", ">", "a b", "a\n", "ä", "a" * 129, "a/b", "$JS", "a\x00"]
)
def test_what_could_widen_a_subject_is_refused(token: str) -> None:
    for build in (subjects.requests, subjects.ask, subjects.dead, subjects.thread):
        with pytest.raises(InvalidRequest, match="1 to 128 characters"):
            build("default", token)
        with pytest.raises(InvalidRequest, match=r"^namespace: "):
            build(token, "support")


def test_a_subject_of_requests_is_read_back() -> None:
    assert parse_requests_subject(subjects.requests("ns", "support")) == ("ns", "support")


@pytest.mark.parametrize("subject", ["agents.ns.a.ask", "agents.ns.a", "runs.ns.a.requests"])
def test_another_subject_is_none_of_requests(subject: str) -> None:
    with pytest.raises(ValueError, match="not a requests subject"):
        parse_requests_subject(subject)


def test_consumer_names_fit_and_stay_apart() -> None:
    longest = [consumer_name("n" * 128, "a" * 127 + last) for last in "ab"]
    assert longest[0] != longest[1]
    assert max(map(len, longest)) <= 255
    assert consumer_name("a", "b_c") != consumer_name("a_b", "c")


def test_a_derived_id_is_a_uuid_and_the_same_every_time() -> None:
    derived = derived_message_id("AGENT_REQUESTS", 7)
    assert subjects.message_id(derived) == derived == derived_message_id("AGENT_REQUESTS", 7)
    assert derived != derived_message_id("AGENT_REQUESTS", 8)


def test_a_message_id_in_a_subject_is_refused_where_it_is_no_token() -> None:
    with pytest.raises(InvalidRequest, match=r"^message_id: "):
        subjects.events("default", f"{_ID}.>")


@pytest.mark.parametrize("code", ERROR_CODES)
def test_every_code_is_an_exception_and_comes_back_as_it(code: ErrorCode) -> None:
    failure = RunFailure(code=code, message="a", retryable=True, ref="r-1", field="prompt")
    error = error_from_wire(failure, result="a result")
    assert (error.code, str(error), error.result) == (code, "a", "a result")
    assert isinstance(error, RunError)
    assert error.to_wire() == failure


def test_a_code_of_a_newer_worker_is_an_internal_error_with_its_text() -> None:
    error = error_from_wire(RunFailure(code="too_hot", message="cool down", retryable=True))
    assert type(error) is InternalError
    assert (error.message, error.retryable) == ("cool down", True)
    assert not is_retryable("too_hot")


def test_an_error_knows_whether_trying_again_can_help() -> None:
    assert ProviderFailed("a").retryable
    assert not ProviderFailed("a", retryable=False).retryable
    assert not InvalidRequest("a").retryable
    assert {code for code in ERROR_CODES if is_retryable(code)} == {
        "busy_thread", "overloaded", "provider_error", "provider_rate_limited", "storage_error",
        "worker_lost",
    }  # fmt: skip
