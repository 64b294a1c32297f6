"""Export that lets the event loop in.

Encoding a batch of spans is Python, in the exporter's thread, and a thread that waits for the
interpreter's lock waits up to 5 ms for each of its turns: every few seconds all streams stood still
for a moment, which was most of what telemetry did to their latency. So a batch is gone through in
pieces, and what wants to run between them does.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from hayrunner.telemetry.noted_spans import SpanMaker

__all__ = ["PacedSpanExporter", "PacedSpans"]

_PIECE = 8
_PAUSE_S = 0.002
# 4,000 spans a second at most: ten times what a worker makes at its busiest.

_T = TypeVar("_T")


class PacedSpanExporter(SpanExporter):
    """Gives `exporter` spans that take their time to be looked at one after another, which is how
    OTLP's exporters encode them. Notes among them are made into spans by `maker` as they are looked
    at."""

    def __init__(self, exporter: SpanExporter, maker: SpanMaker) -> None:
        self._exporter = exporter
        self._maker = maker

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        return self._exporter.export(PacedSpans(spans, self._maker))

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)


class PacedSpans(Sequence[ReadableSpan]):
    """Spans, with a pause after some of them. `given` are what they are made from."""

    def __init__(self, given: Sequence[ReadableSpan], maker: SpanMaker) -> None:
        self.given = given
        self.maker = maker

    def __iter__(self) -> Iterator[ReadableSpan]:
        return map(self.maker.readable, paced(self.given, _PIECE))

    def __len__(self) -> int:
        return len(self.given)

    @overload
    def __getitem__(self, index: int) -> ReadableSpan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadableSpan]: ...
    def __getitem__(self, index: int | slice) -> ReadableSpan | Sequence[ReadableSpan]:
        if isinstance(index, slice):
            return PacedSpans(self.given[index], self.maker)
        return self.maker.readable(self.given[index])


def paced(items: Iterable[_T], piece: int) -> Iterator[_T]:
    """The items, with a pause after every `piece` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % piece == 0:
            time.sleep(_PAUSE_S)
