"""What tests of a service need. (Being completed.)"""

import asyncio
import time
from collections.abc import Awaitable, Callable

__all__ = ["eventually"]


async def eventually(
    condition: Callable[[], object | Awaitable[object]],
    timeout: float = 10.0,
    *,
    what: str = "the condition",
) -> None:
    """Wait until `condition()` is true (awaited where it returns an awaitable), at most
    `timeout` seconds; `AssertionError` naming `what` after that."""
    end = time.monotonic() + timeout
    while True:
        outcome = condition()
        if isinstance(outcome, Awaitable):
            outcome = await outcome
        if outcome:
            return
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        await asyncio.sleep(0.01)
