"""One attempt, from a request to an outcome: its deadline, its cancellation, its frame.

What a durable run and a direct request have in common: everything but where events go and what
is done with the outcome.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from hayrunner.adapters.outcome import EventSink, RunOutcome, RunParked, StepStore, StopCode
from hayrunner.serving.failures import failed, failure, failure_of
from hayrunner.serving.served import RunSession, ServedAgent
from hayrunner_contracts.commands import COMMAND_REFUSED, SAID, RunCommand
from hayrunner_contracts.errors import RunError, RunFailure
from hayrunner_contracts.events import Data, Error, MessageEnd, StreamEvent, ToolApprovalRequest
from hayrunner_contracts.requests import RunRequest

__all__ = ["Drive", "FrameSink", "Prepared", "Stopper"]

_STOP_GRACE_S = 10.0
_REASON_MOST = 500
# As many as the stream keeps for one run.
_MOST_EARLY = 1_000


class Stopper:
    """Ends a run early, whoever asks and whenever: before its session exists, or while it runs.
    The first reason counts. Other commands it passes on, `attended` says whether anybody learns
    what the run asks."""

    def __init__(self, *, attended: bool = True) -> None:
        self._attended = attended
        self._early: list[RunCommand] = []
        self.code: StopCode | None = None
        self._reason: str | None = None
        self.stopped = asyncio.Event()
        self._session: RunSession | None = None

    def stop(self, code: StopCode, reason: str | None = None) -> None:
        if self.code is not None:
            return
        self.code, self._reason = code, reason
        self.stopped.set()
        if self._session is not None:
            self._session.stop(code, self._why(code).message)

    def tell(self, command: RunCommand) -> None:
        """Give a command that is no cancel to the session, as soon as there is one."""
        if self._session is not None:
            self._session.command(command)
        elif len(self._early) < _MOST_EARLY:
            self._early.append(command)

    def attach(self, session: RunSession) -> None:
        self._session = session
        if not self._attended:
            session.unattended()
        for command in self._early:
            session.command(command)
        self._early.clear()
        if self.code is not None:
            session.stop(self.code, self._why(self.code).message)

    def detach(self) -> None:
        """Nothing more comes. The session refers to this, by what it is told of commands."""
        self._session = None

    def outcome(self) -> RunOutcome:
        """What a run ends with that was stopped before it began."""
        code = self.code or "cancelled"
        return failed(self._why(code), "cancelled" if code == "cancelled" else "error")

    def _why(self, code: StopCode) -> RunFailure:
        """With the reason that was given, for whoever asked for the run."""
        usual = failure(code)
        if not self._reason:
            return usual
        return failure(code, f"{usual.message}: {self._reason[:_REASON_MOST]}")


class FrameSink:
    """Passes a run's events on and keeps its frame right.

    `whole` False passes only `error` and `message_end`, and what whoever sends commands has to
    know: a run in mode `answer` publishes no more. `complete` adds what of the first two the run
    did not say itself.
    """

    def __init__(self, sink: EventSink, *, whole: bool) -> None:
        self._sink = sink
        self._whole = whole
        self._ended = False
        self._told = False

    async def emit(self, event: StreamEvent) -> None:
        before = self._told, self._ended
        if isinstance(event, Error):
            self._told = True
        elif isinstance(event, MessageEnd):
            self._ended = True
        elif not self._whole and not _concerns_commands(event):
            return
        try:
            await self._sink.emit(event)
        except RunError:
            # An event before this one could not be published, and this one was not taken.
            self._told, self._ended = before
            raise

    def straight(self) -> Callable[[StreamEvent], Awaitable[None]]:
        """Where text goes, which has no part in the frame."""
        return self._sink.emit if self._whole else self.emit

    async def complete(self, outcome: RunOutcome) -> None:
        if self._ended:
            return
        error = outcome.error
        if error is not None and not self._told:
            told = Error(
                error_code=error.code,
                error_message=error.message,
                retryable=error.retryable,
                ref=error.ref,
            )
            await self.emit(told)
        await self.emit(MessageEnd(finish_reason=outcome.finish_reason, usage=outcome.usage))


def _concerns_commands(event: StreamEvent) -> bool:
    if isinstance(event, Data):
        return event.data_type in (COMMAND_REFUSED, SAID)
    return isinstance(event, ToolApprovalRequest)


@dataclass(frozen=True, kw_only=True)
class Drive:
    """One attempt at one request. `deadline` is seconds since the epoch, None for none."""

    agent: ServedAgent
    agent_name: str
    request: RunRequest
    message_id: str
    deadline: float | None

    def prepare(self, sink: FrameSink, steps: StepStore | None = None) -> "Prepared":
        """Open the session, which says whether it goes on from what `steps` has. Does nothing
        yet that anybody could see."""
        try:
            session = self.agent.open_session(
                _with_moment(self.request, self.deadline),
                message_id=self.message_id,
                sink=sink,
                agent_name=self.agent_name,
            )
            goes_on = steps is not None and session.durable(steps)
        # The boundary of what an agent's author wrote: whatever it raises ends the run, safely
        # told.
        except Exception as error:
            return Prepared(sink=sink, deadline=self.deadline, fault=failure_of(error))
        return Prepared(sink=sink, deadline=self.deadline, session=session, goes_on=goes_on)

    async def run(self, sink: FrameSink, stopper: Stopper) -> RunOutcome:
        """Prepare and run, without keeping steps; see `Prepared.run`."""
        return await self.prepare(sink).run(stopper)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An attempt about to run. `goes_on`: from where an earlier one left off."""

    sink: FrameSink
    deadline: float | None
    session: RunSession | None = None
    goes_on: bool = False
    fault: RunFailure | None = None

    async def run(self, stopper: Stopper) -> RunOutcome:
        """Run to an outcome; the frame is complete when this returns.

        Raises `CancelledError` when the attempt is ended from outside, and `RunParked`: the session
        is over then, and nothing was emitted for it.
        """
        timer = self._start_timer(stopper)
        try:
            outcome = await self._attempt(stopper)
            await self.sink.complete(outcome)
            return outcome
        finally:
            if timer is not None:
                timer.cancel()

    def _start_timer(self, stopper: Stopper) -> asyncio.TimerHandle | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.time()
        if left <= 0:
            stopper.stop("deadline_exceeded")
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(left, stopper.stop, "deadline_exceeded")

    async def _attempt(self, stopper: Stopper) -> RunOutcome:
        if stopper.code is not None and not self.goes_on:
            return stopper.outcome()
        if self.session is None:
            assert self.fault is not None
            return failed(self.fault)
        stopper.attach(self.session)
        try:
            return await _run_within(self.session, stopper)
        except RunParked:
            raise
        # As above. Cancellation is no `Exception` and passes.
        except Exception as error:
            return failed(failure_of(error))


def _with_moment(request: RunRequest, deadline: float | None) -> RunRequest:
    """The request with its `timeout_s`, which counts from when it was sent, as a moment."""
    if deadline is None or request.timeout_s is None:
        return request
    moment = datetime.fromtimestamp(deadline, UTC).isoformat()
    return replace(request, timeout_s=None, deadline=moment)


async def _run_within(session: RunSession, stopper: Stopper) -> RunOutcome:
    """The session's outcome. One that does not end within a few seconds of being stopped (a
    tool that swallows its cancellation) is left behind, so that the run ends all the same."""
    running = asyncio.ensure_future(session.run())
    stopped = asyncio.ensure_future(stopper.stopped.wait())
    try:
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait({running}, timeout=_STOP_GRACE_S)
        if not running.done():
            return stopper.outcome()
        return running.result()
    finally:
        stopped.cancel()
        if not running.done():
            running.cancel()
            # Wait for its cleanup, so that nothing of it is emitted later; but not for ever.
            await asyncio.wait({running}, timeout=_STOP_GRACE_S)
