"""Whether a cancel was this run's own."""

import asyncio

__all__ = ["is_cancelled", "put_off", "raise_if_cancelled"]


def is_cancelled() -> bool:
    """Whether somebody asked the current task to end. A `CancelledError` without that comes from
    something that was waited for and was cancelled itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_if_cancelled() -> None:
    """Raise `CancelledError` where the current task was asked to end and what it was waiting for
    (a tool, a hook, a generator) swallowed that."""
    if is_cancelled():
        raise asyncio.CancelledError


def put_off() -> None:
    """Have the cancel that was just raised in the current task raised again where the task waits
    next. Raises it at once where it was not this task's own."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise asyncio.CancelledError
    task.uncancel()
    task.cancel()
