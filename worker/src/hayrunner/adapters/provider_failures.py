"""What an exception of a provider's package means."""

from collections.abc import Mapping
from typing import Any, cast

from hayrunner.errors import ProviderError
from hayrunner.generators.failures import (
    RETRYABLE_STATUSES,
    is_out_of_quota,
    retry_after_s,
    stream_error,
)

__all__ = ["provider_failure"]

# The packages whose exceptions mean that the server could not be used.
_PACKAGES = ("httpx", "httpcore", "httpx2", "aiohttp", "openai", "anthropic", "ollama")


def provider_failure(error: Exception, *, of_generator: bool = False) -> ProviderError | None:
    """The provider error that an exception, or a cause of it, stands for; None where it is
    something else. The exception's text may hold content and is not kept. `of_generator` says
    that nothing but a model's server can have been the other side of a connection."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    for link in chain:
        status = getattr(link, "status_code", None) or getattr(link, "status", None)
        if isinstance(status, int) and status >= 400:
            return _of_status(status, link)
        module = type(link).__module__.partition(".")[0]
        if module in _PACKAGES:
            if isinstance(status, int) or _body(link):
                # Errors in the middle of a stream that began with 200; OpenAI's have no status.
                return stream_error(_body(link))
            return ProviderError(f"the model's server could not be used ({type(link).__name__})")
        # Ollama's client raises the built-in ones.
        if of_generator and isinstance(link, ConnectionError | TimeoutError):
            return ProviderError(f"the model's server could not be used ({type(link).__name__})")
    return None


def _body(error: BaseException) -> Any:
    """The error in a body `{"type": "error", "error": {…}}`, or the body that is one itself; of
    it only short tokens are kept."""
    body = getattr(error, "body", None)
    if not isinstance(body, Mapping):
        return None
    fields = cast("Mapping[str, Any]", body)
    return fields.get("error", fields)


def _of_status(status: int, error: BaseException) -> ProviderError:
    headers = getattr(getattr(error, "response", None), "headers", None)
    wait = retry_after_s(headers.get("retry-after")) if headers is not None else None
    if status == 429:
        return ProviderError(
            "the model's server asked to slow down (HTTP 429)",
            code="provider_rate_limited",
            status=status,
            retryable=not is_out_of_quota(_body(error)),
            retry_after_s=wait,
        )
    return ProviderError(
        f"the model's server answered HTTP {status}",
        status=status,
        retryable=status in RETRYABLE_STATUSES,
        retry_after_s=wait,
    )
