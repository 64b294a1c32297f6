"""Haystack's spans, and next to nothing in their place where nobody traces."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from haystack import tracing
from haystack.dataclasses import ToolCall
from haystack.tools import Tool
from haystack.tracing.tracer import NullSpan, Span

from hayrunner.adapters import haystack_internals as internals

__all__ = ["NO_SPAN", "span", "tool_span"]

NO_SPAN: AbstractContextManager[Span] = contextlib.nullcontext(NullSpan())
"""For many at once: it keeps nothing."""


def span(
    name: str, *, tags: dict[str, Any] | None = None, parent: Span | None = None
) -> AbstractContextManager[Span]:
    """A span of that name, below `parent` or the current one."""
    if not tracing.is_tracing_enabled():
        return NO_SPAN
    parent = parent or tracing.tracer.current_span()
    return tracing.tracer.trace(name, tags=tags, parent_span=parent)


def tool_span(tool: Tool, call: ToolCall, parent: Span | None) -> AbstractContextManager[Span]:
    """The span of a tool call, as Haystack has it."""
    if not tracing.is_tracing_enabled():
        return NO_SPAN
    return internals.create_tool_span(tool, call, parent)
