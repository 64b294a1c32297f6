"""Whether a delivered request is this worker's to run."""

import asyncio
from dataclasses import dataclass

from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import Claim, ClaimRecord, Claims, is_final
from hayrunner.serving.deliveries import Delivery
from hayrunner.serving.holdings import Holdings, ask_holder
from hayrunner.serving.parking import Parking
from hayrunner.serving.results import publish_again
from hayrunner.telemetry.logs import get_logger
from hayrunner_contracts import subjects

__all__ = ["Admission", "Admitted"]

_log = get_logger(__name__)

_AGAIN_S = 1.0
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """The claim is ours. `out_of_attempts`: end it, do not run it."""

    claim: Claim
    out_of_attempts: bool = False


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Claims requests, one per worker. `ack_wait_s` is the consumer's."""

    bus: Bus
    claims: Claims
    holdings: Holdings
    parking: Parking
    worker: str
    max_attempts: int
    ack_wait_s: float

    async def admit(self, delivery: Delivery, message_id: str) -> Admitted | None:
        """The claim, or None where the delivery was settled here: the run is finished, or
        another worker (or another task of this one) has it. `nats.errors.Error`."""
        key = subjects.claim_key(self.bus.namespace, message_id)
        with self.holdings.claiming(key) as alone:
            if not alone:
                await delivery.nak(_AGAIN_S)
                return None
            while True:
                found = await self.claims.find_patiently(message_id)
                if found is None:
                    claim = await self.claims.create(
                        message_id,
                        agent=delivery.agent,
                        sequence=delivery.sequence,
                        requested_at=delivery.requested_at,
                    )
                    taken = None if claim is None else Admitted(claim=claim)
                elif await self._settled(delivery, key, message_id, *found):
                    return None
                else:
                    taken = await self._take_over(delivery, message_id, *found)
                if taken is not None:
                    return taken
                # Somebody else wrote the record in between: look again.
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _settled(
        self, delivery: Delivery, key: str, message_id: str, record: ClaimRecord, revision: int
    ) -> bool:
        if is_final(record.status):
            await publish_again(self.bus, message_id)
            _log.info("a finished run came again", message_id=message_id)
            await delivery.ack()
            return True
        held = self.holdings.get(key)
        if held is not None:
            if held.delivery.sequence == delivery.sequence:
                held.delivery.adopt(delivery)
            else:
                # A second request with the same message id: the first one has a result to come.
                await delivery.ack()
            return True
        if await self.parking.stays(delivery, message_id, record, revision):
            return True
        if record.status == "waiting" or record.worker == self.worker:
            return False
        if not await ask_holder(self.bus.nc, self.bus.link, record.worker, key):
            return False
        if record.sequence == delivery.sequence:
            await delivery.nak(self.ack_wait_s)
        else:
            await delivery.ack()
        return True

    async def _take_over(
        self, delivery: Delivery, message_id: str, record: ClaimRecord, revision: int
    ) -> Admitted | None:
        claim = await self.claims.take_over(
            message_id, record, revision, sequence=delivery.sequence
        )
        if claim is None:
            return None
        if record.parked is not None and record.sequence != delivery.sequence:
            await self.parking.forget(record.sequence)
        _log.info(
            "a run was taken over",
            message_id=message_id,
            attempt=claim.attempt,
            handed_back=record.status == "waiting",
        )
        # A run whose outcome is known has nothing left to be tried.
        spent = record.counted_attempts >= self.max_attempts and record.outcome is None
        return Admitted(claim=claim, out_of_attempts=spent)
