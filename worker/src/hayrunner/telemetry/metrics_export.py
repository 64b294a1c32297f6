"""The worker's metrics through OpenTelemetry's SDK, to a collector.

Nothing of the SDK is imported before this is called. Whither, how often and under which name is
said by its own variables: `OTEL_EXPORTER_OTLP_*`, `OTEL_METRIC_EXPORT_INTERVAL`,
`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource

__all__ = ["export_metrics"]


def export_metrics(
    kind: Literal["otlp", "console"],
    resource: "Resource | None" = None,
    *,
    interval: str = "",
    temporality: str = "",
) -> Callable[[], None]:
    """Export what `Metrics` that are made from now on record. The result sends what is left and
    ends it. `interval` and `temporality` are what `OTEL_METRIC_EXPORT_INTERVAL` and
    `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` say; see `SeriesExport`.

    So is whatever else of this process records metrics with OpenTelemetry, such as an author's
    tools. A meter provider that the process has already is used as it is, and not ended.
    `ModuleNotFoundError` where the SDK or the exporter is not installed.
    """
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    from hayrunner.telemetry.instruments import read_for_export, read_no_more
    from hayrunner.telemetry.series_export import SeriesExport

    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return lambda: None
    resource = resource or Resource.create({})
    export = SeriesExport(
        _exporter(kind),
        read_for_export(),
        resource,
        interval=interval,
        temporality=temporality,
    )
    reader = PeriodicExportingMetricReader(_exporter(kind))
    # Its own hook at the end of the process has no limit.
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)

    def end() -> None:
        export.end()
        read_no_more()
        provider.shutdown()

    return end


def _exporter(kind: Literal["otlp", "console"]) -> "MetricExporter":
    if kind == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()
