"""OpenTelemetry's SDK, with notes in the place of the worker's own spans (`noted_spans`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
)
from opentelemetry.trace import Link, Span, SpanKind, Tracer, get_current_span

from hayrunner.telemetry import names
from hayrunner.telemetry.noted_spans import NotedSpan, SpanMaker
from hayrunner.telemetry.paced_export import PacedSpanExporter

__all__ = ["NotingProvider"]


class NotingProvider(TracerProvider):
    """The SDK's provider, whose tracer for the worker's own spans takes notes.

    Spans go to `exporter` through the processor that `processing` makes for it, which may look at
    their `context` only. Whoever adds another processor is shown the SDK's spans.
    """

    def __init__(
        self,
        resource: Resource,
        exporter: SpanExporter,
        processing: Callable[[SpanExporter], SpanProcessor],
    ) -> None:
        super().__init__(resource=resource, shutdown_on_exit=False)
        self.exporting = processing(PacedSpanExporter(exporter, SpanMaker(resource)))
        self.maker = SpanMaker(resource, self.exporting)
        self.is_watched = False
        super().add_span_processor(self.exporting)

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """See `TracerProvider`."""
        self.is_watched = True
        super().add_span_processor(span_processor)

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> Tracer:
        """See `TracerProvider`."""
        tracer = super().get_tracer(instrumenting_module_name, *args, **kwargs)
        is_own = instrumenting_module_name == names.SCOPE and isinstance(tracer, SdkTracer)
        return _NotingTracer(tracer, self) if is_own and _is_settled(self.sampler) else tracer


class _NotingTracer(Tracer):
    """Notes what is below another span of this process. The rest is the SDK's: roots, and what
    comes from elsewhere, for which it asks its sampler."""

    def __init__(self, sdk: Tracer, provider: NotingProvider) -> None:
        self._sdk = sdk
        self._provider = provider

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Sequence[Link] | None = (),
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        provider = self._provider
        parent = get_current_span(context).get_span_context()
        is_below = parent.is_valid and not parent.is_remote and parent.trace_flags.sampled
        if not is_below or links or start_time or provider.is_watched:
            return self._sdk.start_span(
                name,
                context,
                kind,
                attributes,
                links,
                start_time,
                record_exception,
                set_status_on_exception,
            )
        span = NotedSpan(name, kind, parent, provider.id_generator.generate_span_id(), self)
        if attributes:
            span.set_attributes(attributes)
        return span

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._sdk.start_as_current_span(*args, **kwargs)

    def ended(self, note: NotedSpan) -> None:
        self._provider.exporting.on_end(cast("ReadableSpan", note))

    def made(self, note: NotedSpan) -> Span:
        return self._provider.maker.made(note)


def _is_settled(sampler: Sampler) -> bool:
    """Whether a sampler takes every span below one of this process that it took. Others are
    asked each time."""
    return sampler in (ALWAYS_ON, DEFAULT_ON) or type(sampler) is ParentBasedTraceIdRatio
