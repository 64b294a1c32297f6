"""Whether a cancel was this run's own."""

import asyncio

__all__ = ["is_cancelled", "raise_if_cancelled"]


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
