"""The end of a durable run: exactly one terminal write, in an order that survives a crash.

1. the stream is shown to hold every event;
2. the claim goes to `finishing`, by the revision this worker holds: the fence. It has the result
   with it, so that whoever has the run from here on writes the same one;
3. the result is stored, once;
4. `stream_end` is stored, as the next event after those that were seen;
5. the claim is closed, and the request acked.

A worker that takes over in between does what is missing of 3 to 5, and runs nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import Claim, Claims, KeptResult
from hayrunner.serving.results import RunFacts, make_result, store_result, stored_result
from hayrunner.serving.run_events import RunPublisher
from hayrunner.serving.steps import INLINE_BYTES, StepBlobs
from hayrunner.telemetry.logs import cause_of, get_logger
from hayrunner_contracts.codec import decode_result, encode
from hayrunner_contracts.errors import PayloadTooLarge, StorageFailed
from hayrunner_contracts.results import RunResult

__all__ = ["PATIENCE_S", "Endings", "uninterrupted"]

_log = get_logger(__name__)

T = TypeVar("T")

PATIENCE_S = 600.0
"""How long an end is tried while NATS is away; given up, the request comes again."""


@dataclass(frozen=True, kw_only=True)
class Endings:
    """How runs of one worker end. All of it: `ClaimLost` where another worker has the run by now,
    `nats.errors.Error` where NATS stays away."""

    bus: Bus
    claims: Claims
    blobs: StepBlobs

    async def write(
        self, claim: Claim, publisher: RunPublisher, facts: RunFacts, outcome: RunOutcome
    ) -> RunResult:
        """Steps 1 to 5 without the ack."""
        try:
            # Kept until the last event is stored: a cluster that loses its leader just then was
            # seen to lose what it had counted before.
            await publisher.verify(patience_s=PATIENCE_S, keep=True)
        except (PayloadTooLarge, StorageFailed) as error:
            # An event had to be left out, and the run was over before it could be told.
            outcome = replace(outcome, status="failed", answer=None, error=error.to_wire())
            await publisher.verify(patience_s=PATIENCE_S, keep=True)
        result = make_result(facts, outcome, last_seq=publisher.last_seq + 1)
        kept = await self._kept(claim, result)
        await self.claims.finishing(claim, kept, patience_s=PATIENCE_S)
        return await self.complete(claim, publisher, result)

    async def found(self, claim: Claim) -> RunResult | None:
        """The result that an earlier attempt has come to, None where there is none."""
        kept = claim.record.outcome
        if kept is None:
            return await stored_result(self.bus, claim.message_id)
        if kept.blob is None:
            return decode_result(bytes(kept.data))
        try:
            return decode_result(await self.blobs.get(kept.blob))
        except StorageFailed as error:
            _log.warning("an outcome is gone; the run goes on instead", **cause_of(error))
            return None

    async def complete(
        self, claim: Claim, publisher: RunPublisher | None, result: RunResult
    ) -> RunResult:
        """Steps 3 to 5; `publisher` None where `stream_end` is stored, or nothing ever was."""
        result = await store_result(self.bus, result, patience_s=PATIENCE_S)
        if publisher is not None:
            await publisher.end(patience_s=PATIENCE_S)
        await self.claims.close(
            claim, result.status, last_seq=result.last_seq, patience_s=PATIENCE_S
        )
        return result

    async def _kept(self, claim: Claim, result: RunResult) -> KeptResult:
        data = encode(result)
        if len(data) <= INLINE_BYTES:
            return KeptResult(data=msgspec.Raw(data))
        name = f"{claim.key}.outcome.{claim.attempt}"
        await self.blobs.put(name, data, patience_s=PATIENCE_S)
        return KeptResult(blob=name)


async def uninterrupted(work: Coroutine[Any, Any, T], then: Callable[[], Awaitable[Any]]) -> T:
    """Do `work` and `then` to their end, whoever cancels meanwhile; the cancellation comes
    after it. A second one is obeyed at once: the process wants to go."""

    async def both() -> T:
        done = await work
        await then()
        return done

    task = asyncio.create_task(both())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                task.cancel()
                raise
        raise
