"""How often, and after which waits, a model call that failed is made again."""

import random
from dataclasses import dataclass

from hayrunner.errors import ConfigurationError

__all__ = ["DEFAULT_PROVIDER_RETRIES", "RetryPolicy", "retry_policy"]

DEFAULT_PROVIDER_RETRIES = 2

# Beyond this the longest wait is reached with any first one, and the power would be no float.
_MOST_DOUBLINGS = 60


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Up to `retries` further tries of one model call, each after a wait. Times are seconds.

    The wait doubles from `first_wait_s` up to `longest_wait_s`, with up to half of it taken off at
    random, so that many runs turned away together do not come back together. A server's
    `Retry-After` is never undercut; one that asks for more than `longest_retry_after_s` is not
    waited for. Raises `ConfigurationError` for negative numbers.
    """

    retries: int = DEFAULT_PROVIDER_RETRIES
    first_wait_s: float = 0.5
    longest_wait_s: float = 20.0
    longest_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise ConfigurationError(f"RetryPolicy: {name} must not be negative, is {value}")

    def wait_s(self, failed: int, retry_after_s: float | None = None) -> float | None:
        """How long to wait after the try number `failed`, from 1, has failed; None where there
        is to be no other."""
        if failed > self.retries:
            return None
        doubled = self.first_wait_s * 2 ** min(failed - 1, _MOST_DOUBLINGS)
        backoff = min(doubled, self.longest_wait_s) * random.uniform(0.5, 1.0)
        if retry_after_s is None:
            return backoff
        if retry_after_s > self.longest_retry_after_s:
            return None
        return max(backoff, retry_after_s * random.uniform(1.0, 1.1))


def retry_policy(wanted: "int | RetryPolicy") -> RetryPolicy:
    """The policy that an agent's `provider_retries` stands for; `ConfigurationError` if none."""
    if isinstance(wanted, RetryPolicy):
        return wanted
    if type(wanted) is not int:
        raise ConfigurationError("provider_retries must be a number of tries or a RetryPolicy")
    return RetryPolicy(retries=wanted)
