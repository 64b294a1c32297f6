"""Waiting for an answer, but not on a connection that is gone."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import nats.errors
from nats.aio.client import Client as Connection

__all__ = ["CHECK_S", "unless_reconnected"]

CHECK_S = 0.25
"""How often whoever waits looks whether the connection was replaced."""

T = TypeVar("T")


async def unless_reconnected(connection: Connection, work: Awaitable[T]) -> T:
    """What `work` gives. `nats.errors.TimeoutError` once the connection that it was begun on was
    replaced: its answer went to the old one, or was never asked for. `work` must be safe to do
    again."""
    reconnects = connection.stats["reconnects"]
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=CHECK_S)
            if not task.done() and connection.stats["reconnects"] != reconnects:
                raise nats.errors.TimeoutError
        return task.result()
    finally:
        task.cancel()
