"""Export that lets the event loop in.

Encoding a batch of 512 spans takes some 20 ms of Python, in the exporter's thread, and a thread
that waits for the interpreter's lock waits up to 5 ms for each of its turns: every few seconds all
streams stood still for a moment, which was most of what telemetry did to their latency. So a batch
is encoded in pieces, and what wants to run between them does.
"""

import time
from collections.abc import Iterator, Sequence
from typing import overload

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

__all__ = ["PacedSpanExporter"]

_PIECE = 8
_PAUSE_S = 0.002
# 4,000 spans a second at most: ten times what a worker makes at its busiest.


class PacedSpanExporter(SpanExporter):
    """Gives `exporter` spans that take their time to be looked at one after another, which is how
    OTLP's exporters encode them."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        return self._exporter.export(_Paced(spans))

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)


class _Paced(Sequence[ReadableSpan]):
    def __init__(self, spans: Sequence[ReadableSpan]) -> None:
        self._spans = spans

    def __iter__(self) -> Iterator[ReadableSpan]:
        for number, span in enumerate(self._spans, 1):
            yield span
            if number % _PIECE == 0:
                time.sleep(_PAUSE_S)

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, index: int) -> ReadableSpan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadableSpan]: ...
    def __getitem__(self, index: int | slice) -> ReadableSpan | Sequence[ReadableSpan]:
        return self._spans[index]
