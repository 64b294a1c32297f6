"""The events of a durable run: what `EventPublisher` does, and the proof that all are stored."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from hayrunner.serving.blobs import RunBlobs
from hayrunner.serving.claims import ClaimLost
from hayrunner.serving.connection import Link
from hayrunner.serving.publisher import EventPublisher, Send
from hayrunner.serving.stored import (
    StoredMessage,
    all_of,
    count_of,
    is_write_once_refusal,
    last_of,
    messages_of,
    store,
)
from hayrunner_contracts import headers, subjects
from hayrunner_contracts.codec import decode_event, encode
from hayrunner_contracts.events import (
    MessageStart,
    RunResumed,
    StreamEnd,
    StreamEvent,
    TextChunk,
)

__all__ = ["RunPublisher", "StoredRun", "read_stored_run"]

_NO_HEADERS: dict[str, str] = {}
_REFERENCE = (headers.BLOB, headers.BLOB_DIGEST)
_KEPT_EVENTS = 4_096
_KEPT_BYTES = 4 * 1024 * 1024
_CONFIRM_TRIES = 3
_ANEW_PATIENCE_S = 600.0
_AGAIN_S = 0.2
# Less than any election takes.
_ELECTION_S = 0.5
_LATE_S = 30.0
# Capture is asynchronous: how long to wait for a count to become full before reading it all.
_CAPTURE_WAITS_S = (0.0, 0.002, 0.005, 0.02, 0.1)


class _Seq(msgspec.Struct):
    seq: int
    type: str = ""


_SEQ = msgspec.json.Decoder(_Seq)


class _Said(msgspec.Struct, frozen=True, gc=False):
    """What was published as one event: the bytes, and the reference of a stub. A run keeps one for
    each of its events, and the garbage collector need not look at them."""

    data: bytes
    headers: dict[str, str] = _NO_HEADERS

    @classmethod
    def of(cls, data: bytes, sent_with: dict[str, str]) -> "_Said":
        """What the stream holds, without the headers that are not the event's."""
        reference = {name: sent_with[name] for name in _REFERENCE if name in sent_with}
        return cls(data, reference or _NO_HEADERS)

    def as_number(self, seq: int) -> "_Said":
        """The same, under another number. What it refers to keeps the old one: the message's
        counts."""
        event = msgspec.structs.replace(decode_event(self.data), seq=seq)
        return _Said(encode(event), self.headers)


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """What the stream holds of a run that another attempt left behind."""

    count: int
    last_seq: int
    last_type: str
    last_sequence: int = 0
    """Of the last message, in the stream."""
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
        return StoredRun(
            count=count, last_seq=head.seq, last_type=head.type, last_sequence=last.sequence
        )
    stored = await all_of(nc, js, subjects.RUN_EVENTS, subject)
    heads = [_SEQ.decode(message.data) for message in stored]
    found = [one.seq for one in heads]
    last_seq = max(found)
    gaps = sorted(set(range(min(found), last_seq)) - set(found))
    return StoredRun(
        count=len(found),
        last_seq=last_seq,
        # A stale worker's words may stand behind it.
        last_type="stream_end" if any(one.type == "stream_end" for one in heads) else head.type,
        last_sequence=last.sequence,
        gaps=tuple(gaps),
    )


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
        overdue: Callable[[], bool] | None = None,
        on_repair: Callable[[int], None] | None = None,
        on_stored: Callable[[float], None] | None = None,
        send: Send | None = None,
        blobs: RunBlobs | None = None,
    ) -> None:
        more: dict[str, Any] = {} if may_go_on is None else {"may_go_on": may_go_on}
        if overdue is not None:
            more["overdue"] = overdue
        super().__init__(
            nc,
            link,
            subjects.events(namespace, message_id),
            first_seq=1 if stored is None else stored.last_seq + 1,
            send=send,
            blobs=blobs,
            **more,
        )
        self._js = js
        self._message_id = message_id
        self._on_repair = on_repair
        self._on_stored = on_stored
        self._attempt = 1
        self._counted = 0
        """How many messages the subject has to hold."""
        self._last_seen = 0
        """The last message of another attempt, by its sequence in the stream; 0 for none."""
        self._go_on_after(stored)
        self._from_sequence = 1
        self._kept: list[_Said] = []
        self._kept_from = 1
        self._kept_bytes = 0
        self._shown_at = float("inf")
        """When all events were shown to be stored first, on the monotonic clock."""

    def _go_on_after(self, stored: StoredRun | None) -> None:
        self._stored = stored
        if stored is not None:
            self._next = stored.last_seq + 1
            self._counted = stored.count
            self._last_seen = stored.last_sequence

    @property
    def kept(self) -> int:
        """How many events are kept because the stream may lack them."""
        return len(self._kept)

    async def begin(
        self,
        *,
        agent: str,
        thread_id: str | None,
        attempt: int,
        patience_s: float,
        discard_after: int = 1,
    ) -> None:
        """The first event, stored when this returns: `message_start`, or `run_resumed` where an
        earlier attempt had begun, whose events after `discard_after` are void.
        `nats.errors.Error` where it cannot be stored."""
        self._attempt = attempt
        while True:
            if self._stored is None:
                event: StreamEvent = MessageStart(
                    message_id=self._message_id, agent=agent, thread_id=thread_id, attempt=attempt
                )
            else:
                await self._fill_gaps(self._stored.gaps, patience_s)
                event = RunResumed(attempt=attempt, discard_after=discard_after)
            mark, after = f"start.{attempt}", self._last_seen
            if await self._publish_acked(event, mark=mark, after=after, patience_s=patience_s):
                return
            # Another attempt spoke meanwhile: an earlier one that is not dead, or a later one.
            if not await self._may_go_on():
                raise ClaimLost
            self._go_on_after(await read_stored_run(self._nc, self._js, self.subject))

    async def verify(self, *, patience_s: float, keep: bool = False) -> None:
        """Return once the stream holds every event published so far; what it lacks is published
        again, in order. With `keep`, all of it is looked for once more by the next one.

        `ClaimLost` where events were thrown away because another worker has the run;
        `nats.errors.Error` or `TimeoutError` when `patience_s` is over.
        """
        end = time.monotonic() + patience_s
        await asyncio.wait_for(self.flush(), patience_s)
        if self._muted or (self._overdue() and not await self._may_go_on()):
            raise ClaimLost
        while True:
            try:
                if await self._all_counted() or await self._repair():
                    break
            except NatsError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(_AGAIN_S)
        if keep:
            self._shown_at = min(self._shown_at, time.monotonic())
        else:
            self._kept.clear()
            self._kept_bytes = 0
            self._kept_from = self._next

    async def end(self, *, patience_s: float) -> None:
        """`stream_end`, stored when this returns. Nothing can be published after it."""
        while True:
            # Nothing of another attempt may come between the last look and the end.
            last = await self._last(patience_s)
            await self.verify(patience_s=patience_s, keep=True)
            after = 0 if last is None else last.sequence
            if await self._publish_acked(
                StreamEnd(attempt=self._attempt), mark="end", after=after, patience_s=patience_s
            ):
                break
        self._muted = True
        if time.monotonic() - self._shown_at > _ELECTION_S:
            await self._fill_in()

    async def _fill_in(self) -> None:
        """The end took as long as the stream may have needed for another leader, and that one was
        seen to lack what its predecessor had counted. Readers hold the end until it is there."""
        try:
            if await self._all_counted():
                return
            found = await all_of(self._nc, self._js, subjects.RUN_EVENTS, self.subject)
            stored = {_SEQ.decode(message.data).seq for message in found}
            for seq, ours in enumerate(self._kept, start=self._kept_from):
                if seq not in stored:
                    sent_with = {**ours.headers, headers.MSG_ID: f"{self._message_id}.late.{seq}"}
                    await store(
                        self._js, self.subject, ours.data, headers=sent_with, patience_s=_LATE_S
                    )
        except NatsError:
            # The run is over, and what is missing most likely nothing.
            return

    async def _publish_acked(
        self, event: StreamEvent, *, mark: str, after: int, patience_s: float
    ) -> bool:
        """Whether the event was stored, as the next one of its subject after the message `after`
        of the stream."""
        data = encode(msgspec.structs.replace(event, seq=self._next))
        sent_with = {
            headers.MSG_ID: f"{self._message_id}.{mark}",
            headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(after),
        }
        began = time.monotonic()
        try:
            ack = await store(
                self._js, self.subject, data, headers=sent_with, patience_s=patience_s
            )
            sequence = ack.seq
        except APIError as error:
            if not is_write_once_refusal(error):
                raise
            # The server looks at this before it looks for doubles: an earlier try of this
            # publish, whose answer was lost, is refused by itself.
            last = await self._last(patience_s)
            if last is None or last.data != data:
                return False
            sequence = last.sequence
        if self._on_stored is not None:
            self._on_stored(time.monotonic() - began)
        if not self._counted:
            self._from_sequence = sequence
        self._next += 1
        self._counted += 1
        if not self._kept:
            self._kept_from = self._next
        return True

    async def _last(self, patience_s: float) -> StoredMessage | None:
        """The last message that is stored; while the stream has no leader, nobody knows."""
        end = time.monotonic() + patience_s
        while True:
            try:
                return await last_of(self._js, subjects.RUN_EVENTS, self.subject)
            except NatsError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(_AGAIN_S)

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

    def _keep(self, data: bytes, headers: dict[str, str] | None) -> None:
        if not self._kept:
            self._kept_from = self._next - 1
        self._kept.append(_Said(data, headers or _NO_HEADERS))
        self._kept_bytes += len(data)
        self._counted += 1

    def _take_back(self) -> None:
        self._kept_bytes -= len(self._kept.pop().data)
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
        except ClaimLost:
            # The run is being cancelled here; until then nothing more is said.
            self._muted = True
            await asyncio.Event().wait()
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
        """Publish again what the stream lacks; whether it lacked nothing. `ClaimLost` where that
        is another worker's to do."""
        # Before reading: what a stale worker says after it is more than was counted, and is found
        # by the next look.
        count = await count_of(self._js, subjects.RUN_EVENTS, self.subject)
        stored: dict[int, _Said] = {}
        async for message in messages_of(
            self._nc, subjects.RUN_EVENTS, self.subject, start=self._from_sequence
        ):
            # Consumers go by the first one of a number.
            said = _Said.of(message.data, message.headers)
            stored.setdefault(_SEQ.decode(message.data).seq, said)
        # What is older than the oldest one stored was not lost, it went by age.
        oldest = min(stored, default=0)
        kept = list(enumerate(self._kept, start=self._kept_from))
        foreign = any(stored.get(seq, ours) != ours for seq, ours in kept)
        foreign = foreign or max(stored, default=0) >= self._next
        missing = [(seq, ours) for seq, ours in kept if seq not in stored and seq > oldest]
        if (foreign or missing) and not await self._may_go_on():
            # Not the other one is stale, this one is.
            raise ClaimLost
        if foreign:
            await self._say_again(stored, count)
            return False
        for seq, ours in missing:
            await store(
                self._js,
                self.subject,
                ours.data,
                headers={**ours.headers, headers.MSG_ID: f"{self._message_id}.again.{seq}"},
                patience_s=0,
            )
        if missing:
            if self._on_repair is not None:
                self._on_repair(len(missing))
            return False
        # Doubles may be stored: from here on they are part of the count.
        self._counted = count
        return True

    async def _say_again(self, stored: dict[int, "_Said"], count: int) -> None:
        """An earlier attempt, stopped and woken again, spoke under our numbers: what came since
        the last look is void, and what is kept of it is told anew, under numbers of its own.
        `count` is how many messages the subject had by then."""
        self._counted = count
        void_after = self._kept_from - 1
        top = max(self._next - 1, *stored)
        await self._fill_gaps(
            tuple(seq for seq in range(self._kept_from, top + 1) if seq not in stored), 0
        )
        resumed = RunResumed(seq=top + 1, attempt=self._attempt, discard_after=void_after)
        again = [_Said(encode(resumed)), *self._kept]
        self._kept = [ours.as_number(seq) for seq, ours in enumerate(again, start=top + 1)]
        self._kept_from = top + 1
        self._next = top + 1 + len(self._kept)
        for seq, ours in enumerate(self._kept, start=self._kept_from):
            await store(
                self._js,
                self.subject,
                ours.data,
                headers={
                    **ours.headers,
                    headers.MSG_ID: f"{self._message_id}.anew.{self._attempt}.{seq}",
                },
                patience_s=_ANEW_PATIENCE_S,
            )
        self._counted += len(self._kept)
