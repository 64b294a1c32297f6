"""Claims: who runs what, in the key-value bucket `RUNS`, by compare-and-set.

The revision of the record is the fencing token: whoever holds the latest one holds the run.
JetStream has no fencing of its own (an ack of a stale delivery succeeds), so nothing final is
written before the claim was moved to `finishing` with the revision one holds.

    running --> finishing --> completed | failed | cancelled
       |            '--> (holder dies) --> running, attempt + 1, by another worker
       '--> waiting (handed back, or parked; the attempt is not counted) --> running

The run's last checkpoint is part of the record, so that keeping one is a fence like any other
write: a worker that lost its claim finds out before it runs another tool.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from hayrunner.telemetry.bus import attempt_traceparent
from hayrunner_contracts import subjects
from hayrunner_contracts.results import RunStatus

__all__ = [
    "Claim",
    "ClaimLost",
    "ClaimRecord",
    "ClaimStatus",
    "Claims",
    "KeptResult",
    "KeptStep",
    "Parked",
    "is_final",
]

ClaimStatus = Literal["running", "waiting", "finishing", "completed", "failed", "cancelled"]

_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 1.0
# Longer than a cluster takes to elect a leader, which is up to ten seconds.
_TAKE_PATIENCE_S = 15.0


# `Raw | None` cannot be decoded.
_NOTHING = msgspec.Raw(b"null")


class KeptStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint: its bytes, or the name of the object that has them; where there is a `tail`,
    the first `head` bytes of that object and the tail behind them. `seq` is the run's last event
    that belongs to it; all up to that one are stored."""

    seq: int
    step: int
    data: msgspec.Raw = _NOTHING
    blob: str | None = None
    head: int = 0
    tail: str | None = None


class KeptResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result that the run is going to have, whichever worker writes it: its bytes, or the
    name of the object that has them."""

    data: msgspec.Raw = _NOTHING
    blob: str | None = None


class Parked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the run goes on without a decision, None for never, and the sequence of the last
    command that it had seen."""

    wake_at: float | None = None
    commands_seen: int = 0


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the bucket holds of one run.

    `attempt` counts every try, `counted_attempts` those that were not handed back. `sequence`
    is the request's in `AGENT_REQUESTS`, `requested_at` when that took it first. `parked` is there
    while the run waits for a person. `trace` names the span of the last attempt that wrote here, as
    a `traceparent`. Times are seconds since the epoch.
    """

    status: ClaimStatus
    agent: str
    worker: str
    attempt: int
    counted_attempts: int
    sequence: int
    created_at: float
    updated_at: float
    requested_at: float = 0.0
    last_seq: int = 0
    kept: KeptStep | None = None
    outcome: KeptResult | None = None
    parked: Parked | None = None
    trace: str | None = None


_NO_MORE: dict[str, Any] = {"kept": None, "outcome": None, "parked": None}
"""What a record of a run that is over has no use for."""
T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ClaimRecord)


class ClaimLost(Exception):
    """Another worker took the run over. Say nothing more about it, and do not ack."""


def is_final(status: ClaimStatus) -> bool:
    return status in ("completed", "failed", "cancelled")


@dataclass
class Claim:
    """A run that this worker holds, until a write says otherwise."""

    key: str
    message_id: str
    record: ClaimRecord
    revision: int

    @property
    def attempt(self) -> int:
        return self.record.attempt


class Claims:
    """The claims of one namespace, as one worker sees them.

    Every write is safe to repeat: a write that timed out may have been stored, and is
    recognised as one's own by its bytes. `patience_s` bounds how long a write is tried while
    NATS is away; `nats.errors.Error` after that.
    """

    def __init__(self, bucket: KeyValue, *, namespace: str, worker: str) -> None:
        self._bucket = bucket
        self._namespace = namespace
        self.worker = worker

    def key(self, message_id: str) -> str:
        """The key of a run's claim."""
        return subjects.claim_key(self._namespace, message_id)

    async def find(self, message_id: str) -> tuple[ClaimRecord, int] | None:
        """The record and its revision, None where nobody claimed the run yet."""
        try:
            entry = await self._bucket.get(subjects.claim_key(self._namespace, message_id))
        except KeyNotFoundError:
            return None
        return _DECODER.decode(entry.value or b""), int(entry.revision or 0)

    async def find_patiently(self, message_id: str) -> tuple[ClaimRecord, int] | None:
        """`find`, tried for as long as a cluster takes to elect a leader."""
        return await _until(lambda: self.find(message_id), _TAKE_PATIENCE_S)

    async def create(
        self, message_id: str, *, agent: str, sequence: int, requested_at: float
    ) -> Claim | None:
        """Claim a run that nobody claimed; None where somebody was faster."""
        now = time.time()
        record = ClaimRecord(
            status="running",
            agent=agent,
            worker=self.worker,
            attempt=1,
            counted_attempts=1,
            sequence=sequence,
            created_at=now,
            updated_at=now,
            requested_at=requested_at,
        )
        return await self._take(message_id, record, revision=0)

    async def take_over(
        self, message_id: str, found: ClaimRecord, revision: int, *, sequence: int
    ) -> Claim | None:
        """Claim a run whose holder is gone; None where somebody was faster."""
        record = msgspec.structs.replace(
            found,
            status="running",
            worker=self.worker,
            attempt=found.attempt + 1,
            counted_attempts=found.counted_attempts + 1,
            sequence=sequence,
            updated_at=time.time(),
            parked=None,
        )
        return await self._take(message_id, record, revision=revision)

    async def touch(self, message_id: str, found: ClaimRecord, revision: int) -> bool:
        """Keep the record of a run that waits from going by age; False where somebody else wrote
        it meanwhile."""
        record = msgspec.structs.replace(found, updated_at=time.time())
        return await self._take(message_id, record, revision=revision) is not None

    async def still_held(self, claim: Claim) -> bool:
        """Whether nobody took the run over.

        Not by the revision: a write of this worker's own may be stored whose answer is still on
        its way, or was lost. Every takeover counts an attempt.
        """
        found = await self.find(claim.message_id)
        return found is not None and _same_holder(found[0], claim.record)

    async def keep(self, claim: Claim, step: KeptStep, *, patience_s: float) -> None:
        """The run's checkpoint from now on; `ClaimLost` where the run is another worker's."""
        await self._move(claim, "running", patience_s=patience_s, kept=step)

    async def park(self, claim: Claim, parked: Parked, *, patience_s: float) -> None:
        """The run waits for a person, on no worker; this try is not counted."""
        counted = max(0, claim.record.counted_attempts - 1)
        await self._move(
            claim, "waiting", patience_s=patience_s, parked=parked, counted_attempts=counted
        )

    async def finishing(self, claim: Claim, outcome: KeptResult, *, patience_s: float) -> None:
        """The run has this outcome, and this worker writes it; `ClaimLost` where it may not."""
        await self._move(claim, "finishing", patience_s=patience_s, outcome=outcome)

    async def close(
        self, claim: Claim, status: RunStatus, *, last_seq: int, patience_s: float
    ) -> None:
        """The result and the last event are stored."""
        await self._move(claim, status, patience_s=patience_s, last_seq=last_seq, **_NO_MORE)

    async def hand_back(self, claim: Claim, *, patience_s: float) -> None:
        """This worker goes away: the next one may start at once, and this try is not counted."""
        counted = max(0, claim.record.counted_attempts - 1)
        await self._move(claim, "waiting", patience_s=patience_s, counted_attempts=counted)

    async def _move(
        self, claim: Claim, status: ClaimStatus, *, patience_s: float, **changes: Any
    ) -> None:
        trace = attempt_traceparent() or claim.record.trace
        record = msgspec.structs.replace(
            claim.record, status=status, updated_at=time.time(), trace=trace, **changes
        )
        data = _ENCODER.encode(record)

        async def write() -> int:
            try:
                return await self._write(claim.key, data, claim.revision)
            except ClaimLost:
                # Or a write of this worker's own came between, whose task was cancelled before
                # it heard of it.
                claim.revision = await self._own_revision(claim)
                return await self._write(claim.key, data, claim.revision)

        claim.revision = await _until(write, patience_s)
        claim.record = record

    async def _own_revision(self, claim: Claim) -> int:
        found = await self.find(claim.message_id)
        if found is None or not _same_holder(found[0], claim.record):
            raise ClaimLost from None
        return found[1]

    async def _take(self, message_id: str, record: ClaimRecord, *, revision: int) -> Claim | None:
        key = subjects.claim_key(self._namespace, message_id)
        data = _ENCODER.encode(record)
        try:
            # Tried again here, with the same bytes: a record that a lost answer left behind would
            # look like another attempt's, and a request that is put back while the cluster has no
            # leader comes again only after `ack_wait`.
            written = await _until(lambda: self._write(key, data, revision), _TAKE_PATIENCE_S)
        except ClaimLost:
            return None
        return Claim(key=key, message_id=message_id, record=record, revision=written)

    async def _write(self, key: str, data: bytes, revision: int) -> int:
        try:
            if revision == 0:
                return await self._bucket.create(key, data)
            return await self._bucket.update(key, data, last=revision)
        except KeyWrongLastSequenceError:
            entry = await self._bucket.get(key)
            if entry.value == data:
                # An earlier try of this write was stored, and only its answer was lost.
                return int(entry.revision or 0)
            raise ClaimLost from None


def _same_holder(found: ClaimRecord, own: ClaimRecord) -> bool:
    return (found.worker, found.attempt) == (own.worker, own.attempt)


async def _until(write: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Try until it works or `patience_s` seconds are over."""
    end = time.monotonic() + patience_s
    wait = _RETRY_FIRST_S
    while True:
        try:
            return await write()
        except (NatsError, APIError):
            if time.monotonic() + wait > end:
                raise
        await asyncio.sleep(wait)
        wait = min(wait * 2, _RETRY_MOST_S)
