"""Threads on JetStream: every worker of a namespace sees the same ones, and they outlive all.

How a thread is kept is in `hayrunner_contracts.threads`, how it is read and changed in
`hayrunner_contracts.thread_store`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nats.aio.client import Client

from hayrunner.errors import StorageError
from hayrunner.storage.base import ThreadTurn
from hayrunner_contracts.errors import ContractError, InvalidRequest, PayloadTooLarge, RunError
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.thread_client import ThreadStore
from hayrunner_contracts.thread_log import ThreadLog, now
from hayrunner_contracts.thread_store import JetStreamThreadStore
from hayrunner_contracts.threads import ThreadMessages

__all__ = ["JetStreamStorage", "JetStreamThreads"]

T = TypeVar("T")

_PATIENCE_S = 30.0


class JetStreamThreads:
    """All threads of one namespace. `turns` gives a run's turn on a thread."""

    def __init__(
        self, connection: Client, namespace: str, *, turns: Callable[[str, str], ThreadTurn]
    ) -> None:
        self._store = JetStreamThreadStore(connection, namespace)
        self._turns = turns

    def thread(self, thread_id: str, *, agent: str | None = None) -> "JetStreamStorage":
        """See `Threads`."""
        return JetStreamStorage(self._store, thread_id, agent=agent)

    def turn(self, thread_id: str, message_id: str) -> ThreadTurn:
        """See `Threads`."""
        return self._turns(thread_id, message_id)


class JetStreamStorage:
    """One thread of the stream `THREADS`, for one run.

    While NATS is away both calls go on trying for `patience_s` seconds. `StorageError` after
    that, and at once where a run's messages are larger than a record may be.
    """

    def __init__(
        self,
        store: ThreadStore,
        thread_id: str,
        *,
        agent: str | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._store = store
        self._thread_id = thread_id
        self._agent = agent
        self._patience_s = patience_s
        self._log: ThreadLog | None = None

    async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
        """See `BaseStorageAdapter`. `InvalidRequest` for a thread that was deleted."""
        reading = self._store.read(self._thread_id)
        self._log = log = await self._within(reading, "the thread could not be loaded")
        if log.deleted:
            raise InvalidRequest(
                "thread_id: the thread is deleted; restore it first", field="thread_id"
            )
        return log.messages(before_message_id)

    async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
        """See `BaseStorageAdapter`. A thread that was deleted meanwhile takes them all the same:
        they are there when it is restored."""

        def decide(log: ThreadLog) -> ThreadMessages | None:
            if log.has_run(message_id):
                return None
            return ThreadMessages(
                at=now(), message_id=message_id, agent=self._agent, messages=list(messages)
            )

        changing = self._store.change(self._thread_id, decide, record_id=message_id, log=self._log)
        self._log = await self._within(changing, "the thread could not be saved")

    async def _within(self, work: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._patience_s):
                return await work
        except TimeoutError as error:
            raise StorageError(f"{what} within {self._patience_s:g} s") from error
        except PayloadTooLarge as error:
            raise StorageError(
                f"{what}: the run's messages are too large; {error}",
                retryable=False,
            ) from error
        except RunError as error:
            raise StorageError(f"{what}: {error}", retryable=error.retryable) from error
        except (ContractError, ConnectionError) as error:
            raise StorageError(f"{what}: {error}") from error
