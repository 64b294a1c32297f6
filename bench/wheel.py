"""A timer wheel: many streams at one rate, spread evenly over the period."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

__all__ = ["RATE", "Wheel"]

RATE = 50
"""Chunks per second of one stream."""

_SLOTS = 20
_TICK_S = 1 / RATE / _SLOTS

T = TypeVar("T")


class Wheel(Generic[T]):
    """Streams in slots of one millisecond: every one is due once per turn, 50 times a second.

    A loop that falls behind makes up for it: no turn is left out.
    """

    def __init__(self) -> None:
        self._slots: list[list[T]] = [[] for _ in range(_SLOTS)]

    def add(self, stream: T) -> None:
        """Into the emptiest slot, so that no tick has more to do than another."""
        min(self._slots, key=len).append(stream)

    def remove(self, stream: T) -> None:
        for slot in self._slots:
            if stream in slot:
                slot.remove(stream)

    async def due(self) -> AsyncIterator[list[T]]:
        """The streams of one slot after the other, each at its time, for ever."""
        turn_at = time.monotonic()
        while True:
            for number, slot in enumerate(self._slots):
                if slot:
                    await _sleep_until(turn_at + number * _TICK_S)
                    yield list(slot)
            turn_at += len(self._slots) * _TICK_S
            await _sleep_until(turn_at)


async def _sleep_until(moment: float) -> None:
    wait = moment - time.monotonic()
    if wait > 0:
        await asyncio.sleep(wait)
