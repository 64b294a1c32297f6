"""What an exception of a provider's package means."""

from hayrunner.errors import ProviderError

__all__ = ["provider_failure"]

# The packages whose exceptions mean that the server could not be used.
_PACKAGES = ("httpx", "httpcore", "httpx2", "aiohttp", "openai", "anthropic", "ollama")


def provider_failure(error: Exception) -> ProviderError | None:
    """The provider error that an exception, or a cause of it, stands for; None where it is
    something else. The exception's text may hold content and is not kept."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    for link in chain:
        status = getattr(link, "status_code", None) or getattr(link, "status", None)
        if isinstance(status, int):
            return _of_status(status)
        module = type(link).__module__.partition(".")[0]
        if module in _PACKAGES:
            return ProviderError(f"the model's server could not be used ({type(link).__name__})")
    return None


def _of_status(status: int) -> ProviderError:
    if status == 429:
        return ProviderError(
            "the model's server asked to slow down (HTTP 429)",
            code="provider_rate_limited",
            status=status,
        )
    retryable = status in (408, 409) or status >= 500
    return ProviderError(
        f"the model's server answered HTTP {status}", status=status, retryable=retryable
    )
