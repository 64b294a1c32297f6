"""What a requester is told of a failure."""

from typing import Literal

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.errors import HayrunnerError, ProviderError
from hayrunner.telemetry.logs import cause_of, get_logger, new_ref
from hayrunner_contracts.errors import ErrorCode, RunError, RunFailure, is_retryable

__all__ = ["failed", "failure", "failure_of"]

_log = get_logger(__name__)

_MESSAGES: dict[str, str] = {
    "cancelled": "the run was cancelled",
    "deadline_exceeded": "the run was not done by its deadline",
    "overloaded": "this worker has no free slot; try again later",
    "worker_lost": "every worker that tried this run was lost; a new request may work",
}


def failure(code: ErrorCode, message: str | None = None) -> RunFailure:
    """A failure with the usual text of its code."""
    return RunFailure(code=code, message=message or _MESSAGES[code], retryable=is_retryable(code))


def failure_of(error: BaseException) -> RunFailure:
    """The wire form of an exception: errors of our own as they are, their texts being safe;
    anything else as `internal`, with a `ref` that finds its type and place in the log."""
    if isinstance(error, RunError):
        return error.to_wire()
    if isinstance(error, HayrunnerError):
        field = getattr(error, "field", None)
        return RunFailure(
            code=error.code,
            message=str(error),
            retryable=error.retryable,
            field=field if isinstance(field, str) else None,
            ref=_logged(error) if isinstance(error, ProviderError) else None,
        )
    ref = _logged(error)
    return RunFailure(
        code="internal", message=f"an unexpected error; the worker's log has it as {ref}", ref=ref
    )


def failed(cause: RunFailure, finish_reason: Literal["error", "cancelled"] = "error") -> RunOutcome:
    """The outcome of a run that ended with nothing but this failure."""
    status: Literal["failed", "cancelled"] = (
        "cancelled" if finish_reason == "cancelled" else "failed"
    )
    return RunOutcome(status=status, finish_reason=finish_reason, error=cause)


def _logged(error: BaseException) -> str:
    ref = new_ref()
    _log.error("a run failed", ref=ref, **cause_of(error))
    return ref
