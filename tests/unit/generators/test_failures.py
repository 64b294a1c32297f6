"""Provider errors that say enough and nothing more."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec
import pytest

from hayrunner.generators.failures import http_error, retry_after_s, stream_error
from hayrunner.generators.transport import wait_s


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 422])
def test_a_status_that_will_not_change_is_not_worth_another_try(status: int) -> None:
    error = http_error(status, {}, b"")
    assert (error.status, error.retryable, error.code) == (status, False, "provider_error")


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
def test_a_status_that_passes_is_worth_another_try(status: int) -> None:
    error = http_error(status, {}, b"")
    assert (error.status, error.retryable) == (status, True)
    assert error.code == ("provider_rate_limited" if status == 429 else "provider_error")


def test_an_empty_account_is_not_worth_another_try() -> None:
    body = msgspec.json.encode({"error": {"code": "insufficient_quota", "message": "pay"}})
    assert not http_error(429, {}, body).retryable


def test_only_short_tokens_of_the_body_are_kept() -> None:
    body = msgspec.json.encode(
        {"error": {"message": "prompt was: hello", "type": "invalid_request_error", "code": 1214}}
    )
    text = str(http_error(400, {}, body))
    assert text == "the provider answered 400 (1214, invalid_request_error)"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>hello</html>",
        b"",
        b'{"error": "hello"}',
        b'["hello"]',
        b'{"error": {"code": "hello world", "type": {"hello": 1}}}',
        b'{"error": {"code": "' + b"hello" * 20 + b'"}}',
        b"[" * 100_000,
    ],
)
def test_prose_of_any_shape_stays_out(body: bytes) -> None:
    assert str(http_error(500, {}, body)) == "the provider answered 500"


def test_an_error_inside_a_stream_is_told_apart_by_its_tokens() -> None:
    assert stream_error({"code": 429}).code == "provider_rate_limited"
    assert stream_error({"type": "server_error"}).retryable
    assert not stream_error({"code": "context_length_exceeded"}).retryable
    assert stream_error("overloaded, said in prose").code == "provider_error"


def test_retry_after_is_read_as_seconds_and_as_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert retry_after_s("1.5") == 1.5
    assert retry_after_s("-3") == 0
    assert 28 < (retry_after_s(date) or 0) <= 30
    for nonsense in (None, "", "soon", "nan", "inf"):
        assert retry_after_s(nonsense) is None


def test_waits_double_with_jitter_up_to_a_limit() -> None:
    for tries, longest in [(0, 0.5), (1, 1), (3, 4), (30, 8)]:
        waits = [wait_s(tries, None) or 0 for _ in range(50)]
        assert longest / 2 <= min(waits) <= max(waits) <= longest
        assert len(set(waits)) > 1


def test_a_server_is_not_asked_before_it_wants_to_be() -> None:
    assert 3 <= (wait_s(0, 3) or 0) <= 3.3
    assert wait_s(0, 3600) is None
