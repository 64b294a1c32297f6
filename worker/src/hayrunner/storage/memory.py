"""Threads in this process's memory: gone when it ends, and seen by no other worker."""

from collections.abc import Sequence

from hayrunner_contracts.messages import ChatMessage

__all__ = ["InMemoryStorage", "InMemoryThreads"]


class InMemoryThreads:
    """All threads of one agent. `thread` binds a storage to one of them."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, list[ChatMessage]]] = {}

    def thread(self, thread_id: str) -> "InMemoryStorage":
        """The storage of one thread."""
        return InMemoryStorage(self._runs.setdefault(thread_id, {}))


class InMemoryStorage:
    """One thread in memory."""

    def __init__(self, runs: dict[str, list[ChatMessage]] | None = None) -> None:
        self._runs = {} if runs is None else runs

    async def load(self) -> list[ChatMessage]:
        return [message for run in self._runs.values() for message in run]

    async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
        self._runs.setdefault(message_id, list(messages))
