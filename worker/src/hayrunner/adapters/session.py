"""One run in this process: drive it, end it early when told to, and say how it ended."""

import asyncio
import logging
import traceback
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from hayrunner.adapters.context import RunContext, current_run
from hayrunner.adapters.kept_steps import keep_end
from hayrunner.adapters.outcome import RunOutcome, RunParked, StopCode
from hayrunner.adapters.spans import note_end, run_span
from hayrunner.adapters.writer import StreamWriter, close_history
from hayrunner.errors import HayrunnerError, HookFailed, UnsupportedOption, wire_code
from hayrunner.hooks import RunEnd
from hayrunner_contracts.errors import RunError, RunFailure
from hayrunner_contracts.events import (
    Error,
    FinishReason,
    MessageEnd,
    StreamEvent,
    Suggestion,
    Usage,
)
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.results import RunStatus

__all__ = ["LoopSession"]

logger = logging.getLogger(__name__)

# The reason that Haystack's TokenBudgetHook gives.
_TOKEN_BUDGET = "token_budget_exceeded"

Body = Callable[[RunContext], Awaitable[Any]]

_FINISH_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool": "tool",
    "stopped": "stopped",
}
_FAILED_FINISH: dict[str, FinishReason] = {
    "max_turns": "max_turns",
    "stopped": "stopped",
    "budget_exceeded": "stopped",
}


class LoopSession:
    """Runs `body` for one run and turns whatever happens into events and an outcome.

    `body` gets the run and returns its answer. Everything between `message_start` and
    `stream_end`, both exclusive, is emitted here or below.
    """

    def __init__(self, run: RunContext, body: Body, *, writer: StreamWriter | None = None) -> None:
        self._run = run
        self._body: Body | None = body
        self._writer = writer
        self._task: asyncio.Task[Any] | None = None
        self._stopped: tuple[StopCode, str] | None = None

    def stop(self, code: StopCode, message: str) -> None:
        """End the run early; the first code stands."""
        if self._stopped is not None:
            return
        self._stopped = (code, message)
        self._run.stopping = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> RunOutcome:
        """See `serving.served.RunSession`."""
        try:
            return await self._run_traced()
        finally:
            # Its context refers to the run, and the run to this.
            self._task = None

    async def _run_traced(self) -> RunOutcome:
        with run_span(self._run) as traced:
            try:
                outcome = await self._run_and_leave()
            except RunParked as error:
                traced.parked()
                parked = error
            else:
                note_end(traced, self._run, outcome)
                return outcome
        # Out here: it is no failure of the span's.
        raise parked

    async def _run_and_leave(self) -> RunOutcome:
        try:
            outcome = await self._run_to_end()
        except (asyncio.CancelledError, RunParked):
            await self._leave_thread(over=False)
            raise
        except BaseException:
            await self._leave_thread(over=True)
            raise
        await self._leave_thread(over=True)
        return outcome

    async def _run_to_end(self) -> RunOutcome:
        run = self._run
        kept = None if run.found is None else run.found.checkpoint.ended
        if kept is not None:
            # An earlier attempt came this far; it may have written the run's memory.
            messages = kept.messages
            ending = _Ending(kept.status, kept.finish_reason, kept.error, kept.answer)
        else:
            if self._stopped is None:
                await self._drive()
            ending = self._ending()
            messages = await self._closed(ending)
        run.ended = True
        ending = await self._stored(ending, messages)
        ending = await self._told_hooks(ending)
        await run.emit(ending.events(run.usage))
        if ending.status == "completed":
            await self._suggest(ending.answer)
        return self._outcome(ending, messages)

    async def _closed(self, ending: "_Ending") -> list[ChatMessage]:
        """The run's messages, with nothing left open in them, nor in its events. Before memory is
        written, how the run ended is kept, where its steps are: memory is written once, and what
        it says must not come out differently in another attempt."""
        run = self._run
        run.ended = True
        if ending.status != "completed":
            why = _why(ending.failure)
            close_history(run, ending.finish_reason, why)
            events = run.close_relayed(why)
            events.extend(run.normalizer.close_open_calls(why))
            await run.emit(events)
        messages = run.to_wire(run.new_messages)
        if self._writer is not None and messages:
            await keep_end(run, self._outcome(ending, messages))
        return messages

    def _outcome(self, ending: "_Ending", messages: list[ChatMessage]) -> RunOutcome:
        return RunOutcome(
            status=ending.status,
            answer=ending.answer,
            finish_reason=ending.finish_reason,
            usage=self._run.usage,
            model_calls=self._run.all_model_calls,
            error=ending.failure,
            messages=messages,
        )

    async def _leave_thread(self, *, over: bool) -> None:
        if self._writer is not None and self._run.turn is not None:
            await self._run.turn.release(over=over)

    async def _stored(self, ending: "_Ending", messages: list[ChatMessage]) -> "_Ending":
        """Write the run into its thread. A run that brought nothing leaves no question without
        an answer there."""
        if self._writer is None or not messages:
            return ending
        try:
            await self._writer.store(messages)
        except (HayrunnerError, RunError) as error:
            logger.warning("run %s was not stored: %s", self._run.message_id, type(error).__name__)
            return ending.failed_by(error)
        return ending

    async def _told_hooks(self, ending: "_Ending") -> "_Ending":
        if not self._run.hooks.watches("on_run_end"):
            return ending
        try:
            await self._run.hooks.run_end(
                RunEnd(
                    status=ending.status,
                    finish_reason=ending.finish_reason,
                    answer=ending.answer,
                    error_code=ending.failure.code if ending.failure else None,
                    usage=self._run.usage,
                )
            )
        except HayrunnerError as error:
            return ending.failed_by(error)
        return ending

    async def _drive(self) -> None:
        token = current_run.set(self._run)
        try:
            self._task = asyncio.ensure_future(self._begin())
        finally:
            current_run.reset(token)
        await self._wait_for(self._task)

    @staticmethod
    async def _wait_for(task: "asyncio.Task[Any]") -> None:
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            # Not our stop: the worker goes away. The run is not over, so nothing is said of it.
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            raise

    async def _suggest(self, answer: Any) -> None:
        """Offer follow-up questions. The run is over: `stop` ends only this."""
        suggest = self._run.suggest
        if suggest is None or self._stopped is not None or not isinstance(answer, str):
            return
        self._task = asyncio.ensure_future(suggest(answer))
        await self._wait_for(self._task)
        if not self._task.cancelled() and (found := self._task.result()):
            await self._run.emit([Suggestion(suggestions=found)])

    async def _begin(self) -> Any:
        run = self._run
        if self._writer is not None and run.turn is not None:
            await run.turn.take(wait=run.settings.on_busy_thread == "wait")
        await run.hooks.run_start()
        # A method of whoever has this session, mostly: kept no longer, as the two would be a cycle.
        body, self._body = self._body, None
        assert body is not None  # a session runs once
        return await body(run)

    def _ending(self) -> "_Ending":
        task, run = self._task, self._run
        error: BaseException | None = None
        if task is not None and not task.cancelled():
            error = task.exception()
            if isinstance(error, RunParked) and self._stopped is None:
                raise error
            if error is None:
                # Done, even if somebody said stop a moment too late.
                return self._ended_by_itself(task.result())
        if self._stopped is not None:
            code, message = self._stopped
            status: RunStatus = "cancelled" if code == "cancelled" else "failed"
            return _Ending(
                status, "cancelled", RunFailure(code=code, message=message), _partial(run)
            )
        if error is None:
            error = RuntimeError("the run was cancelled from inside")
        failure = _failure(error)
        finish = _FAILED_FINISH.get(failure.code, "error")
        return _Ending("failed", finish, failure, _partial(run))

    def _ended_by_itself(self, answer: Any) -> "_Ending":
        finish = _FINISH_REASONS.get(self._run.finish_reason, "stop")
        if finish == "stopped":
            reason = self._run.stop_reason
            if reason == _TOKEN_BUDGET:
                failure = RunFailure(code="budget_exceeded", message="the token budget is spent")
            else:
                failure = RunFailure(code="stopped", message=f"a hook stopped the run: {reason}")
            return _Ending("failed", finish, failure, answer)
        return _Ending("completed", finish, None, answer)


@dataclass(frozen=True)
class _Ending:
    """How a run ends, as far as it is known."""

    status: RunStatus
    finish_reason: FinishReason
    failure: RunFailure | None
    answer: Any

    def failed_by(self, error: HayrunnerError | RunError) -> "_Ending":
        """The same, failed by what went wrong at its end; an earlier failure stands."""
        if self.failure is not None:
            return self
        return _Ending("failed", "error", _failure(error), self.answer)

    def events(self, usage: Usage) -> list[StreamEvent]:
        """The last events but `stream_end`. A cancelled run has no error."""
        end = MessageEnd(finish_reason=self.finish_reason, usage=usage)
        failure = self.failure
        if failure is None or failure.code == "cancelled":
            return [end]
        error = Error(
            error_code=failure.code,
            error_message=failure.message,
            retryable=failure.retryable,
            ref=failure.ref,
        )
        return [error, end]


def _partial(run: RunContext) -> str | None:
    """What there is of an answer when a run ends early."""
    if run.normalizer.open and run.normalizer.partial_text:
        return run.normalizer.partial_text
    last = run.new_messages[-1] if run.new_messages else None
    # What the run asked of its model, such as to repair a reply, is no answer.
    return last.text if last is not None and last.role == "assistant" else None


def _why(failure: RunFailure | None) -> str:
    code = failure.code if failure is not None else "internal"
    return f"This call has no result: the run ended first ({code})."


def _failure(error: BaseException) -> RunFailure:
    """The wire form of what ended a run. An exception nobody planned for becomes a reference:
    its text may hold content, so the log gets its type and where it was raised."""
    known = _known(error)
    if isinstance(known, RunError):
        return replace(known.to_wire(), code=wire_code(known))
    if known is not None:
        field = known.field if isinstance(known, UnsupportedOption) else None
        return RunFailure(
            code=wire_code(known),
            message=str(known),
            retryable=known.retryable,
            field=field,
            ref=known.ref if isinstance(known, HookFailed) else None,
        )
    ref = uuid.uuid4().hex[:12]
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
    logger.error("unexpected %s at %s (ref %s)", type(error).__qualname__, where, ref)
    return RunFailure(code="internal", message=f"the run failed unexpectedly (ref {ref})", ref=ref)


def _known(error: BaseException) -> HayrunnerError | RunError | None:
    """A pipeline wraps what its components raise: look through to the cause."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, HayrunnerError | RunError):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    return None
