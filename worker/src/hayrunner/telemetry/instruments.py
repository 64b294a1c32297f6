"""A metric: a Prometheus series of this worker, and where a process exports metrics also something
of OpenTelemetry's.

The worker's own export reads the series when it is time to (`read_for_export`), which costs a run
nothing. An SDK that an application around the worker has set up is told of every number as it
comes: that is the only way into one.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hayrunner.telemetry.definitions import Definition

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["Instrument", "meter_of_the_process", "read_for_export", "read_no_more"]

_SCOPE = "hayrunner"


class _Export:
    """What this process exports of itself: None where it does not. As OpenTelemetry's SDK, one per
    process."""

    read: "list[Instrument] | None" = None


def read_for_export() -> "list[Instrument]":
    """A list that holds every instrument that is made from now on. They are not told to a meter of
    the process, which would count them twice."""
    _Export.read = []
    return _Export.read


def read_no_more() -> None:
    """Instruments that are made from now on are in no such list."""
    _Export.read = None


def meter_of_the_process() -> "Meter | None":
    """The meter of whatever SDK this process has set up; None where nobody has loaded
    OpenTelemetry's metrics, which takes as long as a tenth of a worker's start, and where they are
    read for export."""
    api: Any = sys.modules.get("opentelemetry.metrics")
    return None if api is None or _Export.read is not None else api.get_meter(_SCOPE)


class Instrument:
    """One metric. `add` to counters and gauges, `record` what a histogram is to count; values of
    labels in the order of the definition, empty where there is none."""

    def __init__(
        self, definition: Definition, registry: CollectorRegistry, meter: "Meter | None"
    ) -> None:
        self.definition = definition
        self.series = _series(definition, registry)
        # Labels are closed sets, so these are.
        self._bound: dict[tuple[str, ...], Any] = {}
        self._other: Callable[..., None] | None = None
        if meter is not None:
            self._other = _instrument(definition, meter)
        if _Export.read is not None:
            _Export.read.append(self)

    def add(self, amount: float, *labels: str) -> None:
        (self._bound.get(labels) or self._bind(labels)).inc(amount)
        if self._other is not None:
            self._tell(amount, labels)

    def record(self, value: float, *labels: str) -> None:
        (self._bound.get(labels) or self._bind(labels)).observe(value)
        if self._other is not None:
            self._tell(value, labels)

    def _bind(self, labels: tuple[str, ...]) -> Any:
        bound = self.series.labels(*labels) if self.definition.labels else self.series
        self._bound[labels] = bound
        return bound

    def _tell(self, value: float, labels: tuple[str, ...]) -> None:
        assert self._other is not None
        named = zip(self.definition.labels, labels, strict=True)
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
