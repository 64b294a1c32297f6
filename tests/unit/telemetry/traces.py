"""The spans that were exported, and what tests ask of them."""

import json
from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hayrunner.telemetry.gate import ContentPolicy
from hayrunner.telemetry.noting_provider import NotingProvider
from hayrunner.telemetry.tracer import start_tracing

__all__ = ["Traces", "attributes", "decoded", "parent_of", "said_nothing_of_errors"]


class Traces:
    """Everything that was exported, in the order it ended. `noted` is how a worker exports that
    sets it up itself; otherwise spans go to an SDK that was there before."""

    def __init__(self, *, noted: bool = True) -> None:
        self._exporter = InMemorySpanExporter()
        resource = Resource({"service.name": "hayrunner"})
        if noted:
            self.provider = NotingProvider(resource, self._exporter, SimpleSpanProcessor)
        else:
            self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def start(self, policy: ContentPolicy | None = None) -> None:
        start_tracing(self.provider, policy)

    def close(self) -> None:
        self.provider.shutdown()

    def clear(self) -> None:
        self._exporter.clear()

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, start: str) -> list[ReadableSpan]:
        """Those whose name begins so, in the order they began."""
        found = [span for span in self.spans if span.name.startswith(start)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, start: str) -> ReadableSpan:
        (span,) = self.named(start)
        return span

    def above(self, span: ReadableSpan) -> str | None:
        """The name of its parent; None for a root."""
        parent = parent_of(span, self.spans)
        return None if parent is None else parent.name

    def tree(self) -> list[tuple[str, str | None]]:
        """Names, each with its parent's, in the order they began."""
        return [(span.name, self.above(span)) for span in self.named("")]

    def texts(self) -> Iterator[str]:
        """All that is said anywhere in them, raw."""
        for span in self.spans:
            yield span.to_json()


def parent_of(span: ReadableSpan, spans: list[ReadableSpan]) -> ReadableSpan | None:
    if span.parent is None:
        return None
    by_id = {other.context.span_id: other for other in spans if other.context is not None}
    return by_id.get(span.parent.span_id)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def decoded(span: ReadableSpan, name: str) -> Any:
    """An attribute that is JSON; None where there is none."""
    value = attributes(span).get(name)
    return None if value is None else json.loads(value)


def said_nothing_of_errors(traces: Traces) -> bool:
    """Whether no span has an event or a status text."""
    return all(not span.events and span.status.description is None for span in traces.spans)
