"""Where a durable run's steps are kept: in its claim, so that keeping one is the fence, too."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

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

__all__ = ["INLINE_BYTES", "RunSteps", "StepBlobs", "common_beginning", "kept_bytes"]

_log = get_logger(__name__)

INLINE_BYTES = 128 * 1024
"""What is kept in a claim's record; of anything larger most is an object."""
_ANEW_S = 600.0
"""How long others are told as what comes after an object: it goes by age, hours later."""
_PATIENCE_S = 600.0
_AGAIN_S = 0.2


class StepBlobs(Protocol):
    """Where checkpoints are kept that are too large for a claim."""

    def put(self, name: str, data: bytes, *, patience_s: float) -> Coroutine[Any, Any, object]: ...

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
        whole = await blobs.get(kept.blob)
        return whole if kept.tail is None else whole[: kept.head] + kept.tail.encode()
    except RunError as error:
        _log.warning("a checkpoint is gone; the run starts over", **cause_of(error))
        return None


def common_beginning(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with that are the same, in whole characters."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    while least < len(other) and other[least] & 0xC0 == 0x80:
        least -= 1
    return least


@dataclass(frozen=True, kw_only=True)
class _Whole:
    """A checkpoint that is an object. `put_at` is monotonic."""

    name: str
    data: bytes
    put_at: float


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
    _whole: _Whole | None = field(default=None, init=False)
    _forgetting: "asyncio.Task[None] | None" = field(default=None, init=False)

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

    async def close(self) -> None:
        """Nothing is kept any more, and nothing of it goes on."""
        if self._forgetting is not None:
            await self._forgetting

    async def _keep(self, checkpoint: bytes, step: int) -> None:
        claim, before = self.held.claim, self.held.claim.record.kept
        kept = self._placed(checkpoint, step)
        if kept is None:
            kept = KeptStep(seq=0, step=step, blob=await self._put_and_verify(checkpoint))
        else:
            await self.publisher.verify(patience_s=_PATIENCE_S)
        kept = msgspec.structs.replace(kept, seq=self.publisher.last_seq)
        await self.claims.keep(claim, kept, patience_s=_PATIENCE_S)
        if before is not None and before.blob is not None and before.blob != kept.blob:
            await self.close()
            # Three round trips that nobody has to wait for.
            self._forgetting = asyncio.create_task(self._forget(before.blob))

    def _placed(self, checkpoint: bytes, step: int) -> KeptStep | None:
        """What the claim says of a checkpoint that needs no object of its own: all of it, or what
        comes after the beginning that it has in common with the last one that is an object."""
        if len(checkpoint) <= self.inline_bytes:
            return KeptStep(seq=0, step=step, data=msgspec.Raw(checkpoint))
        whole = self._whole
        if whole is None or time.monotonic() - whole.put_at > _ANEW_S:
            return None
        head = common_beginning(whole.data, checkpoint)
        if len(checkpoint) - head > self.inline_bytes:
            return None
        return KeptStep(
            seq=0, step=step, blob=whole.name, head=head, tail=checkpoint[head:].decode()
        )

    async def _put_and_verify(self, checkpoint: bytes) -> str:
        """The name of the object with these bytes. It is put while the events are verified: it is
        no checkpoint before the claim says so."""
        self._count += 1
        # A name of its own: a worker that lost its claim must not write over another's.
        name = f"{self.held.claim.key}.step.{self.held.claim.attempt}.{self._count}"
        put_at = time.monotonic()
        putting = asyncio.create_task(self.blobs.put(name, checkpoint, patience_s=_PATIENCE_S))
        try:
            await self.publisher.verify(patience_s=_PATIENCE_S)
            await putting
        finally:
            # Where this was cut off, nothing refers to it, and it goes by age.
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)
        self._whole = _Whole(name=name, data=checkpoint, put_at=put_at)
        return name

    async def _forget(self, name: str) -> None:
        try:
            await self.blobs.delete(name)
        except (NatsError, RunError):
            # It goes by age.
            return
