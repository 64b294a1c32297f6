"""Questions to JetStream at a start, when it may have no leader yet.

A cluster that has lost its leader, or just came up, answers 503 or nothing until it has elected
one, which takes up to ten seconds. A server without JetStream answers 503 for ever.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import ServiceUnavailableError

from hayrunner.errors import ConfigurationError

__all__ = ["PATIENCE_S", "when_available"]

T = TypeVar("T")

PATIENCE_S = 20.0
_AGAIN_S = 0.25
# JSNotEnabledForAccountErr, JSNotEnabledErr; None: nobody listens to the API.
_NOT_ENABLED = (None, 10039, 10076)


async def when_available(ask: Callable[[], Awaitable[T]], *, patience_s: float = PATIENCE_S) -> T:
    """What `ask` returns, asked again while JetStream has no leader: it has to be idempotent.

    `ConfigurationError` where the server has no JetStream, or no leader for `patience_s` seconds.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            return await ask()
        except ServiceUnavailableError as error:
            if error.err_code in _NOT_ENABLED:
                raise ConfigurationError(
                    "the server has no JetStream: start it with -js, or enable it for this account"
                ) from None
            if time.monotonic() > end:
                raise ConfigurationError(
                    f"JetStream has had no leader for {patience_s:g} s ({error.description}): "
                    "more than half of the cluster's servers have to be up"
                ) from error
        except NatsTimeout:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(_AGAIN_S)
