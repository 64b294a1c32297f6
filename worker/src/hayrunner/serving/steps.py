"""Where a durable run's steps are kept: in its claim, so that keeping one is the fence, too."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from nats.errors import Error as NatsError

from hayrunner.adapters.cancellation import raise_if_cancelled
from hayrunner.adapters.outcome import Phase
from hayrunner.serving.claims import ClaimLost, ClaimRecord, Claims, KeptStep
from hayrunner.serving.commands import CommandInbox
from hayrunner.serving.holdings import HeldRun
from hayrunner.serving.run_events import RunPublisher
from hayrunner.telemetry.logs import cause_of, get_logger
from hayrunner_contracts.errors import RunError

__all__ = ["INLINE_BYTES", "RunSteps", "StepBlobs", "kept_bytes"]

_log = get_logger(__name__)

INLINE_BYTES = 128 * 1024
"""What is kept in a claim's record; anything larger is an object."""
_PATIENCE_S = 600.0
_AGAIN_S = 0.2


class StepBlobs(Protocol):
    """Where checkpoints are kept that are too large for a claim."""

    async def put(self, name: str, data: bytes, *, patience_s: float) -> object: ...

    async def get(self, name: str) -> bytes: ...

    async def delete(self, name: str) -> None: ...


async def kept_bytes(blobs: StepBlobs, record: ClaimRecord) -> bytes | None:
    """The run's last checkpoint; None where there is none, or none any more."""
    kept = record.kept
    if kept is None:
        return None
    if kept.blob is None:
        return bytes(kept.data)
    try:
        return await blobs.get(kept.blob)
    except RunError as error:
        _log.warning("a checkpoint is gone; the run starts over", **cause_of(error))
        return None


@dataclass(kw_only=True)
class RunSteps:
    """A `StepStore` for one attempt. `found` is what an earlier one kept."""

    claims: Claims
    blobs: StepBlobs
    held: HeldRun
    publisher: RunPublisher
    inbox: CommandInbox
    still_held: Callable[[], Awaitable[bool]]
    found: bytes | None = None
    park_after_s: float | None = None
    inline_bytes: int = INLINE_BYTES
    commands_seen: int = 0
    _count: int = field(default=0, init=False)

    async def confirm(self) -> None:
        """See `StepStore`."""
        if self.held.delivery.overdue and not await self.still_held():
            await asyncio.Event().wait()

    def parks(self) -> None:
        """See `StepStore`."""
        self.commands_seen = self.inbox.seen

    async def keep(self, checkpoint: bytes, *, phase: Phase, step: int) -> None:
        """See `StepStore`. Where the worker wants to go away, the run ends here at the border of
        a step, and goes on elsewhere."""
        while True:
            try:
                await self._keep(checkpoint, step)
                break
            except ClaimLost:
                self.held.lose()
                await asyncio.Event().wait()
            except (NatsError, TimeoutError):
                raise_if_cancelled()
                await asyncio.sleep(_AGAIN_S)
        self.held.in_tools = phase == "called"
        if self.held.leaving and phase == "settled":
            self.held.end_here()
            await asyncio.Event().wait()

    async def _keep(self, checkpoint: bytes, step: int) -> None:
        await self.publisher.verify(patience_s=_PATIENCE_S)
        claim, seq = self.held.claim, self.publisher.last_seq
        before = claim.record.kept
        if len(checkpoint) <= self.inline_bytes:
            kept = KeptStep(seq=seq, step=step, data=msgspec.Raw(checkpoint))
        else:
            self._count += 1
            # A name of its own: a worker that lost its claim must not write over another's.
            name = f"{claim.key}.step.{claim.attempt}.{self._count}"
            await self.blobs.put(name, checkpoint, patience_s=_PATIENCE_S)
            kept = KeptStep(seq=seq, step=step, blob=name)
        await self.claims.keep(claim, kept, patience_s=_PATIENCE_S)
        if before is not None and before.blob is not None:
            await self._forget(before.blob)

    async def _forget(self, name: str) -> None:
        try:
            await self.blobs.delete(name)
        except (NatsError, RunError):
            # It goes by age.
            return
