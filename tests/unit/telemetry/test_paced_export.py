"""A batch of spans, encoded with pauses."""

import threading

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hayrunner.telemetry import paced_export
from hayrunner.telemetry.noted_spans import SpanMaker
from hayrunner.telemetry.paced_export import PacedSpanExporter

SPANS = 100


def paced(exporter: SpanExporter) -> PacedSpanExporter:
    return PacedSpanExporter(exporter, SpanMaker(Resource({})))


def ended(processor: SimpleSpanProcessor | BatchSpanProcessor, count: int = SPANS) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("t")
    for number in range(count):
        tracer.start_span(str(number)).end()
    provider.shutdown()


def spans(count: int = SPANS) -> list[ReadableSpan]:
    memory = InMemorySpanExporter()
    ended(SimpleSpanProcessor(memory), count)
    return list(memory.get_finished_spans())


@pytest.mark.parametrize("count", [0, 1, 8, 9, SPANS])
def test_all_of_them_are_given_in_their_order(count: int) -> None:
    memory, given = InMemorySpanExporter(), spans(count)

    assert paced(memory).export(given) is SpanExportResult.SUCCESS
    assert list(memory.get_finished_spans()) == given


def test_there_is_a_pause_after_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(paced_export.time, "sleep", paused.append)
    paced(InMemorySpanExporter()).export(spans())
    assert paused == [0.002] * (SPANS // 8)


def test_an_exporter_that_looks_twice_or_anywhere_sees_the_same() -> None:
    given = spans()

    class Looking(SpanExporter):
        def export(self, spans: "paced_export.Sequence[ReadableSpan]") -> SpanExportResult:
            assert len(spans) == SPANS
            assert spans[0] is given[0]
            assert [*spans[-2:]] == given[-2:]
            assert [*spans] == [*spans] == given
            return SpanExportResult.FAILURE

    assert paced(Looking()).export(given) is SpanExportResult.FAILURE


def test_the_end_closes_what_exports() -> None:
    class Closing(InMemorySpanExporter):
        closed = threading.Event()

        def shutdown(self) -> None:
            self.closed.set()

    memory = Closing()
    ended(BatchSpanProcessor(paced(memory)))
    assert memory.closed.is_set()
    assert len(memory.get_finished_spans()) == SPANS
    assert paced(memory).force_flush()


def test_otlp_encodes_them_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the pauses rest on: an encoder that made a list first would take them all at once.
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    looked_at: list[str] = []
    at_pauses: list[int] = []

    class Span(ReadableSpan):
        @property
        def kind(self) -> object:  # type: ignore[override]
            looked_at.append(self.name)
            return super().kind

    given = spans()
    for span in given:
        span.__class__ = Span
    monkeypatch.setattr(paced_export.time, "sleep", lambda _: at_pauses.append(len(looked_at)))

    class Encoding(SpanExporter):
        def export(self, spans: "paced_export.Sequence[ReadableSpan]") -> SpanExportResult:
            encoder.encode_spans(spans)
            return SpanExportResult.SUCCESS

    paced(Encoding()).export(given)
    assert at_pauses == list(range(8, SPANS + 1, 8))
