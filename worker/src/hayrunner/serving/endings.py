"""The end of a durable run: exactly one terminal write, in an order that survives a crash.

1. the claim goes to `finishing`, by the revision this worker holds: the fence;
2. the stream is shown to hold every event;
3. the result is stored, once;
4. `stream_end` is stored;
5. the claim is closed, and the request acked.

A worker that takes over later sees by what is stored how far the last one came: with a result,
only what is missing of 4 and 5 is done; without, the run starts over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import Claim, Claims
from hayrunner.serving.results import RunFacts, make_result, store_result
from hayrunner.serving.run_events import RunPublisher, StoredRun, read_stored_run
from hayrunner_contracts import subjects
from hayrunner_contracts.errors import PayloadTooLarge, StorageFailed
from hayrunner_contracts.results import RunResult

__all__ = ["PATIENCE_S", "complete_stored", "uninterrupted", "write_end"]

T = TypeVar("T")

PATIENCE_S = 600.0
"""How long an end is tried while NATS is away; given up, the request comes again."""


async def write_end(
    bus: Bus,
    claims: Claims,
    claim: Claim,
    publisher: RunPublisher,
    facts: RunFacts,
    outcome: RunOutcome,
) -> RunResult:
    """Steps 1 to 5 without the ack. `ClaimLost` where another worker has the run by now,
    `nats.errors.Error` where NATS stays away."""
    await claims.finishing(claim, patience_s=PATIENCE_S)
    try:
        await publisher.verify(patience_s=PATIENCE_S)
    except (PayloadTooLarge, StorageFailed) as error:
        # An event had to be left out, and the run was over before it could be told.
        outcome = replace(outcome, status="failed", answer=None, error=error.to_wire())
        await publisher.verify(patience_s=PATIENCE_S)
    wanted = make_result(facts, outcome, last_seq=publisher.last_seq + 1)
    result = await store_result(bus, wanted, patience_s=PATIENCE_S)
    await publisher.end(patience_s=PATIENCE_S)
    await claims.close(claim, result.status, last_seq=publisher.last_seq, patience_s=PATIENCE_S)
    return result


async def complete_stored(
    bus: Bus,
    claims: Claims,
    claim: Claim,
    publisher_for: Callable[[StoredRun], RunPublisher],
    result: RunResult,
) -> None:
    """Finish what a worker left that died between storing the result and closing the claim."""
    subject = subjects.events(bus.namespace, claim.message_id)
    stored = await read_stored_run(bus.nc, bus.js, subject)
    if stored is not None and not stored.ended:
        await publisher_for(stored).end(patience_s=PATIENCE_S)
    await claims.close(claim, result.status, last_seq=result.last_seq, patience_s=PATIENCE_S)


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
