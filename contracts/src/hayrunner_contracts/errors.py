"""Errors of the contract: one exception class per wire code, raised from the wire form.

RunError                    what every one of them is; `code`, `retryable`, `ref`
├── InvalidRequest          invalid_request         `field` names what is wrong
├── UnknownAgent            unknown_agent
├── Unauthorized            unauthorized
├── Overloaded              overloaded              try again
├── PayloadTooLarge         payload_too_large
├── MaxTurns                max_turns
├── InvalidToolCallError    invalid_tool_call
├── StructuredOutputFailed  structured_output
├── ProviderFailed          provider_error          try again
│   └── ProviderRateLimited provider_rate_limited   try again
├── DeadlineExceeded        deadline_exceeded
├── BudgetExceeded          budget_exceeded
├── Cancelled               cancelled
├── Stopped                 stopped
├── StorageFailed           storage_error           try again
├── BusyThread              busy_thread             try again
├── WorkerLost              worker_lost             try again
└── InternalError           internal
ClientTimeout               the client waited as long as it was told; says nothing of the run
ContractError               bytes that are no event or result of this contract; a ValueError
"""

from typing import Any, ClassVar, Literal, get_args

import msgspec

__all__ = [
    "ERROR_CODES",
    "BudgetExceeded",
    "BusyThread",
    "Cancelled",
    "ClientTimeout",
    "ContractError",
    "DeadlineExceeded",
    "ErrorCode",
    "InternalError",
    "InvalidRequest",
    "InvalidToolCallError",
    "MaxTurns",
    "Overloaded",
    "PayloadTooLarge",
    "ProviderFailed",
    "ProviderRateLimited",
    "RunError",
    "RunFailure",
    "Stopped",
    "StorageFailed",
    "StructuredOutputFailed",
    "Unauthorized",
    "UnknownAgent",
    "WorkerLost",
    "error_from_wire",
    "is_retryable",
]

ErrorCode = Literal[
    "invalid_request",
    "unknown_agent",
    "unauthorized",
    "overloaded",
    "payload_too_large",
    "max_turns",
    "invalid_tool_call",
    "structured_output",
    "provider_error",
    "provider_rate_limited",
    "deadline_exceeded",
    "budget_exceeded",
    "cancelled",
    "stopped",
    "storage_error",
    "busy_thread",
    "worker_lost",
    "internal",
]
ERROR_CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)


class RunFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The wire form of an error.

    `code` is stable, `message` safe to show and never matched on, `retryable` says whether the
    same request may succeed later, `ref` finds the worker's log line with the cause.
    """

    code: str
    message: str
    retryable: bool = False
    ref: str | None = None
    field: str | None = None


class RunError(Exception):
    """A run, or a request for one, failed. Catch this to catch every wire code."""

    code: ClassVar[ErrorCode] = "internal"
    retryable_by_default: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        retryable: bool | None = None,
        ref: str | None = None,
        field: str | None = None,
        result: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = self.retryable_by_default if retryable is None else retryable
        self.ref = ref
        self.field = field
        self.result = result
        """The `RunResult` that carried the error, where there is one: usage, partial answer."""

    def to_wire(self) -> RunFailure:
        """The form that travels in results and `error` events."""
        return RunFailure(
            code=self.code,
            message=self.message,
            retryable=self.retryable,
            ref=self.ref,
            field=self.field,
        )


class InvalidRequest(RunError):
    """The request cannot be understood or cannot be honoured. `field` is the path to what is
    wrong, such as `options.max_turns` or `messages[2].content`."""

    code = "invalid_request"


class UnknownAgent(RunError):
    """No worker ever served an agent of that name in that namespace."""

    code = "unknown_agent"


class Unauthorized(RunError):
    """The requester may not do this."""

    code = "unauthorized"


class Overloaded(RunError):
    """No slot, or the queue is at its limit. Try again later."""

    code = "overloaded"
    retryable_by_default = True


class PayloadTooLarge(RunError):
    """The request, an event or the answer is larger than the limit the message names."""

    code = "payload_too_large"


class MaxTurns(RunError):
    """The run needed more model calls than `max_turns`."""

    code = "max_turns"


class InvalidToolCallError(RunError):
    """The model kept making tool calls that cannot be run."""

    code = "invalid_tool_call"


class StructuredOutputFailed(RunError):
    """The reply did not satisfy `response_format` or `then_format`, after one repair turn."""

    code = "structured_output"

    @property
    def raw(self) -> str | None:
        """What the model replied last; None where the error came without its result."""
        answer = getattr(self.result, "answer", None)
        return answer if isinstance(answer, str) else None


class ProviderFailed(RunError):
    """The model's server failed or refused."""

    code = "provider_error"
    retryable_by_default = True


class ProviderRateLimited(ProviderFailed):
    """The model's server asked to slow down."""

    code = "provider_rate_limited"


class DeadlineExceeded(RunError):
    """The run was not done by its deadline, time in the queue included."""

    code = "deadline_exceeded"


class BudgetExceeded(RunError):
    """The run used more tokens than `token_budget`."""

    code = "budget_exceeded"


class Cancelled(RunError):
    """Somebody cancelled the run."""

    code = "cancelled"


class Stopped(RunError):
    """A hook stopped the run; the message is its reason."""

    code = "stopped"


class StorageFailed(RunError):
    """A thread could not be loaded or saved, or something too large for one message could not be
    stored or read."""

    code = "storage_error"
    retryable_by_default = True


class BusyThread(RunError):
    """Another run is using the thread, and the request said not to wait."""

    code = "busy_thread"
    retryable_by_default = True


class WorkerLost(RunError):
    """Every worker that tried the run died."""

    code = "worker_lost"
    retryable_by_default = True


class InternalError(RunError):
    """Something that should not happen; `ref` finds it in the worker's log."""

    code = "internal"


class ClientTimeout(Exception):
    """The client's own timeout passed. The run may still be going on: attach to it, or cancel."""


class ContractError(ValueError):
    """An event or a result that cannot be read: broken JSON, or a field of the wrong type. The
    message says where, without the content."""


_BY_CODE: dict[str, type[RunError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        UnknownAgent,
        Unauthorized,
        Overloaded,
        PayloadTooLarge,
        MaxTurns,
        InvalidToolCallError,
        StructuredOutputFailed,
        ProviderFailed,
        ProviderRateLimited,
        DeadlineExceeded,
        BudgetExceeded,
        Cancelled,
        Stopped,
        StorageFailed,
        BusyThread,
        WorkerLost,
        InternalError,
    )
}


def is_retryable(code: str) -> bool:
    """Whether trying again can help, where the error itself does not say."""
    return _BY_CODE.get(code, InternalError).retryable_by_default


def error_from_wire(failure: RunFailure, *, result: Any = None) -> RunError:
    """The exception for a wire error; an unknown code becomes `InternalError` with its text."""
    error = _BY_CODE.get(failure.code, InternalError)
    return error(
        failure.message,
        retryable=failure.retryable,
        ref=failure.ref,
        field=failure.field,
        result=result,
    )
