"""One delivery: decode, claim, execute, settle. Each ends visibly in ack or nak."""

import asyncio
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from nats.errors import Error as NatsError

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.serving.admission import Admission
from hayrunner.serving.blobs import Blobs
from hayrunner.serving.claims import Claim, ClaimLost
from hayrunner.serving.dead_letters import DeadLetters
from hayrunner.serving.deliveries import Delivery
from hayrunner.serving.drive import Drive
from hayrunner.serving.execution import Execution
from hayrunner.serving.failures import failed, failure
from hayrunner.serving.results import RunFacts
from hayrunner.serving.served import AgentRegistry
from hayrunner.telemetry import gate
from hayrunner.telemetry.bus import attempt_span
from hayrunner.telemetry.log_fields import bind, bound
from hayrunner.telemetry.logs import cause_of, get_logger, new_ref
from hayrunner.telemetry.metrics import Metrics
from hayrunner_contracts import headers, subjects
from hayrunner_contracts.codec import (
    RequestLimits,
    deadline_of,
    peek_message_id,
)
from hayrunner_contracts.errors import InvalidRequest, RunError, RunFailure
from hayrunner_contracts.requests import RunRequest

__all__ = ["Handler"]

_log = get_logger(__name__)

_AGAIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Handler:
    """Walks a delivery from its bytes to its ack. One per worker."""

    registry: AgentRegistry
    admission: Admission
    execution: Execution
    dead_letters: DeadLetters
    metrics: Metrics
    blobs: Blobs
    limits: RequestLimits = field(default_factory=RequestLimits)

    async def handle(self, delivery: Delivery) -> None:
        """Handle and settle. Raises nothing but `CancelledError`, when the worker goes away:
        the request was put back by then."""
        if delivery.times_delivered > 1:
            self.metrics.redelivered(delivery.agent)
        with bound(agent=delivery.agent):
            await self._settle(delivery)

    async def _settle(self, delivery: Delivery) -> None:
        try:
            await self._handle(delivery)
        except ClaimLost:
            # The other worker acks. A word from here would take the request off its hands.
            delivery.settled = True
        except asyncio.CancelledError:
            if not delivery.settled:
                await delivery.nak()
            raise
        except NatsError as error:
            _log.warning("NATS failed a run; it will be tried again", **cause_of(error))
            if not delivery.settled:
                await delivery.nak(_AGAIN_S)
        # The message boundary: a fault of the worker's own must not end its loop. The request
        # is put back, and the claim counts the attempts.
        except Exception as error:
            _log.error("the worker failed a run", ref=new_ref(), **cause_of(error))
            if not delivery.settled:
                await delivery.nak(_AGAIN_S)

    async def _handle(self, delivery: Delivery) -> None:
        try:
            request = await self.blobs.decode_request(
                delivery.data, delivery.headers, limits=self.limits
            )
        except RunError as error:
            await self.give_up(delivery, error.to_wire())
            return
        message_id = _message_id(delivery, request.message_id)
        bind(message_id=message_id)
        admitted = await self.admission.admit(delivery, message_id)
        if admitted is None:
            return
        claim = admitted.claim
        attempts = claim.record.counted_attempts - (1 if admitted.out_of_attempts else 0)
        facts = _facts(request, delivery, claim, attempts)
        if admitted.out_of_attempts:
            outcome = failed(failure("worker_lost"))
            await self._bury(delivery, outcome, message_id)
            with self._span(delivery, claim):
                await self.execution.refuse(claim, delivery, facts, outcome)
            return
        drive = Drive(
            agent=self.registry.get(delivery.agent),
            agent_name=delivery.agent,
            request=request,
            message_id=message_id,
            deadline=deadline_of(request, facts.requested_at or delivery.requested_at),
        )
        with self._span(delivery, claim):
            await self.execution.run(claim, delivery, facts, drive)

    async def give_up(self, delivery: Delivery, cause: RunFailure) -> None:
        """A request that nobody can run: dead letter, then its failed result, then the ack."""
        with bound(agent=delivery.agent):
            await self._give_up(delivery, cause, bury_first=True)

    async def give_up_stray(self, delivery: Delivery, cause: RunFailure) -> None:
        """The same for one that was found on the queue, by looks that may be wrong: where its run
        has ended, or goes on elsewhere, it is no dead letter."""
        with bound(agent=delivery.agent):
            await self._give_up(delivery, cause, bury_first=False)

    async def _give_up(self, delivery: Delivery, cause: RunFailure, *, bury_first: bool) -> None:
        outcome = failed(cause)
        message_id = _message_id(delivery, peek_message_id(delivery.data))
        bind(message_id=message_id)
        if bury_first:
            await self._bury(delivery, outcome, message_id)
        admitted = await self.admission.admit(delivery, message_id)
        if admitted is not None:
            if not bury_first:
                await self._bury(delivery, outcome, message_id)
            claim = admitted.claim
            facts = _facts(None, delivery, claim, claim.record.counted_attempts)
            with self._span(delivery, claim):
                await self.execution.refuse(claim, delivery, facts, outcome)

    def _span(self, delivery: Delivery, claim: Claim) -> AbstractContextManager[None]:
        return attempt_span(
            gate.destination(delivery.subject, delivery.agent, self.registry.names()),
            delivery.headers,
            message_id=claim.message_id,
            attempt=claim.attempt,
            delivery=delivery.times_delivered,
            queue_wait_s=time.time() - delivery.requested_at,
            earlier=claim.record.trace,
            gone=ClaimLost,
        )

    async def _bury(self, delivery: Delivery, outcome: RunOutcome, message_id: str) -> None:
        assert outcome.error is not None
        await self.dead_letters.put(
            agent=delivery.agent,
            subject=delivery.subject,
            sequence=delivery.sequence,
            data=delivery.data,
            original_headers=delivery.headers,
            reason=outcome.error.code,
            message_id=message_id,
        )


def _message_id(delivery: Delivery, said: str | None) -> str:
    """The run's id. A request that was a dead letter has it in a header, as its body is kept."""
    try:
        return subjects.message_id(delivery.headers[headers.MESSAGE_ID])
    except (KeyError, InvalidRequest):
        pass  # there is none, or it is none
    if said is not None:
        return said
    return subjects.derived_message_id(subjects.AGENT_REQUESTS, delivery.sequence)


def _facts(request: RunRequest | None, delivery: Delivery, claim: Claim, attempts: int) -> RunFacts:
    return RunFacts(
        message_id=claim.message_id,
        agent=delivery.agent,
        attempts=attempts,
        # A run that was parked comes by a copy of its request.
        requested_at=claim.record.requested_at or delivery.requested_at,
        started_at=time.time(),
        thread_id=None if request is None else request.thread_id,
        metadata={} if request is None else request.metadata,
        include_messages=request is not None and request.include_messages,
    )
