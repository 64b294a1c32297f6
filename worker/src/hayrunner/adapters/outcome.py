"""What a run gives back, where its events go, and why it may be ended early."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import FinishReason, StreamEvent, Usage
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.results import RunStatus

__all__ = ["EventSink", "RunOutcome", "StopCode"]

StopCode = Literal["cancelled", "deadline_exceeded"]


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
