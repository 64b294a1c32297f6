"""Threads in this process's memory: gone when it ends, and seen by no other worker."""

import asyncio
from collections.abc import Sequence

from hayrunner_contracts.errors import BusyThread
from hayrunner_contracts.messages import ChatMessage

__all__ = ["InMemoryStorage", "InMemoryThreads"]


class InMemoryThreads:
    """All threads of one agent. `thread` binds a storage to one of them."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, list[ChatMessage]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def thread(self, thread_id: str, *, agent: str | None = None) -> "InMemoryStorage":
        """The storage of one thread."""
        return InMemoryStorage(self._runs.setdefault(thread_id, {}))

    def turn(self, thread_id: str, message_id: str) -> "_Turn":
        """See `Threads`."""
        return _Turn(self._locks.setdefault(thread_id, asyncio.Lock()))


class InMemoryStorage:
    """One thread in memory."""

    def __init__(self, runs: dict[str, list[ChatMessage]] | None = None) -> None:
        self._runs = {} if runs is None else runs

    async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
        found: list[ChatMessage] = []
        for message_id, messages in self._runs.items():
            if message_id == before_message_id:
                break
            found.extend(messages)
        return found

    async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
        self._runs.setdefault(message_id, list(messages))


class _Turn:
    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._taken = False

    async def take(self, *, wait: bool) -> None:
        if self._lock.locked() and not wait:
            raise BusyThread("another run uses this thread; try again when it is done")
        await self._lock.acquire()
        self._taken = True

    async def release(self, *, over: bool) -> None:
        if self._taken:
            self._taken = False
            self._lock.release()
