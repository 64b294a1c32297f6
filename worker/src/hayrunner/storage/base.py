"""The interface every thread storage has."""

from collections.abc import Sequence
from typing import Protocol

from hayrunner_contracts.messages import ChatMessage

__all__ = ["BaseStorageAdapter"]


class BaseStorageAdapter(Protocol):
    """One thread's messages. An instance is bound to a thread; `Agent.get_storage` makes it."""

    async def load(self) -> list[ChatMessage]:
        """All messages of the thread, oldest first; none for a thread nobody wrote to."""
        ...

    async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
        """Add what one run brought, keyed by its message id: a second append with the same id
        changes nothing, so a redelivered run cannot store twice."""
        ...
