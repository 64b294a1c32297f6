"""Operations on threads: `client.threads`, the same on NATS and in the double for tests."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from hayrunner_contracts.errors import ClientTimeout, InvalidRequest
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.subjects import message_id as canonical_id
from hayrunner_contracts.subjects import token
from hayrunner_contracts.thread_log import ThreadLog, now
from hayrunner_contracts.threads import (
    Rating,
    Thread,
    ThreadCreated,
    ThreadDeleted,
    ThreadInfo,
    ThreadRated,
    ThreadRecord,
    ThreadRestored,
)

__all__ = ["THREAD_TIMEOUT_S", "ThreadClient", "ThreadStore"]

THREAD_TIMEOUT_S = 10.0
"""How long an operation on a thread may take."""

_LONGEST_TITLE = 200
_LONGEST_COMMENT = 4_000

T = TypeVar("T")


class ThreadStore(Protocol):
    """Where threads are kept. Goes on trying while it cannot be reached, until it is cancelled."""

    async def read(self, thread_id: str) -> ThreadLog:
        """The whole thread."""
        ...

    async def change(
        self,
        thread_id: str,
        decide: Callable[[ThreadLog], ThreadRecord | None],
        *,
        record_id: str,
        log: ThreadLog | None = None,
    ) -> ThreadLog:
        """Add the record that `decide` makes of the thread as it is; None changes nothing. Where
        somebody else was faster, it is asked again. `log` is the thread as read before."""
        ...

    async def infos(self) -> list[ThreadInfo]:
        """Every thread, deleted ones too, in no order."""
        ...


class ThreadClient:
    """Creates, lists, reads, rates, deletes and restores threads.

    `timeout` is in seconds; `ClientTimeout` when it passes, and the change may or may not have
    been made: every call can be repeated. `InvalidRequest` for an id or a value that may not be,
    and for a thread that does not exist.
    """

    def __init__(self, store: ThreadStore) -> None:
        self._store = store

    async def create(
        self,
        thread_id: str | None = None,
        *,
        title: str | None = None,
        timeout: float = THREAD_TIMEOUT_S,
    ) -> ThreadInfo:
        """A new thread with a title; refused where there is one of that id. Not needed before a
        run: the first run makes its thread."""
        if title is not None and len(title) > _LONGEST_TITLE:
            raise InvalidRequest(f"title: at most {_LONGEST_TITLE} characters", field="title")
        name = new_message_id() if thread_id is None else token("thread_id", thread_id)

        def decide(log: ThreadLog) -> ThreadRecord:
            if log.exists:
                raise InvalidRequest("thread_id: there is a thread of that id", field="thread_id")
            return ThreadCreated(at=now(), title=title)

        return _info(await self._change(name, decide, timeout))

    async def list(
        self,
        *,
        include_deleted: bool = False,
        limit: int | None = None,
        timeout: float = THREAD_TIMEOUT_S,
    ) -> list[ThreadInfo]:
        """The threads of the namespace, the last changed one first, at most `limit`."""
        found = await _within(timeout, self._store.infos(), "the threads were not listed")
        shown = [info for info in found if include_deleted or not info.deleted]
        shown.sort(key=lambda info: (info.updated_at, info.thread_id), reverse=True)
        return shown[:limit]

    async def get(self, thread_id: str, *, timeout: float = THREAD_TIMEOUT_S) -> Thread:
        """The thread with its messages and ratings; without both while it is deleted."""
        reading = self._store.read(token("thread_id", thread_id))
        thread = (await _within(timeout, reading, "the thread was not read")).thread()
        if thread is None:
            raise _unknown()
        return thread

    async def messages(
        self, thread_id: str, *, timeout: float = THREAD_TIMEOUT_S
    ) -> Sequence[ChatMessage]:
        """The thread's messages, oldest first; none while it is deleted."""
        return (await self.get(thread_id, timeout=timeout)).conversation

    async def rate(
        self,
        thread_id: str,
        message_id: str,
        rating: Rating | None,
        *,
        comment: str | None = None,
        timeout: float = THREAD_TIMEOUT_S,
    ) -> None:
        """Rate what the run `message_id` said; the last rating counts, None takes it back."""
        _check_rating(rating, comment)
        run = canonical_id(message_id)

        def decide(log: ThreadLog) -> ThreadRecord | None:
            _check_there(log)
            if log.deleted:
                raise InvalidRequest("thread_id: the thread is deleted", field="thread_id")
            if not log.has_run(run):
                raise InvalidRequest(
                    "message_id: no run of that id is in the thread", field="message_id"
                )
            return ThreadRated(at=now(), message_id=run, rating=rating, comment=comment)

        await self._change(thread_id, decide, timeout)

    async def delete(self, thread_id: str, *, timeout: float = THREAD_TIMEOUT_S) -> None:
        """Hide the thread: no messages, no runs, until it is restored. Twice is once. Its records
        stay as long as the stream keeps them."""

        def decide(log: ThreadLog) -> ThreadRecord | None:
            _check_there(log)
            return None if log.deleted else ThreadDeleted(at=now())

        await self._change(thread_id, decide, timeout)

    async def restore(self, thread_id: str, *, timeout: float = THREAD_TIMEOUT_S) -> None:
        """Make a deleted thread what it was; nothing where it is not deleted."""

        def decide(log: ThreadLog) -> ThreadRecord | None:
            _check_there(log)
            return ThreadRestored(at=now()) if log.deleted else None

        await self._change(thread_id, decide, timeout)

    async def _change(
        self,
        thread_id: str,
        decide: Callable[[ThreadLog], ThreadRecord | None],
        timeout: float,
    ) -> ThreadLog:
        name = token("thread_id", thread_id)
        changing = self._store.change(name, decide, record_id=new_message_id())
        return await _within(timeout, changing, "the thread was not changed")


async def _within(timeout: float, work: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(timeout):
            return await work
    except TimeoutError:
        raise ClientTimeout(f"{what} within {timeout:g} s") from None


def _check_there(log: ThreadLog) -> None:
    if not log.exists:
        raise _unknown()


def _check_rating(rating: Rating | None, comment: str | None) -> None:
    if isinstance(rating, str):
        valid = rating in ("up", "down")
    else:
        valid = rating is None or (not isinstance(rating, bool) and math.isfinite(rating))
    if not valid:
        raise InvalidRequest("rating: must be up, down, a number or null", field="rating")
    if comment is not None and len(comment) > _LONGEST_COMMENT:
        raise InvalidRequest(f"comment: at most {_LONGEST_COMMENT} characters", field="comment")


def _info(log: ThreadLog) -> ThreadInfo:
    thread = log.thread()
    assert thread is not None  # a record was just added
    return ThreadInfo(**{name: getattr(thread, name) for name in ThreadInfo.__struct_fields__})


def _unknown() -> InvalidRequest:
    return InvalidRequest("thread_id: there is no such thread", field="thread_id")
