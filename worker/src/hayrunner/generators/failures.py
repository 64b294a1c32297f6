"""What went wrong at the provider, as a `ProviderError` whose text holds none of its prose.

Of an error's body only `code` and `type` are kept, and only where they are short tokens.
"""

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec

from hayrunner.errors import ProviderError

__all__ = ["RETRYABLE_STATUSES", "http_error", "is_out_of_quota", "retry_after_s", "stream_error"]

RETRYABLE_STATUSES = frozenset({408, 409, 429, *range(500, 600)})

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RATE_LIMIT_TOKENS = frozenset({"429", "rate_limit_exceeded", "rate_limit_error", "rate_limit"})
_OUT_OF_QUOTA = "insufficient_quota"
_PERMANENT_TOKENS = frozenset(
    {
        "400",
        "401",
        "403",
        "404",
        "authentication_error",
        "content_filter",
        "context_length_exceeded",
        _OUT_OF_QUOTA,
        "not_found_error",
        "permission_error",
    }
)


def http_error(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """The answer was no success. `body` may be cut off or no JSON at all."""
    try:
        answer: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        answer = None
    error = cast("dict[str, Any]", answer).get("error") if isinstance(answer, dict) else None
    tokens = _tokens(error)
    return ProviderError(
        f"the provider answered {status}{_in_brackets(tokens)}",
        code="provider_rate_limited" if status == 429 else "provider_error",
        status=status,
        retryable=status in RETRYABLE_STATUSES and not is_out_of_quota(error),
        retry_after_s=retry_after_s(headers.get("Retry-After")),
    )


def stream_error(error: object) -> ProviderError:
    """An error in the place of a chunk, after the answer began with success."""
    tokens = _tokens(error)
    return ProviderError(
        f"the provider broke its reply off with an error{_in_brackets(tokens)}",
        code="provider_rate_limited" if _RATE_LIMIT_TOKENS & set(tokens) else "provider_error",
        retryable=not any(token in _PERMANENT_TOKENS or _is_refusal(token) for token in tokens),
    )


def is_out_of_quota(error: object) -> bool:
    """Whether the account is empty: that is told by 429 too, and no wait fills it."""
    return _OUT_OF_QUOTA in _tokens(error)


def _is_refusal(token: str) -> bool:
    # invalid_prompt, invalid_image_format, and whatever else the Responses API will call so.
    return token.startswith("invalid_")


def retry_after_s(value: str | None) -> float | None:
    """Seconds to wait, from a `Retry-After` header of seconds or of an HTTP date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    # NaN and infinity are floats to Python and no wait to anybody.
    return max(0.0, seconds) if seconds < float("inf") else None


def _tokens(error: object) -> list[str]:
    if not isinstance(error, dict):
        return []
    fields = cast("dict[str, Any]", error)
    values = (str(fields[name]) for name in ("code", "type") if fields.get(name) is not None)
    return [value for value in values if _TOKEN.fullmatch(value)]


def _in_brackets(tokens: list[str]) -> str:
    return f" ({', '.join(dict.fromkeys(tokens))})" if tokens else ""
