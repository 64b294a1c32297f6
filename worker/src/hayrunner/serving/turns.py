"""Turns: which run has a thread, by compare-and-set in the bucket `RUNS`.

A record under the thread's own key names the run. It has no expiry: it holds for as long as the
run does. The run is gone, and its turn anybody's, when it has no claim, or a closed one, and the
worker that took the turn, asked, does not know of it. So a run that was taken over by another
worker still has its turn, and a direct run, which has no claim, has it while its worker lives.

Runs of one worker that wait for the same thread stand in line, and only the first of them looks;
where it finds that the turn is that of a run behind it (an earlier attempt took it), it lets that
one go first.
A waiting run has no slot: the run it waits for may need one to go on.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from hayrunner.adapters.cancellation import raise_if_cancelled
from hayrunner.errors import StorageError
from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import Claims, is_final
from hayrunner.serving.holdings import Holdings, ask_holder
from hayrunner.serving.slots import Slots
from hayrunner.telemetry.logs import cause_of, get_logger
from hayrunner_contracts import subjects
from hayrunner_contracts.errors import BusyThread

__all__ = ["Turn", "Turns"]

_log = get_logger(__name__)

_WAITING_MOST = 1_000
_LOOK_AGAIN_S = 1.0
_LOST_RACE_S = 0.005
_RELEASE_LIMIT_S = 1.0


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the bucket holds of a thread. `taken_at` is seconds since the epoch."""

    message_id: str
    worker: str
    taken_at: float


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TurnRecord)


@dataclass(kw_only=True)
class Turns:
    """The turns of one namespace, as one worker sees them."""

    bus: Bus
    bucket: KeyValue
    claims: Claims
    holdings: Holdings
    slots: Slots
    waiting: int = 0
    """Runs here that wait for a thread."""
    _lines: WeakValueDictionary[str, "Line"] = field(
        default_factory=WeakValueDictionary[str, "Line"]
    )

    def turn(self, thread_id: str, message_id: str) -> "Turn":
        """The turn of a run on a thread, not taken yet."""
        return Turn(self, subjects.thread_lock_key(self.bus.namespace, thread_id), message_id)

    def line(self, key: str) -> "Line":
        """Where the runs of this worker wait that want the thread."""
        return self._lines.setdefault(key, Line())

    async def gone(self, record: TurnRecord) -> bool:
        """Whether the run that has a turn is no more."""
        found = await self.claims.find(record.message_id)
        if found is not None and not is_final(found[0].status):
            return False
        key = self.claims.key(record.message_id)
        if record.worker == self.claims.worker:
            return not self.holdings.holds(key)
        return not await ask_holder(self.bus.nc, self.bus.link, record.worker, key)


class Line:
    """The runs of one worker that wait for one thread, in the order in which they came."""

    def __init__(self) -> None:
        self._standing: list[tuple[str, asyncio.Event]] = []

    @property
    def empty(self) -> bool:
        return not self._standing

    @contextlib.asynccontextmanager
    async def stand(self, message_id: str) -> AsyncGenerator[None]:
        """Enter when the run is the first, or is called; others are let in after this one."""
        place = (message_id, asyncio.Event())
        self._standing.append(place)
        self._standing[0][1].set()
        try:
            await place[1].wait()
            yield
        finally:
            self._standing.remove(place)
            if self._standing:
                self._standing[0][1].set()

    def call(self, message_id: str) -> None:
        """Let a run go first that stands here."""
        for standing, called in self._standing:
            if standing == message_id:
                called.set()


class Turn:
    """A `ThreadTurn` of a run on this worker."""

    def __init__(self, turns: Turns, key: str, message_id: str) -> None:
        self._turns = turns
        self._key = key
        self._message_id = message_id
        self._line = turns.line(key)
        self._revision = 0

    async def take(self, *, wait: bool) -> None:
        """See `ThreadTurn`. Waits for as long as the other run takes; the run's own deadline ends
        that. `BusyThread` too where too many runs wait here already."""
        turns = self._turns
        try:
            # Those that wait come first, but for the run that they wait for.
            if await self._tried(only_own=not self._line.empty):
                return
        except NatsError as error:
            if not wait:
                raise StorageError("it cannot be known whether the thread is busy") from error
        if not wait:
            raise BusyThread("another run uses this thread; try again when it is done")
        if turns.waiting >= _WAITING_MOST:
            raise BusyThread("too many runs wait for busy threads here; try again later")
        turns.waiting += 1
        try:
            async with turns.slots.aside(), self._line.stand(self._message_id):
                await self._wait()
        finally:
            turns.waiting -= 1

    async def release(self, *, over: bool) -> None:
        """See `ThreadTurn`. Where it cannot be told to NATS, the closed claim tells it later."""
        revision, self._revision = self._revision, 0
        if not over or not revision:
            return
        try:
            async with asyncio.timeout(_RELEASE_LIMIT_S):
                await self._turns.bucket.delete(self._key, last=revision)
        except (NatsError, TimeoutError) as error:
            _log.info("a thread's turn was not given back", **cause_of(error))

    async def _wait(self) -> None:
        """Look whenever the record changes, and every second, for a run that died."""
        nc = self._turns.bus.nc
        changed = asyncio.Event()

        async def note(_: Msg) -> None:
            changed.set()

        subject = f"$KV.{subjects.RUNS_BUCKET}.{self._key}"
        subscription = await nc.subscribe(subject, cb=note)
        try:
            while True:
                changed.clear()
                # While NATS is away the run waits for that, too.
                with contextlib.suppress(NatsError):
                    if await self._tried():
                        return
                # Python 3.11's `wait_for`, which nats-py waits with, swallows a cancel that comes
                # together with an answer.
                raise_if_cancelled()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _LOOK_AGAIN_S)
        finally:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def _tried(self, *, only_own: bool = False) -> bool:
        """Whether the thread is this run's now; `only_own`: take it only where an earlier attempt
        at this run had it."""
        while True:
            record, revision = await self._found()
            if (record is None or record.message_id != self._message_id) and (
                only_own or (record is not None and not await self._turns.gone(record))
            ):
                if record is not None:
                    self._line.call(record.message_id)
                return False
            mine = TurnRecord(
                message_id=self._message_id, worker=self._turns.claims.worker, taken_at=time.time()
            )
            try:
                data = _ENCODER.encode(mine)
                self._revision = await self._turns.bucket.update(self._key, data, last=revision)
            except KeyWrongLastSequenceError:
                # Somebody was faster; it may have been an earlier try of this one.
                await asyncio.sleep(_LOST_RACE_S)
                continue
            return True

    async def _found(self) -> tuple[TurnRecord | None, int]:
        """The record and its revision; 0 for a key that was never written."""
        try:
            entry = await self._turns.bucket.get(self._key)
        except KeyNotFoundError as error:
            # A key that was deleted has an entry here: its marker's.
            return None, _revision_of(error.entry)
        return _DECODER.decode(entry.value or b""), _revision_of(entry)


def _revision_of(entry: KeyValue.Entry | None) -> int:
    return 0 if entry is None else entry.revision or 0
