"""A Haystack tracer that keeps what it is given, as the usual ones do with content switched off."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from haystack.tracing.tracer import Span, Tracer
from opentelemetry import trace

__all__ = ["OpenTracer"]


class _OpenSpan(Span):
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set_tag(self, key: str, value: Any) -> None:
        self._span.set_attribute(key, str(value))


class OpenTracer(Tracer):
    """Ordinary tags are attributes, and exceptions are recorded."""

    @contextmanager
    def trace(
        self,
        operation_name: str,
        tags: dict[str, Any] | None = None,
        parent_span: Span | None = None,
    ) -> Generator[Span]:
        """See `haystack.tracing.Tracer`."""
        tracer = trace.get_tracer("haystack")
        with tracer.start_as_current_span(operation_name) as span:
            opened = _OpenSpan(span)
            opened.set_tags(tags or {})
            yield opened

    def current_span(self) -> Span | None:
        """See `haystack.tracing.Tracer`."""
        return _OpenSpan(trace.get_current_span())
