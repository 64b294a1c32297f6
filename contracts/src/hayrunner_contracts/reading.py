"""Reading one run over NATS: live events, healed from the stream, and the one result.

A live subscriber can miss events: while it reconnects, while it is slower than the run, or because
it came late. Whatever the reason, the follower sees a gap, or the run goes quiet, and what is
missing is read from the stream.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Self

import msgspec
import nats.errors
from nats.aio.client import Client as Connection
from nats.aio.subscription import Subscription

from hayrunner_contracts.codec import decode_event, decode_result
from hayrunner_contracts.contents import MAX_READ_BYTES, Contents, EventContents
from hayrunner_contracts.errors import ClientTimeout, error_from_wire
from hayrunner_contracts.following import Event, EventFollower, EventsLost
from hayrunner_contracts.mailbox import Mailbox
from hayrunner_contracts.replay import JETSTREAM_API, NotProvisioned, Stored, StoredSubject
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import RUN_EVENTS, RUN_RESULTS, events, result

__all__ = ["EventReader", "ReadSettings", "ResultReader"]

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_IN_TROUBLE_S = 1.0
_DISCONNECTED_PAUSE_S = 0.5
_LOOKS_BEFORE_DOUBT = 3


class ReadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reads runs.

    `idle_check_s`: after so long without an event the store is asked whether one was missed;
    doubled at every look without a find, up to `longest_idle_check_s`. `buffer_events` and
    `buffer_bytes`: what one reader holds for a consumer that is slower than the run; the rest is
    read from the stream when the consumer gets there. `patience_s`: how long after the end of a
    run its missing events may still turn up. `api`: the prefix of the JetStream API.
    `max_blob_bytes`: what is sent or read of one message that is too large for NATS.
    """

    idle_check_s: float = 2.0
    longest_idle_check_s: float = 10.0
    buffer_events: int = 10_000
    buffer_bytes: int = 16 * 1024 * 1024
    patience_s: float = 10.0
    api: str = JETSTREAM_API
    max_blob_bytes: int = MAX_READ_BYTES


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
        """Subscribed, and known to the server to be: what is published from now on arrives."""
        self._check_connection()
        self._subscription = await self._connection.subscribe(
            self._subject, cb=self._mailbox.deliver
        )
        try:
            await self._connection.flush()
        except nats.errors.TimeoutError:
            pass  # reconnecting: the subscription is repeated, and the store has what was missed
        self._look_at = self._now() + self._pause
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._subscription is None or self._connection.is_closed:
            return
        try:
            await self._subscription.unsubscribe()
        except nats.errors.Error:
            pass  # draining or closed just now: the subscription is gone either way

    def suspect(self) -> None:
        """Something may have been missed: look at the store right away."""
        self._look_at = 0.0
        self._pause = _FIRST_PAUSE_S
        self._mailbox.wake()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _check_connection(self) -> None:
        if self._connection.is_closed:
            raise ConnectionError("the connection to NATS is closed")
        reconnects = self._connection.stats["reconnects"]
        if reconnects != self._reconnects:
            self._reconnects = reconnects
            self._look_at = 0.0
            self._pause = _FIRST_PAUSE_S
        if not self._connection.is_connected:
            self._look_at = self._now() + _DISCONNECTED_PAUSE_S

    def _look_again_later(self, longest: float) -> None:
        self._pause = min(self._pause * 2, longest)
        self._look_at = self._now() + self._pause


class EventReader(_Reader):
    """The events of one run after sequence `after`, in order, each once, until `stream_end`."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        message_id: str,
        settings: ReadSettings,
        *,
        after: int = 0,
    ) -> None:
        super().__init__(connection, RUN_EVENTS, events(namespace, message_id), settings)
        self._message_id = message_id
        self._results = StoredSubject(
            connection, RUN_RESULTS, result(namespace, message_id), api=settings.api
        )
        self._follower = EventFollower(after, hold=settings.buffer_events)
        self._contents = EventContents(_contents(connection, namespace, settings))
        self._cursor = 0  # everything in the stream up to here was fed to the follower
        self._more = False  # there is more to read from the store at once
        self._in_trouble = False
        self._moved = True
        self._moved_at = 0.0
        self._quiet_looks = 0
        self._over_since: float | None = None
        self._result: RunResult | None = None

    def catch_up(self) -> None:
        """Read the store first: the run may have begun before the subscription."""
        self._more = True
        self.suspect()

    async def read(self, timeout: float) -> AsyncGenerator[Event, None]:
        """Yield the events.

        Raises `ClientTimeout` after `timeout` seconds without one, `EventsLost` when the run is
        over and some cannot be had any more, the run's error when it failed before its first
        event, `StorageFailed` when the content of one cannot be had, `ConnectionError` when the
        connection is closed.
        """
        follower, mailbox = self._follower, self._mailbox
        while not follower.done:
            if self._trouble_is_due():
                ready = await self._look()
            elif (message := mailbox.take()) is not None:
                ready = self._feed(message.data, message.headers)
            else:
                ready = await self._wait_or_look(timeout)
            for event in ready:
                yield await self._contents.whole(event, timeout)
            if ready:
                self._moved = True

    def _feed(self, data: bytes, headers: Mapping[str, str] | None) -> list[Event]:
        try:
            event = decode_event(data)
        except ValueError:
            return []  # no event: somebody else's message. A missing event shows as a gap.
        self._contents.note(event, headers, after=self._follower.last)
        return self._follower.feed(event)

    def _trouble_is_due(self) -> bool:
        """Whether something is known to be missing, and it is time to look for it."""
        if self._more:
            return True
        if not (self._follower.waiting or self._mailbox.overflowed):
            self._in_trouble = False
            return False
        now = self._now()
        if not self._in_trouble:
            self._in_trouble = True
            self._look_at = now
            self._pause = _FIRST_PAUSE_S
        return now >= self._look_at and self._connection.is_connected

    async def _wait_or_look(self, timeout: float) -> list[Event]:
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
            raise ClientTimeout(f"no event of run {self._message_id} for {timeout:g} s")
        if now >= self._look_at:
            return await self._look_at_the_end()
        await self._mailbox.wait(min(left, self._look_at - now))
        return []

    async def _look(self) -> list[Event]:
        """The next stored messages, fed to the follower."""
        # Before reading: what is dropped from here on is a reason to look again.
        overflowed, self._mailbox.overflowed = self._mailbox.overflowed, False
        try:
            batch, self._more = await self._stored.after(self._cursor)
        except nats.errors.ConnectionClosedError as error:
            raise ConnectionError("the connection to NATS is closed") from error
        except nats.errors.Error:
            # Policy: the store cannot be read just now; look again later, within the timeout.
            self._mailbox.overflowed, self._more = overflowed, False
            self._look_again_later(_LONGEST_PAUSE_IN_TROUBLE_S)
            return []
        ready: list[Event] = []
        for stored in batch:
            refused = self._follower.refused
            ready += self._feed(stored.data, stored.headers)
            if self._follower.refused > refused:
                self._more = False
                break
            self._cursor = stored.sequence
        if not self._more:
            self._look_again_later(_LONGEST_PAUSE_IN_TROUBLE_S)
        if not ready and self._follower.end_is_held:
            self._end_of_patience()
        return ready

    async def _look_at_the_end(self) -> list[Event]:
        """The run is quiet: is what was last read the last that is stored?"""
        self._quiet_looks += 1
        try:
            last = await self._stored.last()
            if last is None or self._quiet_looks >= _LOOKS_BEFORE_DOUBT:
                await self._look_for_result()
                last = await self._stored.last()
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
        if ready or last.sequence <= self._cursor:
            return ready
        # Events that were published a second time stand behind later ones in the stream, so the
        # last one proves nothing when it is an old one.
        if self._quiet_looks >= _LOOKS_BEFORE_DOUBT and not self._follower.done:
            return await self._look()
        return ready

    async def _look_for_result(self) -> None:
        if self._result is None:
            stored = await self._results.last()
            if stored is None:
                return
            self._result = decode_result(stored.data)
        if self._follower.last > 0:
            self._end_of_patience()

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

    def _end_of_patience(self) -> None:
        """The run is over and events are missing: raise, once they had time to turn up."""
        now = self._now()
        if self._over_since is None or self._moved:
            self._over_since = now
        if now - self._over_since < self._settings.patience_s:
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
