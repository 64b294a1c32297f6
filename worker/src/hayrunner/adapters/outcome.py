"""What a run gives back, where its events go, and why it may be ended early."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import FinishReason, StreamEvent, Usage
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.results import RunStatus

__all__ = ["EventSink", "Phase", "RunOutcome", "RunParked", "StepStore", "StopCode"]

StopCode = Literal["cancelled", "deadline_exceeded"]
Phase = Literal["called", "settled", "exited", "ended"]
"""Where in a run a checkpoint was taken: the calls of a reply are known and none has run; all have
settled; they have, and the loop is over; nothing is left but to write down how the run ended."""


class StepStore(Protocol):
    """Where the steps of a durable run are kept."""

    @property
    def found(self) -> bytes | None:
        """What an earlier attempt kept last."""
        ...

    @property
    def park_after_s(self) -> float | None:
        """How long the run may wait for a person's decision before it is parked; None: as long
        as it takes."""
        ...

    async def confirm(self) -> None:
        """Before something is done that must not be done twice: does not return where the run is
        another worker's by now. Costs nothing unless there is reason to ask."""
        ...

    def parks(self) -> None:
        """The run is about to be parked: commands that come from here on are to wake it."""
        ...

    async def keep(self, checkpoint: bytes, *, phase: Phase, step: int) -> None:
        """Kept when this returns, and every event emitted before it is stored. Waits while the
        bus is away, and does not return where the run is another worker's by now."""
        ...


class RunParked(Exception):
    """The run waits for a person and gives up its place until there is a decision, or until
    `wake_at`, in seconds since the epoch. Its last checkpoint has all of it. Not an error."""

    def __init__(self, wake_at: float | None) -> None:
        super().__init__("the run waits for a decision")
        self.wake_at = wake_at


class EventSink(Protocol):
    """Where a run's events go, in order, without `seq`.

    `emit` may wait: a run is slowed down where its events cannot be taken, never thinned out. An
    event is the sink's from the moment `emit` is called: a wait that is cancelled loses nothing,
    and the event is not given again.
    """

    async def emit(self, event: StreamEvent) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended, before anything of it is published or stored.

    `messages` are the new messages only: neither history nor the request's own.
    """

    status: RunStatus
    answer: Any = None
    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    model_calls: int = 0
    error: RunFailure | None = None
    messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
