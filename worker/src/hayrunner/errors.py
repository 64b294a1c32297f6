"""Errors of the worker.

HayrunnerError
├── ConfigurationError          settings, agents or options that cannot work
│   └── LossRefused             a change that would throw away what a stream holds
├── ProviderError               the model's server failed, refused or broke off
├── StructuredOutputError       the reply does not satisfy the response format
├── HookFailed                  a hook raised
├── StorageError                a thread could not be loaded or saved
├── RunStopped                  a run ended early, with a code of the wire contract
│   ├── HookStopped
│   ├── ApprovalExpired
│   ├── BudgetSpent
│   ├── MaxTurnsReached
│   └── InvalidToolCall
├── UnsupportedResponseFormat   the generator cannot be asked for structured output
└── UnsupportedOption           an option that the generator or this worker cannot honour
ToolError                       raised by tools: what the model is to be told

No message holds content: what a user, a model, a tool or a provider wrote travels as data
attributes, or not at all. Messages are safe to send to a requester.
"""

from collections.abc import Sequence
from typing import Any

from hayrunner_contracts.errors import ERROR_CODES, ErrorCode, RunError

__all__ = [
    "ApprovalExpired",
    "BudgetSpent",
    "ConfigurationError",
    "HayrunnerError",
    "HookFailed",
    "HookStopped",
    "InvalidToolCall",
    "LossRefused",
    "MaxTurnsReached",
    "ProviderError",
    "RunStopped",
    "StorageError",
    "StructuredOutputError",
    "ToolError",
    "UnsupportedOption",
    "UnsupportedResponseFormat",
    "wire_code",
]


class HayrunnerError(Exception):
    """The root of the tree. `code` is the wire code a run that fails with it ends with."""

    code: ErrorCode = "internal"
    retryable: bool = False


class ConfigurationError(HayrunnerError):
    """Something the author or operator set cannot work; the message says what would."""


class LossRefused(ConfigurationError):
    """A change of streams would throw away what they hold: nothing was changed. `problems` has a
    sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class ProviderError(HayrunnerError):
    """The model's server failed.

    `status` is the HTTP status (None where no response came), `retry_after_s` the wait the
    server asked for in seconds, `retryable` whether the same request may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode = "provider_error",
        status: int | None = None,
        retryable: bool = True,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class StructuredOutputError(HayrunnerError):
    """The reply is not what `response_format` asks for. `raw` is the model's last text."""

    code: ErrorCode = "structured_output"

    def __init__(self, message: str, *, raw: str) -> None:
        super().__init__(message)
        self.raw = raw


class StorageError(HayrunnerError):
    """A thread could not be loaded or saved; the cause is the storage's exception."""

    code: ErrorCode = "storage_error"

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class RunStopped(HayrunnerError):
    """A run ended before its model was done.

    `messages` is the new history so far (Haystack `ChatMessage`s), `usage` what it cost.
    """

    def __init__(
        self, message: str, *, code: ErrorCode = "stopped", messages: Sequence[Any] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.messages = list(messages)


class HookStopped(RunStopped):
    """A hook ended the run; the message is its reason, shown to the requester."""


class ApprovalExpired(RunStopped):
    """A tool call needed an approval that did not come, and the agent ends its run for that."""


class HookFailed(HayrunnerError):
    """A hook raised, or returned what its point does not know. The run ends, failed. `ref` is
    what the log has where it raised."""

    def __init__(self, message: str, *, ref: str | None = None) -> None:
        super().__init__(message)
        self.ref = ref


class BudgetSpent(RunStopped):
    """The run used all of its token budget before it was done."""

    def __init__(self, budget: int, *, messages: Sequence[Any] = ()) -> None:
        super().__init__(
            f"the run used its token_budget of {budget} tokens",
            code="budget_exceeded",
            messages=messages,
        )
        self.budget = budget


class MaxTurnsReached(RunStopped):
    """The run would need one model call more than `max_turns` allows."""

    def __init__(self, max_turns: int, *, messages: Sequence[Any] = ()) -> None:
        super().__init__(
            f"the run needs more than the {max_turns} model calls that max_turns allows",
            code="max_turns",
            messages=messages,
        )
        self.max_turns = max_turns


class InvalidToolCall(RunStopped):
    """The model kept calling tools that do not exist or with arguments that are no object."""

    def __init__(self, retries: int, *, messages: Sequence[Any] = ()) -> None:
        super().__init__(
            "the model made an invalid tool call"
            + (f" again after {retries} corrections" if retries else "")
            + "; max_invalid_tool_call_retries allows no more",
            code="invalid_tool_call",
            messages=messages,
        )
        self.retries = retries


class UnsupportedOption(HayrunnerError):
    """An option of the request that cannot be honoured here. `field` is its path in the request."""

    code: ErrorCode = "invalid_request"

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"options.{field}: {why}")
        self.field = f"options.{field}"


class UnsupportedResponseFormat(HayrunnerError):
    """The generator cannot be asked for structured output. Raised before any model call."""

    code: ErrorCode = "invalid_request"

    def __init__(self, generator: str) -> None:
        super().__init__(f"response_format: {generator} cannot be asked for structured output")
        self.generator = generator


class ToolError(Exception):
    """Raise it in a tool to tell the model what went wrong: its text becomes the tool's output.

    Any other exception of a tool reaches the model, the consumer and the log as a reference
    only, because its text may hold what it should not.
    """


def wire_code(error: HayrunnerError | RunError) -> ErrorCode:
    """The code of the contract that an error stands for. An author's own error may say another
    one, which would be a text of theirs in results, logs and labels."""
    return error.code if error.code in ERROR_CODES else "internal"
