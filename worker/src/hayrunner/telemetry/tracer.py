"""Haystack's spans, of those that have a place in the worker's table.

The agent loop makes its spans itself; what comes here are the model and tool calls of pipelines,
and of Haystack components that authors run on their own. Everything else that Haystack traces
(pipelines, components, steps, hooks) is not exported: their parents are found through it.

Tags of content always arrive, as usage comes in them only. What is kept of them is the current
run's to say, decided when the span is made.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, cast

import msgspec
from haystack import tracing
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.tracing.tracer import Span, Tracer
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from hayrunner.telemetry import gate, names, spans
from hayrunner.telemetry.gate import ContentPolicy
from hayrunner.telemetry.spans import ModelCallSpan, ToolCallSpan
from hayrunner.telemetry.tracing import turn_off, turn_on
from hayrunner.token_counts import usage_from
from hayrunner_contracts.messages import ChatMessage as WireMessage

__all__ = ["HaystackTracer", "start_tracing", "stop_tracing"]


def start_tracing(
    provider: TracerProvider | None = None, policy: ContentPolicy | None = None
) -> None:
    """Trace everything in this process from now on, Haystack's own spans included. A Haystack
    tracer that somebody else enabled is put aside: it would keep content that may not be kept."""
    turn_on(provider, policy)
    tracing.enable_tracing(HaystackTracer())


def stop_tracing() -> None:
    """Trace nothing any more."""
    turn_off()
    if isinstance(tracing.tracer.actual_tracer, HaystackTracer):
        tracing.disable_tracing()


class HaystackTracer(Tracer):
    """Exports model calls and tool calls, and passes everything else over."""

    @contextmanager
    def trace(
        self,
        operation_name: str,
        tags: dict[str, Any] | None = None,
        parent_span: Span | None = None,
    ) -> Generator[Span]:
        """See `haystack.tracing.Tracer`."""
        tags = tags or {}
        parent = _context_of(parent_span)
        with ExitStack() as stack:
            yield _opened(stack, operation_name, tags, parent)

    def current_span(self) -> Span | None:
        """See `haystack.tracing.Tracer`."""
        current, exported = trace.get_current_span(), _current.get()
        if exported is not None and exported.above is current:
            return exported
        return _Passing(current)


class _Passing(Span):
    """Not exported. Knows the span that is above whatever is below it."""

    def __init__(self, above: trace.Span) -> None:
        self.above = above

    def set_tag(self, key: str, value: Any) -> None:
        return

    def set_content_tag(self, key: str, value: Any) -> None:
        return

    def raw_span(self) -> Any:
        return self.above


class _Exported(_Passing):
    """One that has a place in the table. Of ordinary tags it takes those that may pass."""

    def __init__(self, tags: Mapping[str, Any]) -> None:
        super().__init__(trace.get_current_span())
        self.set_tags(dict(tags))

    def set_tag(self, key: str, value: Any) -> None:
        if (name := gate.ordinary_tag(key)) is not None:
            self.above.set_attribute(name, str(value))


_current: ContextVar[_Exported | None] = ContextVar("hayrunner_haystack_span", default=None)


@contextmanager
def _as_current(span: _Exported) -> Generator[_Exported]:
    token = _current.set(span)
    try:
        yield span
    finally:
        _current.reset(token)


class _ModelCall(_Exported):
    """A model call: of a component, or of a step of Haystack's own agent."""

    def __init__(self, call: ModelCallSpan, tags: Mapping[str, Any]) -> None:
        super().__init__(tags)
        self._call = call

    def set_content_tag(self, key: str, value: Any) -> None:
        # Asked of the span itself whether any of it is kept.
        if not isinstance(value, Mapping):
            return
        tagged = cast("Mapping[str, Any]", value)
        if key.endswith(".input"):
            self._asked(tagged)
        elif key.endswith(".output"):
            self._replied(tagged)

    def _asked(self, given: Mapping[str, Any]) -> None:
        asked, tools = given.get("messages") or given.get("prompt"), given.get("tools")
        self._call.asked(lambda: _wire_messages(asked), lambda: _definitions(tools))

    def _replied(self, given: Mapping[str, Any]) -> None:
        replies = given.get("replies")
        reply = replies[0] if isinstance(replies, list) and replies else None
        meta = reply.meta if isinstance(reply, ChatMessage) else _first(given.get("meta"))
        usage = meta.get("usage")
        self._call.replied(
            lambda: next(iter(_wire_messages(reply, role="assistant")), None),
            model=meta.get("model"),
            finish_reason=meta.get("finish_reason", "stop"),
            usage=usage_from(usage) if isinstance(usage, Mapping) else None,
        )


class _ToolCall(_Exported):
    """A tool call of Haystack's own agent."""

    def __init__(self, call: ToolCallSpan, tags: Mapping[str, Any]) -> None:
        super().__init__(tags)
        self._call = call
        self._failed = False

    def set_tag(self, key: str, value: Any) -> None:
        super().set_tag(key, value)
        if key == "haystack.tool.error" and value is True:
            self._failed = True
            self._call.ended(names.FAILED, lambda: None)

    def set_content_tag(self, key: str, value: Any) -> None:
        if key.endswith(".input"):
            self._call.called_with(lambda: cast("Mapping[str, Any]", value))
        elif key.endswith(".output"):
            self._call.ended(names.FAILED if self._failed else names.DONE, lambda: value)


def _opened(stack: ExitStack, name: str, tags: Mapping[str, Any], parent: Context | None) -> Span:
    """The span for one of Haystack's, ended by `stack`."""
    if name == "haystack.agent.step.tool":
        tool = str(tags.get("haystack.tool.name"))
        # Haystack makes a span for a tool that it has, and none for one that it has not.
        opened = spans.tool_call_span(tool, {tool}, None, parent=parent)
        return stack.enter_context(_as_current(_ToolCall(stack.enter_context(opened), tags)))
    if _is_model_call(name, tags):
        provider = names.PROVIDERS.get(str(tags.get("haystack.component.type")), names.OTHER)
        opened = spans.chat_span(provider=provider, model=None, parent=parent)
        return stack.enter_context(_as_current(_ModelCall(stack.enter_context(opened), tags)))
    return _Passing(trace.get_current_span(parent))


def _is_model_call(name: str, tags: Mapping[str, Any]) -> bool:
    if name in ("haystack.agent.step.llm", "haystack.chat_generator.run"):
        return True
    if name != "haystack.component.run":
        return False
    # The only tag that tells a generator from other components; nothing of it is kept.
    return "replies" in (tags.get("haystack.component.output_spec") or {})


def _context_of(parent: Span | None) -> Context | None:
    if isinstance(parent, _Passing):
        return trace.set_span_in_context(parent.above)
    return None


def _wire_messages(value: Any, *, role: str = "user") -> list[WireMessage]:
    """Messages, or the text that generators without messages take and give."""
    values = cast("list[Any]", value if isinstance(value, list) else [value])
    found: list[WireMessage] = []
    for item in values:
        if isinstance(item, ChatMessage):
            plain = msgspec.to_builtins(item.to_dict(), enc_hook=str, str_keys=True)
            found.append(msgspec.convert(plain, WireMessage))
        elif isinstance(item, str):
            found.append(WireMessage.user(item) if role == "user" else WireMessage.assistant(item))
    return found


def _definitions(tools: Any) -> Iterator[Mapping[str, Any]]:
    for tool in tools if isinstance(tools, Sequence) else ():
        if isinstance(tool, Tool):
            yield {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            }


def _first(values: Any) -> Mapping[str, Any]:
    """The first of a list of metadata; empty where there is none."""
    found = cast("list[Any]", values)[0] if isinstance(values, list) and values else {}
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
