"""Stream events: what a run publishes while it goes on, one message each.

`seq` counts from 1 without gaps within one message id, a `run_resumed` aside, which may count back
to what is stored; the worker's publisher sets it when it
publishes, so an event that never left a process has 0. `step` counts model calls from 1 and is
there where an event belongs to one. A field that is None is left out of the JSON.

New event types and new fields may appear in any version: a decoder yields `UnknownEvent` for a
type it does not know, and ignores fields it does not know.
"""

from typing import Any, Literal

import msgspec

__all__ = [
    "EVENT_TYPES",
    "REPLY_REJECTED",
    "Data",
    "Error",
    "FinishReason",
    "MessageEnd",
    "MessageStart",
    "ModelCallEnd",
    "ReasoningChunk",
    "RunResumed",
    "Source",
    "StreamEnd",
    "StreamEvent",
    "Suggestion",
    "TextChunk",
    "ToolApprovalRequest",
    "ToolCallStart",
    "ToolExecutionCommitted",
    "ToolInputChunk",
    "ToolInputComplete",
    "ToolOutput",
    "UnknownEvent",
    "Usage",
]

REPLY_REJECTED = "reply_rejected"
"""The `data_type` of the `data` that says that what the model said in a step does not count: its
`data` is `{"step": n}`."""

FinishReason = Literal[
    "stop", "length", "content_filter", "tool", "max_turns", "cancelled", "error", "stopped"
]


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens, as the provider counted them. `cached_input_tokens` are part of `input_tokens`,
    `reasoning_tokens` part of `output_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


class StreamEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=""
):
    """What every event has."""

    seq: int = 0
    step: int | None = None


class MessageStart(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="message_start"):
    """The run begins. First, and once: a later attempt announces itself by `run_resumed`."""

    message_id: str
    agent: str
    thread_id: str | None = None
    attempt: int = 1


class TextChunk(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="text_chunk"):
    """A piece of the answer's text. Pieces joined in order are the text."""

    content: str


class ReasoningChunk(
    StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="reasoning_chunk"
):
    """A piece of the model's reasoning, where the provider shows it."""

    content: str


class ToolCallStart(
    StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_call_start"
):
    """The model began a tool call. `agent` names the subagent that made it, if one did."""

    tool_call_id: str
    tool_name: str
    agent: str | None = None


class ToolInputChunk(
    StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_input_chunk"
):
    """A piece of a call's arguments, as JSON text."""

    tool_call_id: str
    input_chunk: str


class ToolInputComplete(
    StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_input_complete"
):
    """The arguments as the model wrote them: the object, or the raw text where it is none."""

    tool_call_id: str
    tool_name: str
    tool_input: dict[str, Any] | str
    agent: str | None = None


class ToolApprovalRequest(
    StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_approval_request"
):
    """The run waits for an `approve`, `deny` or `modify` command for this call."""

    tool_call_id: str
    tool_name: str
    tool_input: dict[str, Any]
    expires_at: str | None = None
    agent: str | None = None


class ToolExecutionCommitted(
    StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_execution_committed"
):
    """The tool was run, with these arguments."""

    tool_call_id: str
    tool_name: str
    tool_input: dict[str, Any]
    agent: str | None = None


class ToolOutput(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="tool_output"):
    """What the model is told of the call: text, or content parts. Exactly one per call."""

    tool_call_id: str
    tool_output: str | list[dict[str, Any]]
    is_error: bool = False
    agent: str | None = None


class ModelCallEnd(
    StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="model_call_end"
):
    """One model call ended. `finish_reason` is the provider's, mapped to the usual names; `error`
    where the call broke off and is made again."""

    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


class Source(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="source"):
    """A document the answer may cite by `index`."""

    index: int
    title: str | None = None
    content: str | None = None
    source_id: str | None = None
    tool_call_id: str | None = None
    media_type: str | None = None
    url: str | None = None


class Data(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="data"):
    """Something a tool or hook emitted for the consumer."""

    data_type: str
    data: Any = None


class Suggestion(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="suggestion"):
    """Follow-up questions, at most three."""

    suggestions: list[str]


class RunResumed(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="run_resumed"):
    """Another worker took the run over. Events with a `seq` above `discard_after` that came before
    this one belong to a step that was interrupted: they are void, also where their `seq` is above
    this one's."""

    attempt: int
    discard_after: int


class MessageEnd(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="message_end"):
    """The message is complete. `usage` is the sum over all model calls."""

    finish_reason: FinishReason
    usage: Usage | None = None


class Error(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="error"):
    """The run failed, was cancelled or was stopped; `message_end` and `stream_end` follow."""

    error_code: str
    error_message: str
    retryable: bool = False
    ref: str | None = None


class StreamEnd(StreamEvent, frozen=True, kw_only=True, omit_defaults=True, tag="stream_end"):
    """Nothing follows. Always last, always once."""

    attempt: int = 1


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a type this version does not know. `raw` is its JSON, unchanged."""

    type: str
    seq: int
    raw: bytes


EVENT_TYPES: dict[str, type[StreamEvent]] = {
    str(event.__struct_config__.tag): event
    for event in (
        MessageStart,
        TextChunk,
        ReasoningChunk,
        ToolCallStart,
        ToolInputChunk,
        ToolInputComplete,
        ToolApprovalRequest,
        ToolExecutionCommitted,
        ToolOutput,
        ModelCallEnd,
        Source,
        Data,
        Suggestion,
        RunResumed,
        MessageEnd,
        Error,
        StreamEnd,
    )
}
