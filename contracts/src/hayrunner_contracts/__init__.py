"""The wire contract of Hayrunner: what stands in requests, events, results and commands.

Importing this needs msgspec and nothing else. `RunClient`, the client for NATS, is taken from
here or from `hayrunner_contracts.client`, and needs the extra `client` (nats-py): it is imported
only when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from hayrunner_contracts.chunks import (
    ComponentInfo,
    StreamingChunk,
    ToolCallDelta,
)
from hayrunner_contracts.codec import (
    RequestLimits,
    check_request,
    deadline_of,
    decode_command,
    decode_event,
    decode_request,
    decode_result,
    encode,
    peek_message_id,
)
from hayrunner_contracts.commands import (
    COMMAND_REFUSED,
    COMMAND_TYPES,
    SAID,
    Approve,
    Cancel,
    Deny,
    Modify,
    RunCommand,
    Say,
)
from hayrunner_contracts.documents import (
    ByteStream,
    Document,
    ExtractedAnswer,
    GeneratedAnswer,
    Span,
    SparseEmbedding,
    parse_document,
    parse_documents,
)
from hayrunner_contracts.errors import (
    ERROR_CODES,
    BudgetExceeded,
    BusyThread,
    Cancelled,
    ClientTimeout,
    ContractError,
    DeadlineExceeded,
    ErrorCode,
    InternalError,
    InvalidRequest,
    InvalidToolCallError,
    MaxTurns,
    Overloaded,
    PayloadTooLarge,
    ProviderFailed,
    ProviderRateLimited,
    RunError,
    RunFailure,
    Stopped,
    StorageFailed,
    StructuredOutputFailed,
    Unauthorized,
    UnknownAgent,
    WorkerLost,
    error_from_wire,
    is_retryable,
)
from hayrunner_contracts.events import (
    EVENT_TYPES,
    REPLY_REJECTED,
    Data,
    Error,
    FinishReason,
    MessageEnd,
    MessageStart,
    ModelCallEnd,
    ReasoningChunk,
    RunResumed,
    Source,
    StreamEnd,
    StreamEvent,
    Suggestion,
    TextChunk,
    ToolApprovalRequest,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
    UnknownEvent,
    Usage,
)
from hayrunner_contracts.message_forms import (
    parse_message,
    parse_messages,
)
from hayrunner_contracts.message_ids import (
    new_message_id,
)
from hayrunner_contracts.messages import (
    ChatMessage,
    ContentPart,
    FilePart,
    ImageDetail,
    ImagePart,
    Reasoning,
    Role,
    ToolCall,
    ToolCallResult,
)
from hayrunner_contracts.openai_form import (
    to_openai,
)
from hayrunner_contracts.options import (
    NamedTool,
    RunOptions,
    ToolChoice,
)
from hayrunner_contracts.requests import (
    RunMode,
    RunRequest,
)
from hayrunner_contracts.results import (
    RunResult,
    RunStatus,
)
from hayrunner_contracts.subjects import (
    DEFAULT_NAMESPACE,
)
from hayrunner_contracts.threads import (
    THREAD_RECORD_TYPES,
    Rating,
    Thread,
    ThreadCreated,
    ThreadDeleted,
    ThreadInfo,
    ThreadMessages,
    ThreadRated,
    ThreadRating,
    ThreadRecord,
    ThreadRestored,
    ThreadState,
)

if TYPE_CHECKING:
    from hayrunner_contracts.client import RunClient as RunClient

__all__ = [
    "COMMAND_REFUSED",
    "COMMAND_TYPES",
    "DEFAULT_NAMESPACE",
    "ERROR_CODES",
    "EVENT_TYPES",
    "REPLY_REJECTED",
    "SAID",
    "SCHEMA_VERSION",
    "THREAD_RECORD_TYPES",
    "Approve",
    "BudgetExceeded",
    "BusyThread",
    "ByteStream",
    "Cancel",
    "Cancelled",
    "ChatMessage",
    "ClientTimeout",
    "ComponentInfo",
    "ContentPart",
    "ContractError",
    "Data",
    "DeadlineExceeded",
    "Deny",
    "Document",
    "Error",
    "ErrorCode",
    "ExtractedAnswer",
    "FilePart",
    "FinishReason",
    "GeneratedAnswer",
    "ImageDetail",
    "ImagePart",
    "InternalError",
    "InvalidRequest",
    "InvalidToolCallError",
    "MaxTurns",
    "MessageEnd",
    "MessageStart",
    "ModelCallEnd",
    "Modify",
    "NamedTool",
    "Overloaded",
    "PayloadTooLarge",
    "ProviderFailed",
    "ProviderRateLimited",
    "Rating",
    "Reasoning",
    "ReasoningChunk",
    "RequestLimits",
    "Role",
    "RunCommand",
    "RunError",
    "RunFailure",
    "RunMode",
    "RunOptions",
    "RunRequest",
    "RunResult",
    "RunResumed",
    "RunStatus",
    "Say",
    "Source",
    "Span",
    "SparseEmbedding",
    "Stopped",
    "StorageFailed",
    "StreamEnd",
    "StreamEvent",
    "StreamingChunk",
    "StructuredOutputFailed",
    "Suggestion",
    "TextChunk",
    "Thread",
    "ThreadCreated",
    "ThreadDeleted",
    "ThreadInfo",
    "ThreadMessages",
    "ThreadRated",
    "ThreadRating",
    "ThreadRecord",
    "ThreadRestored",
    "ThreadState",
    "ToolApprovalRequest",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallResult",
    "ToolCallStart",
    "ToolChoice",
    "ToolExecutionCommitted",
    "ToolInputChunk",
    "ToolInputComplete",
    "ToolOutput",
    "Unauthorized",
    "UnknownAgent",
    "UnknownEvent",
    "Usage",
    "WorkerLost",
    "check_request",
    "deadline_of",
    "decode_command",
    "decode_event",
    "decode_request",
    "decode_result",
    "encode",
    "error_from_wire",
    "is_retryable",
    "new_message_id",
    "parse_document",
    "parse_documents",
    "parse_message",
    "parse_messages",
    "peek_message_id",
    "to_openai",
]

SCHEMA_VERSION = "1"
"""Of the wire contract. It changes when an old reader could misread what a new writer sends."""


def __getattr__(name: str) -> Any:
    if name == "RunClient":
        from hayrunner_contracts.client import RunClient

        return RunClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
