"""The events of a durable run: what `EventPublisher` does, and the proof that all are stored."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from hayrunner.serving.connection import Link
from hayrunner.serving.publisher import EventPublisher, Send
from hayrunner.serving.stored import count_of, last_of, messages_of, store
from hayrunner_contracts import headers, subjects
from hayrunner_contracts.codec import encode
from hayrunner_contracts.events import (
    MessageStart,
    RunResumed,
    StreamEnd,
    StreamEvent,
    TextChunk,
)

__all__ = ["RunPublisher", "StoredRun", "read_stored_run"]

_KEPT_EVENTS = 4_096
_KEPT_BYTES = 4 * 1024 * 1024
_CONFIRM_TRIES = 3
# Capture is asynchronous: how long to wait for a count to become full before reading it all.
_CAPTURE_WAITS_S = (0.0, 0.002, 0.005, 0.02, 0.1)


class _Seq(msgspec.Struct):
    seq: int
    type: str = ""


_SEQ = msgspec.json.Decoder(_Seq)


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """What the stream holds of a run that another attempt left behind."""

    count: int
    last_seq: int
    last_type: str
    gaps: tuple[int, ...] = ()

    @property
    def ended(self) -> bool:
        return self.last_type == "stream_end"


async def read_stored_run(nc: Client, js: JetStreamContext, subject: str) -> StoredRun | None:
    """The state of a run's events, None where none is stored.

    Everything is read only where count and last number do not fit together.
    """
    last = await last_of(js, subjects.RUN_EVENTS, subject)
    if last is None:
        return None
    head = _SEQ.decode(last.data)
    count = await count_of(js, subjects.RUN_EVENTS, subject)
    if count == head.seq:
        return StoredRun(count=count, last_seq=head.seq, last_type=head.type)
    found = [
        _SEQ.decode(message.data).seq
        async for message in messages_of(nc, subjects.RUN_EVENTS, subject)
    ]
    last_seq = max(found)
    gaps = sorted(set(range(min(found), last_seq)) - set(found))
    return StoredRun(count=len(found), last_seq=last_seq, last_type=head.type, gaps=tuple(gaps))


class RunPublisher(EventPublisher):
    """The events of one attempt at a durable run.

    `begin` first, `verify` and `end` last. `stored` is what an earlier attempt left: `seq` goes
    on after it.
    """

    def __init__(
        self,
        nc: Client,
        js: JetStreamContext,
        link: Link,
        *,
        namespace: str,
        message_id: str,
        stored: StoredRun | None = None,
        may_go_on: Callable[[], Awaitable[bool]] | None = None,
        on_repair: Callable[[int], None] | None = None,
        on_stored: Callable[[float], None] | None = None,
        send: Send | None = None,
    ) -> None:
        more = {} if may_go_on is None else {"may_go_on": may_go_on}
        super().__init__(
            nc,
            link,
            subjects.events(namespace, message_id),
            first_seq=1 if stored is None else stored.last_seq + 1,
            send=send,
            **more,
        )
        self._js = js
        self._message_id = message_id
        self._stored = stored
        self._on_repair = on_repair
        self._on_stored = on_stored
        self._counted = 0 if stored is None else stored.count
        """How many messages the subject has to hold."""
        self._from_sequence = 1
        self._kept: list[bytes] = []
        self._kept_from = 1
        self._kept_bytes = 0

    @property
    def kept(self) -> int:
        """How many events are kept because the stream may lack them."""
        return len(self._kept)

    async def begin(
        self, *, agent: str, thread_id: str | None, attempt: int, patience_s: float
    ) -> None:
        """The first event, stored when this returns: `message_start`, or `run_resumed` where an
        earlier attempt had begun. `nats.errors.Error` where it cannot be stored."""
        if self._stored is None:
            event: StreamEvent = MessageStart(
                message_id=self._message_id, agent=agent, thread_id=thread_id, attempt=attempt
            )
        else:
            await self._fill_gaps(self._stored.gaps, patience_s)
            # The run starts over: everything after `message_start` is void.
            event = RunResumed(attempt=attempt, discard_after=1)
        await self._publish_acked(event, mark=f"start.{attempt}", patience_s=patience_s)

    async def verify(self, *, patience_s: float) -> None:
        """Return once the stream holds every event published so far; what it lacks is published
        again, in order. `nats.errors.Error` or `TimeoutError` when `patience_s` is over."""
        end = time.monotonic() + patience_s
        await asyncio.wait_for(self.flush(), patience_s)
        while True:
            try:
                if await self._all_counted() or await self._repair():
                    break
            except NatsError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.2)
        self._kept.clear()
        self._kept_bytes = 0
        self._kept_from = self._next

    async def end(self, *, patience_s: float) -> None:
        """`stream_end`, stored when this returns. Nothing can be published after it."""
        await self._publish_acked(StreamEnd(), mark="end", patience_s=patience_s)
        self._muted = True

    async def _publish_acked(self, event: StreamEvent, *, mark: str, patience_s: float) -> None:
        event = msgspec.structs.replace(event, seq=self._next)
        began = time.monotonic()
        ack = await store(
            self._js,
            self.subject,
            encode(event),
            headers={headers.MSG_ID: f"{self._message_id}.{mark}"},
            patience_s=patience_s,
        )
        if self._on_stored is not None:
            self._on_stored(time.monotonic() - began)
        if not self._counted:
            self._from_sequence = ack.seq
        self._next += 1
        self._counted += 1
        self._kept_from = self._next

    async def _fill_gaps(self, gaps: tuple[int, ...], patience_s: float) -> None:
        """Events that died with the other worker: void, but a consumer counts them."""
        for seq in gaps:
            await store(
                self._js,
                self.subject,
                encode(TextChunk(seq=seq, content="")),
                headers={headers.MSG_ID: f"{self._message_id}.gap.{seq}"},
                patience_s=patience_s,
            )
            self._counted += 1

    def _keep(self, data: bytes) -> None:
        if not self._kept:
            self._kept_from = self._next - 1
        self._kept.append(data)
        self._kept_bytes += len(data)
        self._counted += 1

    def _take_back(self) -> None:
        self._kept_bytes -= len(self._kept.pop())
        self._counted -= 1

    async def _sent(self) -> None:
        if len(self._kept) >= _KEPT_EVENTS or self._kept_bytes >= _KEPT_BYTES:
            await self._confirm()

    async def _confirm(self) -> None:
        """Let go of what the stream holds already, so that a long run does not grow."""
        try:
            for _ in range(_CONFIRM_TRIES):
                if await self._all_counted() or await self._repair():
                    break
            else:
                return
        except NatsError:
            # NATS is away: try again with the next event; publishing will wait by then.
            return
        self._kept.clear()
        self._kept_bytes = 0

    async def _all_counted(self) -> bool:
        for wait in _CAPTURE_WAITS_S:
            await asyncio.sleep(wait)
            count = await count_of(self._js, subjects.RUN_EVENTS, self.subject)
            if count == self._counted:
                return True
            if count > self._counted:
                return False
        return False

    async def _repair(self) -> bool:
        """Publish again what the stream lacks; whether it lacked nothing."""
        found = [
            _SEQ.decode(message.data).seq
            async for message in messages_of(
                self._nc, subjects.RUN_EVENTS, self.subject, start=self._from_sequence
            )
        ]
        stored = set(found)
        # What is older than the oldest one stored was not lost, it went by age.
        oldest = min(stored, default=0)
        missing = [
            (seq, data)
            for seq, data in enumerate(self._kept, start=self._kept_from)
            if seq not in stored and seq > oldest
        ]
        for seq, data in missing:
            await store(
                self._js,
                self.subject,
                data,
                headers={headers.MSG_ID: f"{self._message_id}.again.{seq}"},
                patience_s=0,
            )
        if missing:
            if self._on_repair is not None:
                self._on_repair(len(missing))
            return False
        # Doubles may be stored: from here on they are part of the count.
        self._counted = await count_of(self._js, subjects.RUN_EVENTS, self.subject)
        return True
