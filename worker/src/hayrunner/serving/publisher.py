"""Events on their way out: numbered, in order, on the fast path, and verified at the end.

An event is a core publish: subscribers get it without a log hop, and the stream captures it.
A capture can be lost (an outage, a leader change), so what was published is kept until the
stream is known to hold it. Doubles are harmless: consumers go by `seq`.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeGuard

from msgspec.structs import force_setattr, replace
from nats.aio.client import Client
from nats.errors import ConnectionClosedError, OutboundBufferLimitError
from nats.errors import Error as NatsError

from hayrunner.serving.blobs import PATIENCE_S, PAUSE_S, RunBlobs
from hayrunner.serving.connection import Link
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import PayloadTooLarge, RunError, StorageFailed
from hayrunner_contracts.events import ReasoningChunk, StreamEvent, TextChunk, ToolOutput
from hayrunner_contracts.references import event_stub

__all__ = ["EventPublisher", "Send"]

Send = Callable[..., Awaitable[None]]
"""Called with the subject and the bytes, and with `headers` where the event has any."""

_HIGH_WATER_BYTES = 1024 * 1024
_BURST = 32
_MERGE_PAST = 64
_MERGED_CHARACTERS = 16_000
_HELD_MOST = 1_000
_HELD_CHARACTERS_MOST = 2_000_000
_HELD_BY_ALL_MOST = 64_000_000
_POLL_S = 0.01
_PAYLOAD_MARGIN = 1_024


async def _nobody_asks() -> bool:
    return True


def _never() -> bool:
    return False


class EventPublisher:
    """Publishes events on one subject: an `EventSink`.

    While the connection is away or its buffer is full, events wait unnumbered; past a bound
    adjacent text is merged, and past a second one `emit` waits, so that the model is slowed
    down. What is too large for one message goes by `blobs`: its content is stored, then a stub
    published in its turn. `may_go_on` is asked after every outage, and where `overdue` says that
    others may have been given the run, before anything more is published; once it says no, nothing
    is published any more and `emit` waits to be cancelled.

    An event that is too large for anything, or whose content cannot be stored though NATS is
    there, is left out: `emit` or `flush` raises `PayloadTooLarge` or `StorageFailed`, once.
    """

    def __init__(
        self,
        nc: Client,
        link: Link,
        subject: str,
        *,
        first_seq: int = 1,
        may_go_on: Callable[[], Awaitable[bool]] = _nobody_asks,
        overdue: Callable[[], bool] = _never,
        send: Send | None = None,
        blobs: RunBlobs | None = None,
    ) -> None:
        self.subject = subject
        self._nc = nc
        self._link = link
        self._send: Send = nc.publish if send is None else send
        self._next = first_seq
        self._may_go_on = may_go_on
        self._overdue = overdue
        self._outages = link.outages
        self._burst = 0
        self._muted = False
        self._closed = False
        self._failure: RunError | None = None
        self._blobs = blobs
        self._first_is_large = False
        self._failing_since: float | None = None
        self._held: deque[StreamEvent] = deque()
        self._held_characters = 0
        self._space = asyncio.Event()
        self._release: asyncio.Task[None] | None = None
        self._limit = max(_PAYLOAD_MARGIN, nc.max_payload - _PAYLOAD_MARGIN)

    @property
    def last_seq(self) -> int:
        """The `seq` of the last event that was published, 0 before the first."""
        return self._next - 1

    async def emit(self, event: StreamEvent) -> None:
        """Publish, or hold, the event. It belongs to the publisher from here on."""
        self._raise_failure()
        if self._held or self._muted or not self._open():
            await self._hold(event)
            return
        await self._publish(event)
        self._burst += 1
        if self._burst >= _BURST:
            # A tight loop of publishes never yields, and nothing would be written to the socket.
            self._burst = 0
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until nothing is held any more."""
        while self._release is not None:
            await asyncio.shield(self._release)
        self._raise_failure()

    async def close(self) -> None:
        """Throw away what is held: the run is over here, or somebody else's. What a session
        that was left behind says later is dropped."""
        self._muted = self._closed = True
        if self._release is not None:
            self._release.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._release
        self._drop_held()

    def _keep(self, data: bytes, headers: dict[str, str] | None) -> None:
        """One event is about to be handed to the connection; what is to be kept is kept here."""

    def _take_back(self) -> None:
        """The event that was kept last was not taken by the connection."""

    async def _sent(self) -> None:
        """One event was handed to the connection."""

    def _open(self) -> bool:
        return (
            self._outages == self._link.outages
            and not self._overdue()
            and self._nc.is_connected
            and self._nc.pending_data_size < _HIGH_WATER_BYTES
        )

    async def _publish(self, event: StreamEvent) -> None:
        force_setattr(event, "seq", self._next)
        data = encode(event)
        if len(data) <= self._limit:
            await self._hand_over(event, data, None)
        elif _is_text(event):
            self._put_back(*_pieces(event, self._limit))
        elif self._blobs is None or len(data) > self._blobs.max_bytes:
            most = self._limit if self._blobs is None else self._blobs.max_bytes
            what = "the tool's output" if isinstance(event, ToolOutput) else "an event"
            raise PayloadTooLarge(f"{what} is larger than the {most} bytes that it may have")
        else:
            # Held while its content is stored, so that what is emitted meanwhile waits behind it.
            self._first_is_large = True
            self._put_back(event)

    async def _hand_over(
        self, event: StreamEvent, data: bytes, headers: dict[str, str] | None
    ) -> None:
        # Before the wait: the connection buffers first and may wait then, so an `emit` that is
        # cancelled has published all the same, and its number is used.
        self._next += 1
        self._keep(data, headers)
        try:
            if headers is None:
                await self._send(self.subject, data)
            else:
                await self._send(self.subject, data, headers=dict(headers))
        except (OutboundBufferLimitError, ConnectionClosedError):
            # The connection went away after the check. Nothing was taken: hold it, numbered anew.
            self._next -= 1
            self._take_back()
            self._put_back(event)
            return
        await self._sent()

    async def _publish_first_by_blob(self) -> None:
        """Store the content of the first event that is held, and publish its stub. Returns with
        the event still held where that failed and may be tried again."""
        event, blobs = self._held[0], self._blobs
        assert blobs is not None
        force_setattr(event, "seq", self._next)
        stub = encode(event_stub(event))
        if len(stub) > self._limit:
            raise PayloadTooLarge(f"not even a stub of an event fits into {self._limit} bytes")
        try:
            reference = await blobs.put(f"event.{self._next}", encode(event))
        except NatsError as error:
            await self._wait_for_store(error)
            return
        if not self._open() or self._held[0] is not event or event.seq != self._next:
            # It may be another worker's run by now: that is asked before anything is published.
            # Or an event that was being published came back, and stands before this one.
            return
        self._failing_since = None
        self._first_is_large = False
        self._take_first()
        await self._hand_over(event, stub, reference.headers)

    async def _wait_for_store(self, error: NatsError) -> None:
        now = time.monotonic()
        if not self._open():
            # Not the store: NATS is away, and its outage is waited for as any other.
            self._failing_since = None
            return
        self._failing_since = self._failing_since or now
        if now - self._failing_since > PATIENCE_S:
            raise StorageFailed(
                "an event was too large for one message, and could not be stored elsewhere"
            ) from error
        await asyncio.sleep(PAUSE_S)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _put_back(self, *events: StreamEvent) -> None:
        self._held.extendleft(reversed(events))
        self._weigh(sum(map(_weight, events)))
        self._start_release()

    def _take_first(self) -> StreamEvent:
        event = self._held.popleft()
        self._weigh(-_weight(event))
        return event

    async def _hold(self, event: StreamEvent) -> None:
        if self._closed:
            return
        if self._muted:
            await asyncio.Event().wait()
        last = self._held[-1] if len(self._held) >= _MERGE_PAST else None
        self._weigh(_weight(event))
        if _is_text(event) and _is_text(last) and _mergeable(last, event):
            self._held[-1] = replace(last, content=last.content + event.content)
        else:
            self._held.append(event)
        self._start_release()
        # Held first, then waited: an `emit` that is cancelled here loses nothing.
        while self._held and self._holds_too_much():
            self._space.clear()
            await self._space.wait()

    def _holds_too_much(self) -> bool:
        return (
            len(self._held) >= _HELD_MOST
            or self._held_characters > _HELD_CHARACTERS_MOST
            or self._link.held_characters > _HELD_BY_ALL_MOST
        )

    def _weigh(self, characters: int) -> None:
        self._held_characters += characters
        self._link.held_characters += characters

    def _drop_held(self) -> None:
        self._held.clear()
        self._weigh(-self._held_characters)

    def _start_release(self) -> None:
        if self._release is None or self._release.done():
            self._release = asyncio.create_task(self._let_go(), name=f"release {self.subject}")

    async def _let_go(self) -> None:
        """Publish what is held, once the way is clear."""
        try:
            while self._held:
                if not await self._clear():
                    self._muted = True
                    self._drop_held()
                    break
                while self._held and self._open():
                    await self._publish_first()
                self._space.set()
                await asyncio.sleep(0)
        finally:
            self._release = None
            self._space.set()

    async def _publish_first(self) -> None:
        try:
            if self._first_is_large:
                await self._publish_first_by_blob()
            else:
                await self._publish(self._take_first())
        except (PayloadTooLarge, StorageFailed) as error:
            # Told to the run by the next `emit` or `flush`: this task has nobody to tell.
            self._failure = self._failure or error
            if self._first_is_large:
                self._first_is_large, self._failing_since = False, None
                self._take_first()

    async def _clear(self) -> bool:
        """Wait for a connection with room; whether this run is still ours to speak for."""
        while True:
            if not self._nc.is_connected or self._nc.pending_data_size >= _HIGH_WATER_BYTES:
                # The client tells nobody when its buffer has room again.
                await asyncio.sleep(_POLL_S)
                continue
            if self._outages == self._link.outages and not self._overdue():
                return True
            outages = self._link.outages
            if not await self._may_go_on():
                return False
            self._outages = outages


def _is_text(event: StreamEvent | None) -> TypeGuard[TextChunk | ReasoningChunk]:
    return isinstance(event, TextChunk | ReasoningChunk)


def _mergeable(last: TextChunk | ReasoningChunk, event: TextChunk | ReasoningChunk) -> bool:
    return (
        type(last) is type(event)
        and last.step == event.step
        and len(last.content) + len(event.content) <= _MERGED_CHARACTERS
    )


def _weight(event: StreamEvent) -> int:
    return len(event.content) if _is_text(event) else len(encode(event))


def _pieces(event: TextChunk | ReasoningChunk, limit: int) -> list[TextChunk | ReasoningChunk]:
    """Text that is too large for one message, as several. Four bytes a character leave room for
    any escaping but the rarest."""
    size = max(1, limit // 8)
    text = event.content
    return [
        replace(event, content=text[start : start + size]) for start in range(0, len(text), size)
    ]
