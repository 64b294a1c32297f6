"""OpenTelemetry's SDK, set up in one place, at the edge of a process.

Nothing of the SDK is imported unless traces are configured (`Settings.traces`). What it does from
there on, its own variables say: `OTEL_EXPORTER_OTLP_*`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`,
`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`. A provider that the process has already, from an
application around the worker or from `opentelemetry-instrument`, is used as it is.
"""

import importlib.util
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider, TracerProvider

from hayrunner.settings import Settings
from hayrunner.telemetry.gate import ContentPolicy

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["Export", "content_policy", "exported_metrics", "set_up_export"]

logger = logging.getLogger(__name__)

SERVICE_NAME = "hayrunner"
END_LIMIT_S = 5.0
"""What the end of a process may wait for a collector that does not answer."""
SPANS_AT_ONCE = 128
"""What is put together and sent at once. The SDK's 512 are 2 MB with content, over which the event
loop stood still for up to 15 ms."""

_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


@dataclass(frozen=True, kw_only=True)
class Export:
    """Where spans go. `end` sends what is left and closes, within `END_LIMIT_S`; it closes nothing
    that was there before."""

    provider: TracerProvider
    end: Callable[[], None]


def content_policy(settings: Settings) -> ContentPolicy:
    """The operator's word on content."""
    return ContentPolicy(
        forbidden=settings.content_telemetry == "never", default=settings.captures_content
    )


def set_up_export(settings: Settings) -> Export | None:
    """Make spans go where the environment says; None where it says nothing of the kind."""
    if settings.traces is None:
        return _of_the_process()
    if (existing := _of_the_process()) is not None:
        return existing
    if _missing_packages("traces"):
        return None
    # The SDK's own number where the operator has said something of it.
    said = settings.otel_spans_at_once or settings.otel_spans_waiting
    return _new_export(settings.traces, None if said else SPANS_AT_ONCE)


def _of_the_process() -> Export | None:
    provider = trace.get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Export(provider=provider, end=lambda: None)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def exported_metrics(settings: Settings) -> Generator[None]:
    """Metrics that are made while this goes on are exported, where the environment says so."""
    if settings.metrics is None or _missing_packages("metrics"):
        yield
        return
    from hayrunner.telemetry.metrics_export import export_metrics

    end = export_metrics(
        settings.metrics,
        _resource(),
        interval=settings.otel_metric_interval,
        temporality=settings.otel_temporality,
    )
    try:
        yield
    finally:
        _end(end)


def _missing_packages(what: str) -> bool:
    """Whether the extra is not installed, which is said then."""
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        logger.warning(
            "%s are configured, but %s is not installed: pip install 'hayrunner[otel]'",
            what,
            missing[0],
        )
    return bool(missing)


def _new_export(kind: str, spans_at_once: int | None) -> Export:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    from hayrunner.telemetry.noting_provider import NotingProvider

    # The hooks of the SDK at the end of a process, which it does not set here, have no limit.
    provider = NotingProvider(
        _resource(),
        ConsoleSpanExporter() if kind == "console" else _otlp_exporter(),
        lambda exporter: BatchSpanProcessor(exporter, max_export_batch_size=spans_at_once),
    )
    trace.set_tracer_provider(provider)
    return Export(provider=provider, end=lambda: _end(provider.shutdown))


def _otlp_exporter() -> "SpanExporter":
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    from hayrunner.telemetry.span_encoding import encoding_notes

    # There is no other way to tell the exporter how to encode; it has all the rest.
    trace_exporter.encode_spans = encoding_notes(trace_exporter.encode_spans)
    return trace_exporter.OTLPSpanExporter()


def _resource() -> "Resource":
    from opentelemetry.sdk.resources import SERVICE_NAME as KEY
    from opentelemetry.sdk.resources import Resource

    # What `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say goes first.
    resource = Resource.create({})
    if str(resource.attributes.get(KEY, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({KEY: SERVICE_NAME}))
    if "service.version" not in resource.attributes:
        resource = resource.merge(Resource({"service.version": version("hayrunner")}))
    return resource


def _end(shutdown: Callable[[], None]) -> None:
    """In a thread of its own, which is left behind where a collector takes too long."""
    ending = threading.Thread(target=shutdown, name="end of export", daemon=True)
    ending.start()
    ending.join(END_LIMIT_S)
    if ending.is_alive():
        logger.warning("the collector did not take everything within %g s", END_LIMIT_S)
