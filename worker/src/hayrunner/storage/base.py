"""The interfaces of thread storage: one thread's messages, its turn, and all threads."""

from collections.abc import Sequence
from typing import Protocol

from hayrunner_contracts.messages import ChatMessage

__all__ = ["BaseStorageAdapter", "ThreadTurn", "Threads"]


class BaseStorageAdapter(Protocol):
    """One thread's messages. An instance is bound to a thread; `Agent.get_storage` makes it, one
    for each run. An author's own needs these two methods and no more."""

    async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
        """The thread's messages, oldest first; none for a thread nobody wrote to.

        `before_message_id` is the run that loads. Where its own messages are stored already (it
        is run again after its worker died), only those before them are given.
        """
        ...

    async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
        """Add what one run brought, keyed by its message id: a second append with the same id
        changes nothing, so a redelivered run cannot store twice."""
        ...


class ThreadTurn(Protocol):
    """One run's turn on one thread: a thread takes its runs one after the other."""

    async def take(self, *, wait: bool) -> None:
        """Return once the thread is this run's. Where another run has it, wait for that one, or
        raise `hayrunner_contracts.errors.BusyThread`. May be cancelled."""
        ...

    async def release(self, *, over: bool) -> None:
        """Let the next run have it; nothing where it was not taken. `over` False: the run is
        only cut here and goes on elsewhere, which keeps its turn if that is possible."""
        ...


class Threads(Protocol):
    """All threads that an agent may be asked for."""

    def thread(self, thread_id: str, *, agent: str | None = None) -> BaseStorageAdapter:
        """The storage of one thread. `agent` is noted beside what is stored."""
        ...

    def turn(self, thread_id: str, message_id: str) -> ThreadTurn:
        """The turn of one run on one thread, not taken yet."""
        ...
