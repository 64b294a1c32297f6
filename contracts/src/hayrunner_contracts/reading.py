"""Reading one run over NATS: live events, healed from the stream, and the one result.

A live subscriber can miss events: while it reconnects, while it is slower than the run, or because
it came late. Whatever the reason, the follower sees a gap, or the run goes quiet, and what is
missing is read from the stream.

After a reconnect the stream is read before anything that comes live: a server may have died
together with a worker, and the next worker numbers its events from what was stored, so that a
missed `run_resumed` need not show as a gap.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Self

import nats.errors
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from hayrunner_contracts.codec import decode_event, decode_result, encode
from hayrunner_contracts.contents import Contents
from hayrunner_contracts.errors import ClientTimeout, error_from_wire
from hayrunner_contracts.events import UnknownEvent
from hayrunner_contracts.following import Event, EventFollower, EventsLost
from hayrunner_contracts.headers import BLOB
from hayrunner_contracts.mailbox import Mailbox
from hayrunner_contracts.read_settings import ReadSettings
from hayrunner_contracts.replay import NotProvisioned, Stored, StoredSubject
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import RUN_EVENTS, RUN_RESULTS, events, result

__all__ = ["EventReader", "ReadSettings", "ResultReader"]

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_IN_TROUBLE_S = 1.0
_DISCONNECTED_PAUSE_S = 0.5
_LOOKS_BEFORE_DOUBT = 3
# Without JetStream there are still live events: how long they wait for it after a reconnect.
_BLIND_AT_MOST_S = 10.0
# In a cluster the store may be read from a replica that is a moment behind.
_LOOKS_AFTER_RECONNECT = 3


def _contents(connection: Connection, namespace: str, settings: ReadSettings) -> Contents:
    return Contents(connection, namespace, api=settings.api, max_bytes=settings.max_blob_bytes)


class _Reader:
    """A subscription on one subject, a mailbox, and the stored messages of the same subject."""

    def __init__(
        self, connection: Connection, stream: str, subject: str, settings: ReadSettings
    ) -> None:
        self._connection = connection
        self._subject = subject
        self._settings = settings
        self._stored = StoredSubject(connection, stream, subject, api=settings.api)
        self._mailbox = Mailbox(messages=settings.buffer_events, size=settings.buffer_bytes)
        self._subscription: Subscription | None = None
        self._reconnects = connection.stats["reconnects"]
        self._look_at = 0.0
        self._pause = settings.idle_check_s

    async def __aenter__(self) -> Self:
        """Subscribed: what is published, or read from the store, over the same connection from now
        on comes after that. A flush would say no more: nats-py's PING overtakes what is buffered,
        and while the connection is away it takes ten seconds."""
        self._check_connection()
        self._subscription = await self._connection.subscribe(self._subject, cb=self._deliver)
        self._look_at = self._now() + self._pause
        return self

    async def __aexit__(self, *_: object) -> None:
        # It refers to this: a cycle that only the garbage collector would end.
        subscription, self._subscription = self._subscription, None
        if subscription is None or self._connection.is_closed:
            return
        try:
            await subscription.unsubscribe()
        except nats.errors.Error:
            pass  # draining or closed just now: the subscription is gone either way

    def suspect(self) -> None:
        """Something may have been missed: look at the store right away."""
        self._look_at = 0.0
        self._pause = _FIRST_PAUSE_S
        self._mailbox.wake()

    async def _deliver(self, message: Msg) -> None:
        self._note_reconnects()
        await self._mailbox.deliver(message)

    def _note_reconnects(self) -> None:
        """Counted before anything arrives on the new connection: what is held came on the old."""
        reconnects = self._connection.stats["reconnects"]
        if reconnects != self._reconnects:
            self._reconnects = reconnects
            self._reconnected()

    def _reconnected(self) -> None:
        self._look_at = 0.0
        self._pause = _FIRST_PAUSE_S

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _check_connection(self) -> None:
        if self._connection.is_closed:
            raise ConnectionError("the connection to NATS is closed")
        self._note_reconnects()
        if not self._connection.is_connected:
            self._look_at = self._now() + _DISCONNECTED_PAUSE_S

    def _look_again_later(self, longest: float) -> None:
        self._pause = min(self._pause * 2, longest)
        self._look_at = self._now() + self._pause


class _Reference(bytes):
    """The bytes of an event that has its content elsewhere; the headers say where."""

    headers: Mapping[str, str]


class EventReader(_Reader):
    """The events of one run after sequence `after`, in order, each once, until `stream_end`.

    `attempt` is the highest attempt that the consumer has seen of the run; without it, every
    `run_resumed` up to `after` that is stored when the reader starts counts as seen.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        message_id: str,
        settings: ReadSettings,
        *,
        after: int = 0,
        attempt: int | None = None,
    ) -> None:
        super().__init__(connection, RUN_EVENTS, events(namespace, message_id), settings)
        self._message_id = message_id
        self._results = StoredSubject(
            connection, RUN_RESULTS, result(namespace, message_id), api=settings.api
        )
        self._follower = EventFollower(
            after, attempt=attempt, hold=settings.buffer_events, hold_bytes=settings.buffer_bytes
        )
        self._contents = _contents(connection, namespace, settings)
        self._cursor = 0  # everything in the stream up to here was fed to the follower
        self._more = False  # there is more to read from the store at once
        self._blind_until = 0.0  # until then, what comes live waits for what is stored
        self._looks_due = 0  # looks at the store that are to come without a further reason
        self._in_trouble = False
        self._vain_looks = 0
        self._moved = True
        self._moved_at = 0.0
        self._quiet_looks = 0
        self._over_since: float | None = None
        self._result: RunResult | None = None
        self._last_data = b""

    def catch_up(self) -> None:
        """Read the store first: the run may have begun before the subscription."""
        self._more = True
        self.suspect()

    async def read_wire(self, timeout: float) -> AsyncGenerator[tuple[Event, bytes], None]:
        """Yield the events, each with the bytes it came in.

        Raises `ClientTimeout` after `timeout` seconds without one, `EventsLost` when some cannot
        be had any more, the run's error when it failed before its first event, `StorageFailed`
        when the content of one cannot be had, `ConnectionError` when the connection is closed.
        """
        follower, mailbox = self._follower, self._mailbox
        while not follower.done:
            self._note_reconnects()
            if self._trouble_is_due():
                ready = await self._look()
            elif not self._blind_until and (message := mailbox.take()) is not None:
                ready = self._feed(message.data, message.headers)
            else:
                ready = await self._wait_or_look(timeout)
            for item in ready:
                self._last_data = item[1]
                yield await self._whole(item, timeout)
            if ready:
                self._moved = True

    def _reconnected(self) -> None:
        super()._reconnected()
        self._mailbox.clear()
        self._more = True
        self._blind_until = self._now() + _BLIND_AT_MOST_S
        self._looks_due = _LOOKS_AFTER_RECONNECT

    async def _whole(self, item: tuple[Event, bytes], timeout: float) -> tuple[Event, bytes]:
        event, data = item
        if not isinstance(data, _Reference):
            return item
        event = await self._contents.event(event, data.headers, timeout)
        return event, event.raw if isinstance(event, UnknownEvent) else encode(event)

    def _feed(self, data: bytes, headers: Mapping[str, str] | None) -> list[tuple[Event, bytes]]:
        try:
            event = decode_event(data)
        except ValueError:
            return []  # no event: somebody else's message. A missing event shows as a gap.
        follower = self._follower
        if headers is not None and BLOB in headers:
            data = _Reference(data)
            data.headers = headers
        ready = follower.take(event, data)
        if follower.dropped or follower.misled:
            follower.dropped, self._mailbox.overflowed = False, True
        return ready

    def _trouble_is_due(self) -> bool:
        """Whether something is known to be missing, and it is time to look for it."""
        if self._more and self._connection.is_connected:
            return True
        if self._blind_until and self._now() > self._blind_until:
            self._blind_until = 0.0
        missing = self._follower.waiting or self._mailbox.overflowed
        if not (missing or self._blind_until or self._looks_due):
            self._in_trouble = False
            return False
        now = self._now()
        if not self._in_trouble:
            self._in_trouble = True
            self._vain_looks = 0
            self._look_at = now
            self._pause = _FIRST_PAUSE_S
        return now >= self._look_at and self._connection.is_connected

    async def _wait_or_look(self, timeout: float) -> list[tuple[Event, bytes]]:
        now = self._now()
        if self._moved:
            self._moved, self._moved_at = False, now
            self._quiet_looks = 0
            if not (self._in_trouble or self._more or self._look_at <= now):
                self._pause = self._settings.idle_check_s
                self._look_at = now + self._pause
        self._check_connection()
        left = self._moved_at + timeout - now
        if left <= 0:
            raise self._silence(timeout)
        if now >= self._look_at:
            return await (self._look() if self._blind_until else self._look_at_the_end())
        await self._mailbox.wait(min(left, self._look_at - now), for_messages=not self._blind_until)
        return []

    async def _look(self) -> list[tuple[Event, bytes]]:
        """The next stored messages, fed to the follower."""
        # Before reading: what is dropped from here on is a reason to look again.
        self._mailbox.overflowed = False
        blind_until = self._blind_until
        try:
            batch, self._more = await self._stored.after(self._cursor)
        except nats.errors.ConnectionClosedError as error:
            raise ConnectionError("the connection to NATS is closed") from error
        except nats.errors.Error:
            # Policy: the store cannot be read just now; look again later, within the timeout.
            self._mailbox.overflowed, self._more = True, False
            self._look_again_later(_LONGEST_PAUSE_IN_TROUBLE_S)
            return []
        ready: list[tuple[Event, bytes]] = []
        refused = self._follower.refused
        for stored in batch:
            ready += self._feed(stored.data, stored.headers)
            if self._follower.refused == refused:
                self._cursor = stored.sequence
        if self._follower.refused > refused:
            # What is missing may stand behind what there is no room for, which is read again.
            self._more = bool(ready)
        if not self._more:
            if self._follower.refused == refused:
                self._follower.caught_up()
            if self._blind_until == blind_until:
                self._blind_until = 0.0
                self._looks_due = max(0, self._looks_due - 1)
            self._look_again_later(_LONGEST_PAUSE_IN_TROUBLE_S)
        self._vain_looks = 0 if ready else self._vain_looks + 1
        if not ready and not self._more:
            await self._give_up_what_is_gone()
        return ready

    async def _give_up_what_is_gone(self) -> None:
        """All that is stored was read, and something is still missing: can it still turn up?"""
        follower = self._follower
        if follower.end_is_held or follower.misled:
            await self._end_of_patience()
        if not follower.waiting or self._vain_looks < _LOOKS_BEFORE_DOUBT:
            return
        try:
            first = await self._stored.first()
            if self._vain_looks % _LOOKS_BEFORE_DOUBT == 0:
                await self._look_for_result()
        except nats.errors.Error:
            return  # policy as in `_look`
        # Every run's first event is stored before any other is published.
        seq = 0 if first is None else _seq_of(first.data)
        if seq > follower.last + 1:
            raise EventsLost(
                f"the events {follower.last + 1} to {seq - 1} of run {self._message_id} are older"
                " than the stream keeps",
                first=follower.last + 1,
                last=seq - 1,
            )

    async def _look_at_the_end(self) -> list[tuple[Event, bytes]]:
        """The run is quiet: is what was last read the last that is stored?"""
        self._quiet_looks += 1
        try:
            last = await self._stored.last()
            if last is None or self._quiet_looks >= _LOOKS_BEFORE_DOUBT:
                await self._look_for_result()
                # Of the stream's leader: a replica may have the result before the events.
                last = await self._stored.newest()
        except nats.errors.ConnectionClosedError as error:
            raise ConnectionError("the connection to NATS is closed") from error
        except nats.errors.Error:
            # Policy as in `_look`.
            self._look_again_later(self._settings.longest_idle_check_s)
            return []
        self._look_again_later(self._settings.longest_idle_check_s)
        if last is None:
            self._raise_if_nothing_is_left()
            return []
        ready = self._feed(last.data, last.headers)
        if ready or last.sequence <= self._cursor or self._follower.done:
            return ready
        # Events that were published a second time stand behind later ones in the stream, so the
        # last one proves nothing when it is an old one; and of a run that was resumed it is none
        # of those that were read.
        if last.data != self._last_data or self._quiet_looks >= _LOOKS_BEFORE_DOUBT:
            return await self._look()
        return ready

    async def _look_for_result(self) -> None:
        if self._result is None:
            stored = await self._results.last()
            if stored is None:
                return
            self._result = decode_result(stored.data)
        if self._follower.last > 0:
            await self._end_of_patience()

    def _silence(self, timeout: float) -> ClientTimeout:
        what = f"no event of run {self._message_id} for {timeout:g} s"
        if self._follower.last or self._cursor:
            return ClientTimeout(what)
        return ClientTimeout(f"{what}: it waits in the queue, or there is no such run")

    def _raise_if_nothing_is_left(self) -> None:
        """A result, and no event: the run failed before its first event, or they are too old."""
        if self._result is None or self._follower.waiting:
            return
        if self._result.error is not None and self._result.last_seq == 0:
            raise error_from_wire(self._result.error, result=self._result)
        raise EventsLost(
            f"the events of run {self._message_id} are no longer stored; its result is",
            first=self._follower.last + 1,
        )

    async def _end_of_patience(self) -> None:
        """The run is over and events are missing: raise, once they had time to turn up. While the
        stream has no leader, nothing can."""
        now = self._now()
        if self._over_since is None or self._moved:
            self._over_since = now
        if now - self._over_since < self._settings.patience_s:
            return
        try:
            newest = await self._stored.newest()
        except nats.errors.Error:
            self._over_since = None
            return
        if newest is not None and newest.sequence > self._cursor and not self._follower.waiting:
            self._mailbox.overflowed = True  # what is read comes from a replica that is behind
            return
        first, last = self._follower.gap or (self._follower.last + 1, None)
        raise EventsLost(
            f"run {self._message_id} is over and its events from {first} on cannot be read",
            first=first,
            last=last,
        )


class ResultReader(_Reader):
    """The one result of a run; after `suspect` it asks the store before waiting."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        message_id: str,
        settings: ReadSettings,
    ) -> None:
        super().__init__(connection, RUN_RESULTS, result(namespace, message_id), settings)
        self._message_id = message_id
        self._contents = _contents(connection, namespace, settings)

    async def read(self, timeout: float) -> RunResult:
        """Wait for the result; `ClientTimeout` after `timeout` seconds, `StorageFailed` where it
        is kept elsewhere and cannot be had."""
        end = self._now() + timeout
        while True:
            message = self._mailbox.take()
            found = message if message is not None else await self._look_if_due()
            if found is not None:
                left = max(0.1, end - self._now())
                return await self._contents.result(found.data, found.headers, left)
            now = self._now()
            if now >= end:
                raise ClientTimeout(f"no result of run {self._message_id} within {timeout:g} s")
            await self._mailbox.wait(min(end, self._look_at) - now)

    async def _look_if_due(self) -> Stored | None:
        self._check_connection()
        if self._now() < self._look_at:
            return None
        try:
            stored = await self._stored.last()
        except nats.errors.ConnectionClosedError as error:
            raise ConnectionError("the connection to NATS is closed") from error
        except NotProvisioned:
            raise
        except nats.errors.Error:
            # Policy: the store cannot be read just now; look again later, within the timeout.
            stored = None
        if stored is not None:
            return stored
        self._pause = max(self._pause, self._settings.idle_check_s / 2)
        self._look_again_later(self._settings.longest_idle_check_s)
        return None


def _seq_of(data: bytes) -> int:
    try:
        return decode_event(data).seq
    except ValueError:
        return 0
