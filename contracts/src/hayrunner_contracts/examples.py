"""One example of every type that stands on the wire: for the schemas, the documents and tests."""

import msgspec

from hayrunner_contracts.chunks import ComponentInfo, StreamingChunk, ToolCallDelta
from hayrunner_contracts.commands import Approve, Cancel, Deny, Modify, Say
from hayrunner_contracts.documents import (
    ByteStream,
    Document,
    ExtractedAnswer,
    GeneratedAnswer,
    Span,
    SparseEmbedding,
)
from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import (
    Data,
    Error,
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
    Usage,
)
from hayrunner_contracts.messages import (
    ChatMessage,
    ContentPart,
    FilePart,
    ImagePart,
    Reasoning,
    ToolCall,
    ToolCallResult,
)
from hayrunner_contracts.options import NamedTool, RunOptions
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.threads import (
    Thread,
    ThreadCreated,
    ThreadDeleted,
    ThreadMessages,
    ThreadRated,
    ThreadRating,
    ThreadRecord,
    ThreadRestored,
    ThreadState,
)

__all__ = [
    "COMMANDS",
    "DATA_CLASSES",
    "EVENTS",
    "FULL_REQUEST",
    "MESSAGES",
    "REQUESTS",
    "RESULTS",
    "THREADS",
    "THREAD_RECORDS",
]

_MESSAGE_ID = "01981a60-0000-7000-8000-000000000001"
_USAGE = Usage(
    input_tokens=120,
    output_tokens=30,
    total_tokens=150,
    cached_input_tokens=100,
    reasoning_tokens=8,
)
_CALL = ToolCall(tool_name="find_order", arguments={"order": 7}, id="call-1")
_SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}

MESSAGES: dict[str, ChatMessage] = {
    "system": ChatMessage.system("Answer in one sentence."),
    "user": ChatMessage(
        role="user",
        name="ada",
        content=[
            ContentPart(text="What is on these?"),
            ContentPart(
                image=ImagePart(base64_image="iVBORw0KGgo=", mime_type="image/png", detail="low")
            ),
            ContentPart(
                file=FilePart(base64_data="JVBERi0=", mime_type="application/pdf", filename="a.pdf")
            ),
        ],
    ),
    "assistant": ChatMessage(
        role="assistant",
        content=[
            ContentPart(reasoning=Reasoning(reasoning_text="I need the order.")),
            ContentPart(text="Let me look."),
            ContentPart(tool_call=_CALL),
        ],
        meta={"model": "some-model"},
    ),
    "tool": ChatMessage.tool("shipped", origin=_CALL),
    "tool_parts": ChatMessage(
        role="tool",
        content=[
            ContentPart(
                tool_call_result=ToolCallResult(
                    result=[ContentPart(text="shipped")], origin=_CALL, error=True
                )
            )
        ],
    ),
}

_DOCUMENT = Document(
    id="doc-1",
    content="Orders ship on Mondays.",
    blob=ByteStream(data=[72, 105], meta={"page": 1}, mime_type="text/plain"),
    meta={"title": "Shipping", "url": "https://example.org/shipping"},
    score=0.75,
    embedding=[0.5, -0.25],
    sparse_embedding=SparseEmbedding(indices=[3, 8], values=[0.5, 0.125]),
)

DATA_CLASSES: dict[str, msgspec.Struct] = {
    "byte_stream": ByteStream(data=[0, 255], meta={"a": 1}, mime_type="image/png"),
    "component_info": ComponentInfo(type="some.Generator", name="llm"),
    "document": _DOCUMENT,
    "extracted_answer": ExtractedAnswer(
        query="When do orders ship?",
        score=0.9,
        data="on Mondays",
        document=_DOCUMENT,
        context="Orders ship on Mondays.",
        document_offset=Span(start=12, end=22),
        context_offset=Span(start=12, end=22),
        meta={"page": 1},
    ),
    "generated_answer": GeneratedAnswer(
        data="On Mondays.", query="When do orders ship?", documents=[_DOCUMENT], meta={"a": 1}
    ),
    "sparse_embedding": SparseEmbedding(indices=[3, 8], values=[0.5, 0.125]),
    "streaming_chunk": StreamingChunk(
        content="",
        meta={"model": "some-model"},
        component_info=ComponentInfo(type="some.Generator", name="llm"),
        index=0,
        tool_calls=[ToolCallDelta(index=0, tool_name="find_order", arguments='{"o', id="call-1")],
        start=True,
        finish_reason="tool_calls",
    ),
    "streaming_chunk_reasoning": StreamingChunk(
        content="", index=0, reasoning=Reasoning(reasoning_text="I need the order.")
    ),
    "streaming_chunk_result": StreamingChunk(
        content="",
        index=0,
        tool_call_result=ToolCallResult(result="shipped", origin=_CALL),
        finish_reason="tool_call_results",
    ),
    "tool_call_delta": ToolCallDelta(
        index=1, tool_name="find_order", arguments='{"order": 7}', id="call-1", extra={"a": 1}
    ),
}

FULL_REQUEST = RunRequest(
    message_id=_MESSAGE_ID,
    messages=[MESSAGES["system"], MESSAGES["user"]],
    mode="answer",
    thread_id="thread-7",
    user="user-42",
    tools=True,
    response_format=None,
    options=RunOptions(
        max_turns=5,
        preamble="Answer in one sentence.",
        history=[MESSAGES["assistant"], MESSAGES["tool"]],
        memory=False,
        documents=[_DOCUMENT],
        temperature=0.2,
        max_tokens=500,
        merge_params={"seed": 1},
        replace_params=None,
        tool_choice=NamedTool(name="find_order"),
        tool_choice_every_step=True,
        tool_context={"tenant": "acme"},
        tool_concurrency=2,
        max_invalid_tool_call_retries=1,
        record_content_telemetry=True,
        hooks=["audit"],
        deadline=None,
        token_budget=10_000,
        then_format=_SCHEMA,
        on_busy_thread="reject",
    ),
    timeout_s=30.0,
    metadata={"ticket": "T-1"},
    include_messages=True,
)

REQUESTS: dict[str, RunRequest] = {
    "run_request": RunRequest(prompt="Where is order 7?"),
    "run_request_full": FULL_REQUEST,
}

EVENTS: dict[str, StreamEvent] = {
    "message_start": MessageStart(
        seq=1, message_id=_MESSAGE_ID, agent="support", thread_id="thread-7"
    ),
    "text_chunk": TextChunk(seq=2, step=1, content="Let me look."),
    "reasoning_chunk": ReasoningChunk(seq=3, step=1, content="I need the order."),
    "tool_call_start": ToolCallStart(
        seq=4, step=1, tool_call_id="call-1", tool_name="find_order", agent="researcher"
    ),
    "tool_input_chunk": ToolInputChunk(
        seq=5, step=1, tool_call_id="call-1", input_chunk='{"order": 7}'
    ),
    "tool_input_complete": ToolInputComplete(
        seq=6,
        step=1,
        tool_call_id="call-1",
        tool_name="find_order",
        tool_input={"order": 7},
        agent="researcher",
    ),
    "tool_approval_request": ToolApprovalRequest(
        seq=7,
        step=1,
        tool_call_id="call-1",
        tool_name="find_order",
        tool_input={"order": 7},
        expires_at="2026-01-31T12:00:00Z",
        agent="researcher",
    ),
    "tool_execution_committed": ToolExecutionCommitted(
        seq=8,
        step=1,
        tool_call_id="call-1",
        tool_name="find_order",
        tool_input={"order": 7},
        agent="researcher",
    ),
    "tool_output": ToolOutput(
        seq=9, step=1, tool_call_id="call-1", tool_output="shipped", is_error=True, agent="helper"
    ),
    "model_call_end": ModelCallEnd(
        seq=10, step=1, model="some-model", finish_reason="tool_calls", usage=_USAGE
    ),
    "source": Source(
        seq=11,
        step=1,
        index=1,
        title="Shipping",
        content="Orders ship on Mondays.",
        source_id="doc-1",
        tool_call_id="call-1",
        media_type="text/plain",
        url="https://example.org/shipping",
    ),
    "data": Data(seq=12, step=1, data_type="progress", data={"percent": 50}),
    "suggestion": Suggestion(seq=13, suggestions=["When will it arrive?"]),
    "run_resumed": RunResumed(seq=14, attempt=2, discard_after=3),
    "message_end": MessageEnd(seq=15, finish_reason="stop", usage=_USAGE),
    "error": Error(
        seq=16,
        error_code="provider_error",
        error_message="The model's server failed.",
        retryable=True,
        ref="r-1a2b",
    ),
    "stream_end": StreamEnd(seq=17),
}

RESULTS: dict[str, RunResult] = {
    "run_result": RunResult(
        message_id=_MESSAGE_ID,
        agent="support",
        status="completed",
        answer="It was shipped.",
        finish_reason="stop",
        usage=_USAGE,
        model_calls=2,
        messages=[MESSAGES["assistant"], MESSAGES["tool"], ChatMessage.assistant("Shipped.")],
        last_seq=17,
        metadata={"ticket": "T-1"},
        thread_id="thread-7",
        requested_at="2026-01-31T12:00:00.000000Z",
        started_at="2026-01-31T12:00:00.100000Z",
        ended_at="2026-01-31T12:00:02.000000Z",
    ),
    "run_result_failed": RunResult(
        message_id=_MESSAGE_ID,
        agent="support",
        status="failed",
        finish_reason="error",
        attempts=2,
        error=RunFailure(
            code="provider_error",
            message="The model's server failed.",
            retryable=True,
            ref="r-1a2b",
            field="options.max_turns",
        ),
    ),
}

COMMANDS: dict[str, msgspec.Struct] = {
    "cancel": Cancel(reason="no longer needed"),
    "approve": Approve(tool_call_id="call-1", feedback="fine"),
    "deny": Deny(tool_call_id="call-1", feedback="not this one"),
    "modify": Modify(tool_call_id="call-1", tool_input={"order": 8}, feedback="the other one"),
    "say": Say(text="Also check order 8."),
}

_AT = "2026-01-02T03:04:05.678Z"
_SAID = ThreadMessages(
    at=_AT,
    message_id=_MESSAGE_ID,
    agent="support",
    messages=[ChatMessage.user("Where is order 7?"), ChatMessage.assistant("On its way.")],
)

THREAD_RECORDS: dict[str, ThreadRecord] = {
    "created": ThreadCreated(at=_AT, title="Order 7"),
    "messages": _SAID,
    "rated": ThreadRated(at=_AT, message_id=_MESSAGE_ID, rating="up", comment="Quick."),
    "deleted": ThreadDeleted(at=_AT),
    "restored": ThreadRestored(at=_AT),
}

THREADS: dict[str, ThreadState] = {
    "thread_state": ThreadState(
        created_at=_AT, updated_at=_AT, title="Order 7", runs=1, messages=2
    ),
    "thread": Thread(
        thread_id="thread-7",
        created_at=_AT,
        updated_at=_AT,
        title="Order 7",
        runs=1,
        messages=2,
        log=[_SAID],
        ratings={_MESSAGE_ID: ThreadRating(rating=4.5, at=_AT)},
    ),
}
