"""One attempt at a durable run: begin, stream, exactly one end."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nats.errors import Error as NatsError

from hayrunner.adapters.outcome import RunOutcome, RunParked
from hayrunner.serving.blobs import Blobs
from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import Claim, ClaimLost, Claims, is_final
from hayrunner.serving.commands import CommandInbox
from hayrunner.serving.deliveries import Delivery
from hayrunner.serving.drive import Drive, FrameSink, Prepared, Stopper
from hayrunner.serving.endings import Endings, uninterrupted
from hayrunner.serving.holdings import HeldRun, Holdings
from hayrunner.serving.parking import Parking
from hayrunner.serving.results import RunFacts
from hayrunner.serving.run_events import RunPublisher, StoredRun, read_stored_run
from hayrunner.serving.steps import RunSteps, kept_bytes
from hayrunner.telemetry.bus import note_attempt_end, note_attempt_parked
from hayrunner.telemetry.log_fields import bind
from hayrunner.telemetry.logs import get_logger
from hayrunner.telemetry.metrics import Metrics
from hayrunner.telemetry.model_meter import counting
from hayrunner_contracts import subjects
from hayrunner_contracts.errors import RunFailure

__all__ = ["Execution", "PublisherFactory"]

_log = get_logger(__name__)

_BEGIN_PATIENCE_S = 10.0
_HAND_BACK_PATIENCE_S = 3.0

PublisherFactory = Callable[..., RunPublisher]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Runs claimed requests. One per worker."""

    bus: Bus
    claims: Claims
    holdings: Holdings
    metrics: Metrics
    parking: Parking
    endings: Endings
    blobs: Blobs
    park_after_s: float
    publisher: PublisherFactory = field(default=RunPublisher)

    async def run(self, claim: Claim, delivery: Delivery, facts: RunFacts, drive: Drive) -> None:
        """Run it and settle the delivery.

        A run that is parked is settled, too. Raises `ClaimLost` (nothing was said for this
        worker), `CancelledError` or `nats.errors.Error` (the claim was handed back; the delivery
        is for the caller).
        """
        await self._hold(claim, delivery, facts, drive=drive, outcome=None)

    async def refuse(
        self, claim: Claim, delivery: Delivery, facts: RunFacts, outcome: RunOutcome
    ) -> None:
        """End a run that will not be tried (again) and settle the delivery; raises as `run`."""
        await self._hold(claim, delivery, facts, drive=None, outcome=outcome)

    async def _hold(
        self,
        claim: Claim,
        delivery: Delivery,
        facts: RunFacts,
        *,
        drive: Drive | None,
        outcome: RunOutcome | None,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        held = HeldRun(claim=claim, delivery=delivery, end_here=lambda: _cancel(task))
        self.holdings.add(held)
        bind(message_id=facts.message_id, attempt=claim.attempt)
        _log.debug("attempt begun")
        started = time.time()
        # Later attempts do not start late for want of a worker.
        waited = started - delivery.requested_at if claim.attempt == 1 else None
        self.metrics.run_started(facts.agent, queue_wait_s=waited)
        try:
            with counting(self.metrics):
                await self._attempt(held, facts, drive, outcome)
        except asyncio.CancelledError:
            if held.lost:
                # This cancel was ours: the claim is gone, and there is nothing to hand back.
                task.uncancel()
                raise ClaimLost from None
            await self._hand_back(claim)
            raise
        except NatsError:
            await self._hand_back(claim)
            raise
        finally:
            self.holdings.remove(held)
            self.metrics.run_left(facts.agent, duration_s=time.time() - started)

    async def _attempt(
        self, held: HeldRun, facts: RunFacts, drive: Drive | None, outcome: RunOutcome | None
    ) -> None:
        stored = found = None
        if held.claim.attempt > 1:
            stored = await self._stored_events(held.claim)
            if await self._was_ended(held, stored):
                return
            if drive is not None:
                found = await kept_bytes(self.blobs, held.claim.record)
        publisher = self._publisher(held, stored)
        whole = drive is not None and drive.request.mode == "stream"
        sink = FrameSink(publisher, whole=whole)
        course = None if drive is None else self._course(held, drive, publisher, sink, found)
        try:
            await publisher.begin(
                agent=facts.agent,
                thread_id=facts.thread_id,
                attempt=held.claim.attempt,
                discard_after=_last_good(held.claim, course),
                patience_s=_BEGIN_PATIENCE_S,
            )
            if course is not None:
                outcome = await self._run(held, course)
            if outcome is None:
                return
            await sink.complete(outcome)
            await self._end(held, publisher, facts, outcome)
        finally:
            await publisher.close()

    async def _stored_events(self, claim: Claim) -> StoredRun | None:
        subject = subjects.events(self.bus.namespace, claim.message_id)
        stored = await read_stored_run(self.bus.nc, self.bus.js, subject)
        kept = claim.record.kept
        if stored is None and kept is not None:
            # Its events went by age while it was parked; their numbers are used all the same.
            stored = StoredRun(count=0, last_seq=kept.seq, last_type="")
        return stored

    def _course(
        self,
        held: HeldRun,
        drive: Drive,
        publisher: RunPublisher,
        sink: FrameSink,
        found: bytes | None,
    ) -> "_Course":
        stopper = Stopper()
        inbox = CommandInbox(
            self.bus,
            drive.message_id,
            on_cancel=lambda reason: stopper.stop("cancelled", reason),
            on_command=stopper.tell,
        )
        steps = RunSteps(
            claims=self.claims,
            blobs=self.blobs,
            held=held,
            publisher=publisher,
            inbox=inbox,
            still_held=lambda: self.holdings.still_held(held),
            found=found,
            park_after_s=self.park_after_s,
        )
        return _Course(
            stopper=stopper, inbox=inbox, steps=steps, prepared=drive.prepare(sink, steps)
        )

    async def _run(self, held: HeldRun, course: "_Course") -> RunOutcome | None:
        """How the run ended; None where it was parked."""
        try:
            await course.inbox.open(read_stored=True)
            return await course.prepared.run(course.stopper)
        except RunParked as parked:
            wake_at, seen = parked.wake_at, course.steps.commands_seen
        finally:
            await course.inbox.close()
            await course.steps.close()
            course.stopper.detach()
        note_attempt_parked()
        await uninterrupted(
            self.parking.park(held, wake_at=wake_at, commands_seen=seen), _nothing_more
        )
        return None

    async def _end(
        self, held: HeldRun, publisher: RunPublisher, facts: RunFacts, outcome: RunOutcome
    ) -> None:
        end = self.endings.write(held.claim, publisher, facts, outcome)
        result = await uninterrupted(end, held.delivery.ack)
        code = _code(result.error)
        self.metrics.run_ended(facts.agent, outcome=result.status, error_code=code)
        note_attempt_end(result.status, code)
        _log.info(
            "run ended",
            status=result.status,
            error_code=code,
            attempts=facts.attempts,
            model_calls=result.model_calls,
        )

    async def _was_ended(self, held: HeldRun, stored: StoredRun | None) -> bool:
        """Whether an earlier attempt has come to a result; what it left undone is done here."""
        result = await self.endings.found(held.claim)
        if result is None:
            return False
        note_attempt_end(result.status, _code(result.error))
        publisher = None
        if stored is not None and not stored.ended:
            publisher = self._publisher(held, stored)
        try:
            if publisher is not None and stored is not None and stored.last_seq >= result.last_seq:
                # The events were complete, and a worker that was taken for dead spoke after them.
                await publisher.begin(
                    agent=result.agent,
                    thread_id=result.thread_id,
                    attempt=held.claim.attempt,
                    discard_after=result.last_seq - 1,
                    patience_s=_BEGIN_PATIENCE_S,
                )
            rest = self.endings.complete(held.claim, publisher, result)
            await uninterrupted(rest, held.delivery.ack)
        finally:
            if publisher is not None:
                await publisher.close()
        return True

    def _publisher(self, held: HeldRun, stored: StoredRun | None) -> RunPublisher:
        async def may_go_on() -> bool:
            return await self.holdings.still_held(held)

        return self.publisher(
            self.bus.nc,
            self.bus.js,
            self.bus.link,
            namespace=self.bus.namespace,
            message_id=held.claim.message_id,
            stored=stored,
            may_go_on=may_go_on,
            overdue=lambda: held.delivery.overdue,
            on_repair=self.metrics.events_repaired,
            blobs=self.blobs.of(held.claim.message_id),
            on_stored=self.metrics.event_stored,
        )

    async def _hand_back(self, claim: Claim) -> None:
        """So that the next worker starts at once and this try is not counted."""
        if is_final(claim.record.status) or claim.record.parked is not None:
            return
        hand_back = self.claims.hand_back(claim, patience_s=_HAND_BACK_PATIENCE_S)
        task = asyncio.create_task(hand_back)
        try:
            await asyncio.shield(task)
        except ClaimLost:
            # Somebody has it already: all the better.
            return
        except NatsError:
            _log.warning("a claim was not handed back", message_id=claim.message_id)


@dataclass(frozen=True, kw_only=True)
class _Course:
    """What one attempt is made of, once it is known whether it goes on from an earlier one."""

    stopper: Stopper
    inbox: CommandInbox
    steps: RunSteps
    prepared: Prepared


def _last_good(claim: Claim, course: _Course | None) -> int:
    """The last event that counts where the run goes on: what was told after it is told again."""
    kept = claim.record.kept
    goes_on = course is not None and course.prepared.goes_on
    return kept.seq if goes_on and kept is not None else 1


async def _nothing_more() -> None:
    return None


def _code(error: RunFailure | None) -> str | None:
    return None if error is None else error.code


def _cancel(task: "asyncio.Task[object]") -> None:
    task.cancel()
