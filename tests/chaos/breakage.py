"""Workers broken on purpose, to see whether the checker bites. None of it is in the product."""

from collections.abc import Callable
from typing import Any, Literal, get_args

from nats.js.errors import KeyWrongLastSequenceError

from hayrunner.serving.claims import Claims
from hayrunner.serving.deliveries import Heartbeat
from hayrunner.serving.run_events import RunPublisher
from hayrunner.serving.steps import RunSteps

__all__ = ["BREAKAGES", "Breakage", "break_worker"]

Breakage = Literal["fencing", "heartbeat", "verification", "checkpoints"]
BREAKAGES: tuple[Breakage, ...] = get_args(Breakage)


def break_worker(what: Breakage | None) -> None:
    """Take one safety away from every worker of this process."""
    if what is not None:
        _BREAK[what]()


def _no_fencing() -> None:
    """A claim is written whatever stands there, and always taken to be one's own."""

    async def write(self: Any, key: str, data: bytes, revision: int) -> int:
        bucket = self._bucket
        try:
            if revision == 0:
                return await bucket.create(key, data)
            return await bucket.update(key, data, last=revision)
        except KeyWrongLastSequenceError:
            return await bucket.put(key, data)

    async def still_held(self: Any, claim: Any) -> bool:
        return True

    setattr(Claims, "_write", write)  # noqa: B010
    Claims.still_held = still_held


def _no_heartbeat() -> None:
    async def beat(self: Any) -> None:
        return

    Heartbeat.beat = beat


def _no_verification() -> None:
    async def verify(self: Any, *, patience_s: float, keep: bool = False) -> None:
        await self.flush()

    RunPublisher.verify = verify


def _no_checkpoints() -> None:
    """Nothing is saved between the beginning and the end."""

    async def keep(self: Any, checkpoint: bytes, *, phase: Any, step: int) -> None:
        return

    RunSteps.keep = keep


_BREAK: dict[Breakage, Callable[[], None]] = {
    "fencing": _no_fencing,
    "heartbeat": _no_heartbeat,
    "verification": _no_verification,
    "checkpoints": _no_checkpoints,
}
