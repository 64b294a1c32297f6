"""The spans of a run, and next to nothing in their place where nobody traces.

The worker's own say more than Haystack's, and are made here. Haystack's are made for a tracer that
somebody else enabled; the worker's is not given those of the loop, which it would count twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from haystack import tracing
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool, flatten_tools_or_toolsets
from haystack.tracing.tracer import NullSpan, Span

from hayrunner.adapters import haystack_internals as internals
from hayrunner.adapters.call_records import INVALID_ARGUMENTS
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.outcome import RunOutcome
from hayrunner.telemetry import names, spans
from hayrunner.telemetry.providers import provider_of
from hayrunner.telemetry.spans import ModelCallSpan, RunSpan, ToolCallSpan
from hayrunner.telemetry.tracer import HaystackTracer
from hayrunner.telemetry.tracing import is_on
from hayrunner_contracts.messages import ChatMessage as WireMessage

__all__ = [
    "NO_SPAN",
    "foreign_tracing",
    "model_span",
    "note_calls_not_run",
    "note_conversation",
    "note_end",
    "note_reply",
    "note_tool_end",
    "run_span",
    "span",
    "tool_call_not_run",
    "tool_call_span",
    "tool_span",
]

NO_SPAN: AbstractContextManager[Span] = nullcontext(NullSpan())
"""For many at once: it keeps nothing."""


# --- Haystack's, for somebody else's tracer


def foreign_tracing() -> bool:
    """Whether Haystack's spans go to a tracer that is not the worker's."""
    return tracing.is_tracing_enabled() and not isinstance(
        tracing.tracer.actual_tracer, HaystackTracer
    )


def span(
    name: str, *, tags: dict[str, Any] | None = None, parent: Span | None = None
) -> AbstractContextManager[Span]:
    """A span of that name, below `parent` or the current one."""
    if not foreign_tracing():
        return NO_SPAN
    parent = parent or tracing.tracer.current_span()
    return tracing.tracer.trace(name, tags=tags, parent_span=parent)


def tool_span(tool: Tool, call: ToolCall, parent: Span | None) -> AbstractContextManager[Span]:
    """The span of a tool call, as Haystack has it."""
    if not foreign_tracing():
        return NO_SPAN
    return internals.create_tool_span(tool, call, parent)


# --- the worker's own


def run_span(run: RunContext) -> AbstractContextManager[RunSpan]:
    """The span of a run, one for each, also of subagents, of pipelines and of authors' adapters."""
    if not is_on():
        return spans.NO_SPAN_OF_A_RUN
    return spans.agent_span(
        agent=run.agent,
        message_id=run.message_id,
        conversation_id=run.thread_id,
        recorded=run.settings.record_content_telemetry,
    )


def note_conversation(run: RunContext, messages: Sequence[ChatMessage]) -> None:
    """The conversation that the current run is given."""
    if is_on():
        spans.current_run_span(run.message_id).asked(lambda: run.to_wire(messages))


def note_end(span: RunSpan, run: RunContext, outcome: RunOutcome) -> None:
    """How the run ended."""
    if not is_on():
        return
    span.ended(
        status=outcome.status,
        exit_reason=outcome.finish_reason,
        error_code=None if outcome.error is None else outcome.error.code,
        usage=outcome.usage,
        steps=outcome.model_calls,
        model=getattr(run.generator, "model", None),
        answer=lambda: _last_said(outcome.messages),
    )


def model_span(
    run: RunContext, generator: Any, inputs: Mapping[str, Any]
) -> AbstractContextManager[ModelCallSpan]:
    """The span of one model call, one for each that is made, whatever becomes of it."""
    if not is_on():
        return spans.NO_SPAN_OF_A_MODEL_CALL
    run.first_chunk_at = None
    call = spans.chat_span(
        provider=provider_of(type(generator)),
        model=getattr(generator, "model", None),
        step=run.normalizer.step,
        cut=lambda call: _note_cut(call, run),
    )
    call.asked(lambda: run.to_wire(inputs["messages"]), lambda: _definitions(inputs.get("tools")))
    return call


def _note_cut(call: ModelCallSpan, run: RunContext) -> None:
    """What there is of the reply of a call that failed, was stopped or was cut."""
    call.replied(
        lambda: _partial(run),
        model=None,
        finish_reason=None,
        usage=run.normalizer.told_usage,
        first_chunk_at=run.first_chunk_at,
    )


def note_reply(call: ModelCallSpan, run: RunContext, reply: ChatMessage) -> None:
    """The whole reply."""
    if is_on():
        call.replied(
            lambda: run.to_wire([reply])[0],
            model=reply.meta.get("model"),
            finish_reason=reply.meta.get("finish_reason", "stop"),
            usage=run.normalizer.usage,
            first_chunk_at=run.first_chunk_at,
        )


def tool_call_span(
    call: ToolCall, tools: Mapping[str, Tool]
) -> AbstractContextManager[ToolCallSpan]:
    """The span of one tool call. `tools` are those there are."""
    if not is_on():
        return spans.NO_SPAN_OF_A_TOOL_CALL
    opened = spans.tool_call_span(call.tool_name, tools, call.id)
    opened.called_with(lambda: _arguments(call))
    return opened


def note_tool_end(span: ToolCallSpan, message: ChatMessage, *, failed: bool) -> None:
    """How a call that was run went, and what the model is told of it."""
    if is_on():
        span.ended(names.FAILED if failed else names.DONE, lambda: _told(message))


def tool_call_not_run(
    call: ToolCall, tools: Mapping[str, Tool], text: str, *, refused: bool = False
) -> None:
    """A call that was answered in the place of its tool: refused by a hook or a person, or not to
    be run at all."""
    if is_on():
        with tool_call_span(call, tools) as span:
            span.ended(names.REFUSED if refused else names.INVALID, lambda: text)


def note_calls_not_run(
    calls: Sequence[ToolCall], answers: Mapping[str | None, str], tools: Mapping[str, Tool]
) -> None:
    """Those of the calls that have an answer already."""
    for call in calls:
        if (told := answers.get(call.id)) is not None:
            tool_call_not_run(call, tools, told)


def _definitions(tools: Any) -> Iterator[Mapping[str, Any]]:
    for tool in flatten_tools_or_toolsets(tools):
        yield {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }


def _arguments(call: ToolCall) -> Mapping[str, Any] | str:
    raw = (call.extra or {}).get(INVALID_ARGUMENTS)
    return call.arguments if raw is None else str(raw)


def _told(message: ChatMessage) -> object:
    result = message.tool_call_result
    return None if result is None else result.result


def _partial(run: RunContext) -> WireMessage | None:
    text = run.normalizer.partial_text
    return WireMessage.assistant(text) if text else None


def _last_said(messages: Sequence[WireMessage]) -> WireMessage | None:
    return next((m for m in reversed(messages) if m.role == "assistant"), None)
