"""A metric in both of its forms: a Prometheus series of this worker, and an instrument of
OpenTelemetry where a process has that loaded. What is recorded is recorded in both, once."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hayrunner.telemetry.definitions import Definition

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["Instrument", "meter_of_the_process"]

_SCOPE = "hayrunner"


def meter_of_the_process() -> "Meter | None":
    """The meter of whatever SDK this process has set up; None where nobody has loaded
    OpenTelemetry's metrics, which takes as long as a tenth of a worker's start."""
    api: Any = sys.modules.get("opentelemetry.metrics")
    return None if api is None else api.get_meter(_SCOPE)


class Instrument:
    """One metric. `add` to counters and gauges, `record` what a histogram is to count; values of
    labels in the order of the definition, empty where there is none."""

    def __init__(
        self, definition: Definition, registry: CollectorRegistry, meter: "Meter | None"
    ) -> None:
        self._labels = definition.labels
        self._series = _series(definition, registry)
        self._other: Callable[..., None] | None = None
        if meter is not None:
            self._other = _instrument(definition, meter)

    def add(self, amount: float, *labels: str) -> None:
        self._of(labels).inc(amount)
        self._tell(amount, labels)

    def record(self, value: float, *labels: str) -> None:
        self._of(labels).observe(value)
        self._tell(value, labels)

    def _of(self, labels: tuple[str, ...]) -> Any:
        return self._series.labels(*labels) if self._labels else self._series

    def _tell(self, value: float, labels: tuple[str, ...]) -> None:
        if self._other is not None:
            named = zip(self._labels, labels, strict=True)
            self._other(value, {name: label for name, label in named if label})


def _series(definition: Definition, registry: CollectorRegistry) -> Any:
    name, labels = definition.prometheus_name, definition.prometheus_labels
    if definition.kind == "counter":
        return Counter(name, definition.what, labels, registry=registry)
    if definition.kind == "gauge":
        return Gauge(name, definition.what, labels, registry=registry)
    return Histogram(name, definition.what, labels, buckets=definition.buckets, registry=registry)


def _instrument(definition: Definition, meter: "Meter") -> Callable[..., None]:
    name, unit, what = definition.name, definition.unit, definition.what
    if definition.kind == "counter":
        return meter.create_counter(name, unit, what).add
    if definition.kind == "gauge":
        return meter.create_up_down_counter(name, unit, what).add
    return meter.create_histogram(
        name, unit, what, explicit_bucket_boundaries_advisory=definition.buckets
    ).record
