"""Metrics as the worker exports them itself: Prometheus' numbers, read when it is time to."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.resources import Resource
from prometheus_client.utils import floatToGoString
from tests.unit.telemetry.test_metrics import fill, value

from hayrunner.telemetry import instruments
from hayrunner.telemetry.definitions import ALL, Definition
from hayrunner.telemetry.instruments import Instrument
from hayrunner.telemetry.metrics import Metrics
from hayrunner.telemetry.series_export import SeriesExport
from hayrunner_contracts.testing import eventually

DELTA = AggregationTemporality.DELTA
CUMULATIVE = AggregationTemporality.CUMULATIVE


class Kept(MetricExporter):
    """Keeps what it is given, by name, export by export."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[dict[str, Any]] = []
        self.resource: Resource | None = None
        self.closed = False
        self.raises: Exception | None = None

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        [of_resource] = metrics_data.resource_metrics
        [of_scope] = of_resource.scope_metrics
        assert of_scope.scope.name == "hayrunner"
        self.resource = of_resource.resource
        self.exports.append({metric.name: metric for metric in of_scope.metrics})
        if self.raises is not None:
            raise self.raises
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.closed = True


@pytest.fixture
def read() -> Iterator[list[Instrument]]:
    yield instruments.read_for_export()
    instruments.read_no_more()


@pytest.fixture
def kept() -> Kept:
    return Kept()


def exported(kept: Kept, read: list[Instrument], *, interval: str = "") -> dict[str, Any]:
    SeriesExport(kept, read, Resource({"service.name": "w"}), interval=interval).end()
    assert kept.closed
    return kept.exports[-1]


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_a_collector_gets_prometheus_numbers(
    definition: Definition, read: list[Instrument], kept: Kept
) -> None:
    metrics = Metrics(["support"])
    fill(metrics)
    metric = exported(kept, read)[definition.name]

    assert kept.resource is not None
    assert kept.resource.attributes["service.name"] == "w"
    assert (metric.unit, metric.description) == (definition.unit, definition.what)
    assert metric.data.aggregation_temporality is CUMULATIVE
    assert metric.data.data_points
    for point in metric.data.data_points:
        assert point.start_time_unix_nano <= point.time_unix_nano
        assert point.attributes.keys() <= set(definition.labels)
        assert "" not in point.attributes.values()
        labels = dict.fromkeys(definition.prometheus_labels, "")
        labels |= {name.replace(".", "_"): text for name, text in point.attributes.items()}
        if definition.kind == "histogram":
            name = definition.prometheus_name
            assert value(metrics, f"{name}_sum", **labels) == pytest.approx(point.sum)
            assert value(metrics, f"{name}_count", **labels) == point.count
            assert point.explicit_bounds == definition.buckets
            assert len(point.bucket_counts) == len(definition.buckets) + 1
            below = 0
            for bound, count in zip(definition.buckets, point.bucket_counts, strict=False):
                below += count
                shown = value(metrics, f"{name}_bucket", **labels, le=floatToGoString(bound))
                assert shown == below
        else:
            assert metric.data.is_monotonic == (definition.kind == "counter")
            assert value(metrics, definition.prometheus_name, **labels) == point.value


def test_workers_of_one_process_add_up(read: list[Instrument], kept: Kept) -> None:
    for _ in range(2):
        fill(Metrics(["support"]))
    found = exported(kept, read)

    [repaired] = found["hayrunner.events_repaired"].data.data_points
    [waited] = found["hayrunner.queue.wait"].data.data_points
    assert repaired.value == 6
    assert (waited.count, waited.sum, sum(waited.bucket_counts)) == (2, 0.5, 2)


@pytest.mark.parametrize("preference", ["delta", "DELTA", "lowmemory"])
def test_differences_are_of_the_export_before(
    read: list[Instrument], kept: Kept, preference: str
) -> None:
    metrics = Metrics(["support"])
    export = SeriesExport(kept, read, Resource({}), interval="3600000", temporality=preference)
    fill(metrics)
    export.now()
    metrics.run_started("support", queue_wait_s=1.0)
    export.end()

    first, second = kept.exports
    for found, started, waits, active in ((first, 2, 1, 1), (second, 1, 1, 2)):
        counter = found["hayrunner.runs.started"].data
        assert counter.aggregation_temporality is DELTA
        assert [point.value for point in counter.data_points] == [started]
        histogram = found["hayrunner.queue.wait"].data
        assert histogram.aggregation_temporality is DELTA
        assert [point.count for point in histogram.data_points] == [waits]
        # What there is now, not what was added to it.
        gauge = found["hayrunner.runs.active"].data
        assert gauge.aggregation_temporality is CUMULATIVE
        assert [point.value for point in gauge.data_points] == [active]
    now = [found["hayrunner.runs.active"].data.data_points[0] for found in (first, second)]
    assert now[0].start_time_unix_nano == now[1].start_time_unix_nano
    ends = [found["hayrunner.queue.wait"].data.data_points[0] for found in (first, second)]
    assert ends[0].time_unix_nano == ends[1].start_time_unix_nano
    assert ends[1].sum == pytest.approx(1.0)


async def test_an_exporter_that_raises_is_asked_again(
    read: list[Instrument], kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    fill(Metrics(["support"]))
    kept.raises = RuntimeError("the address of somebody")
    export = SeriesExport(kept, read, Resource({}), interval="10")
    await eventually(lambda: len(kept.exports) > 2, what="further exports")
    export.end()

    assert kept.closed
    assert "metrics could not be exported: RuntimeError" in caplog.messages
    assert "somebody" not in caplog.text


@pytest.mark.parametrize("interval", ["often", "0", "-5", "nan", "1e300"])
def test_an_interval_that_is_none_is_not_taken(
    read: list[Instrument], kept: Kept, caplog: pytest.LogCaptureFixture, interval: str
) -> None:
    fill(Metrics(["support"]))
    with caplog.at_level(logging.WARNING):
        assert exported(kept, read, interval=interval)
    assert len(kept.exports) == 1
    [said] = caplog.messages
    assert said.startswith("OTEL_METRIC_EXPORT_INTERVAL is no number of milliseconds above 0")
