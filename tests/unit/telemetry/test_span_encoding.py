"""Notes in OTLP's form, beside what the exporter's own encoder makes of the SDK's spans of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from hayrunner.telemetry import names, paced_export
from hayrunner.telemetry.noted_spans import NotedSpan, SpanMaker
from hayrunner.telemetry.noting_provider import NotingProvider
from hayrunner.telemetry.paced_export import PacedSpans
from hayrunner.telemetry.span_encoding import encoded, encoding_notes

encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")

RESOURCE = Resource({"service.name": "hayrunner", "host.cpus": 2})
LIMITS = SpanLimits()
MAKER = SpanMaker(RESOURCE)
ABOVE = SpanContext(2**127 + 3, 5, is_remote=False, trace_flags=TraceFlags(1))
encode = encoding_notes(encoder.encode_spans)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_export, "_PAUSE_S", 0)


class Notebook:
    def ended(self, note: NotedSpan) -> None:
        return

    def made(self, note: NotedSpan) -> Any:
        raise AssertionError("nothing is said that a note cannot hold")


def note(
    attributes: dict[str, Any],
    *,
    name: str = "chat m",
    kind: SpanKind = SpanKind.CLIENT,
    above: SpanContext | None = None,
) -> NotedSpan:
    span = NotedSpan(name, kind, above or ABOVE, 2**63 + 1, Notebook())
    span.set_attributes(attributes)
    span.end()
    return span


def by_the_library(span: NotedSpan) -> WireSpan:
    request = encoder.encode_spans([MAKER.readable(span)])
    return request.resource_spans[0].scope_spans[0].spans[0]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = (
    TEXTS
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.lists(TEXTS).map(tuple)
)


@given(
    attributes=st.dictionaries(TEXTS.filter(bool), VALUES, max_size=20),
    name=TEXTS,
    kind=st.sampled_from(SpanKind),
    trace_id=st.integers(1, 2**128 - 1),
    parent_id=st.integers(1, 2**64 - 1),
)
def test_a_note_is_encoded_as_the_library_does(
    attributes: dict[str, Any], name: str, kind: SpanKind, trace_id: int, parent_id: int
) -> None:
    above = SpanContext(trace_id, parent_id, is_remote=False, trace_flags=TraceFlags(1))
    span = note(attributes, name=name, kind=kind, above=above)
    data = encoded(span, LIMITS)
    assert data is not None
    assert WireSpan.FromString(data) == by_the_library(span)


def test_what_was_left_for_later_is_in_it() -> None:
    span = NotedSpan("chat m", SpanKind.CLIENT, ABOVE, 5, Notebook())
    span.set_later("content", lambda: "said")
    span.end()
    data = encoded(span, LIMITS)
    assert data is not None
    (found,) = WireSpan.FromString(data).attributes
    assert (found.key, found.value.string_value) == ("content", "said")


def test_values_that_are_equal_keep_their_types() -> None:
    for value in (1, True, 1.0, 0, False, 0.0):
        data = encoded(note({"a": value}), LIMITS)
        assert data is not None
        (found,) = WireSpan.FromString(data).attributes
        kept = getattr(found.value, found.value.WhichOneof("value") or "")
        assert (kept, type(kept)) == (value, type(value))


@pytest.mark.parametrize(
    ("span", "limits"),
    [
        (note({"a": "\ud800"}), LIMITS),
        (note({}, name="\ud800"), LIMITS),
        (note({"a": 2**63}), LIMITS),
        (note({"": 1}), LIMITS),
        (note({7: 1}), LIMITS),  # type: ignore[dict-item]
        (note({"a": 1, "b": 2}), SpanLimits(max_span_attributes=1)),
        (note({"a": "text"}), SpanLimits(max_span_attribute_length=3)),
        (
            note(
                {},
                above=SpanContext(
                    7,
                    8,
                    is_remote=False,
                    trace_flags=TraceFlags(1),
                    trace_state=TraceState([("vendor", "x")]),
                ),
            ),
            LIMITS,
        ),
    ],
    ids=["text", "name", "number", "no name", "no text", "too many", "too long", "a state"],
)
def test_what_is_not_plain_is_left_to_the_library(span: NotedSpan, limits: SpanLimits) -> None:
    assert encoded(span, limits) is None


class Taking(SpanExporter):
    """The spans, notes among them, as a processor gives them."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.given: list[ReadableSpan | NotedSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        assert isinstance(spans, PacedSpans)
        self.given += spans.given
        self.requests.append(encode(spans))
        return SpanExportResult.SUCCESS


def a_batch() -> PacedSpans:
    """An attempt, two notes and a library's span, one that is failed, and one with a state."""
    taken = Taking()
    provider = NotingProvider(RESOURCE, taken, SimpleSpanProcessor)
    tracer = provider.get_tracer(names.SCOPE)
    root = tracer.start_span("root", context=Context())
    within = set_span_in_context(root, Context())
    for number in range(2):
        tracer.start_span(f"chat {number}", within, attributes={"number": number}).end()
    provider.get_tracer("a library").start_span("a request", within).end()
    failed = tracer.start_span("failed", within)
    failed.add_event("it came")
    failed.end()
    context = SpanContext(
        7, 8, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("v", "x")])
    )
    below = set_span_in_context(NonRecordingSpan(context), Context())
    tracer.start_span("with a state", below).end()
    root.end()
    return PacedSpans(taken.given, provider.maker)  # type: ignore[arg-type]


def of_all(request: ExportTraceServiceRequest) -> dict[str, tuple[str, str, bytes]]:
    """Name of each span to its resource, its scope and itself."""
    return {
        span.name: (
            resource.resource.SerializeToString().decode(errors="replace") + resource.schema_url,
            scope.scope.SerializeToString().decode() + scope.schema_url,
            span.SerializeToString(deterministic=True),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def test_a_batch_holds_everything_once() -> None:
    batch = a_batch()
    assert sum(isinstance(span, NotedSpan) for span in batch.given) == 3
    request, plain = encode(batch), encoder.encode_spans(list(batch))
    found = of_all(request)
    assert sorted(found) == sorted(
        ["a request", "chat 0", "chat 1", "failed", "root", "with a state"]
    )
    assert found == of_all(plain)
    spans = [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
    assert len(spans) == len(found)


def test_a_batch_without_notes_is_the_librarys() -> None:
    batch = a_batch()
    others = PacedSpans([s for s in batch.given if not isinstance(s, NotedSpan)], batch.maker)
    assert encode(others) == encoder.encode_spans(list(others))
    assert encode(list(others)) == encoder.encode_spans(list(others))
    assert encode(PacedSpans([], batch.maker)) == encoder.encode_spans([])


def test_one_that_is_odd_does_not_take_others_with_it() -> None:
    odd = note({"": 1, "a": 2**64, "b": "kept", "c": "\ud800"}, name="odd")
    batch = PacedSpans([odd, note({"a": 1})], MAKER)  # type: ignore[list-item]
    spans = {
        span.name: {pair.key for pair in span.attributes}
        for resource in encode(batch).resource_spans
        for span in resource.scope_spans[0].spans
    }
    assert spans == {"odd": {"b"}, "chat m": {"a"}}


def test_notes_are_encoded_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(paced_export.time, "sleep", paused.append)
    encode(PacedSpans([note({})] * 100, MAKER))  # type: ignore[list-item]
    assert len(paused) == 3


def test_the_exporter_encodes_by_a_name_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    # What `set_up_export` puts the encoding of notes under.
    module = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    asked: list[object] = []

    def encode_spans(spans: object) -> ExportTraceServiceRequest:
        asked.append(spans)
        raise ValueError("seen")

    monkeypatch.setattr(module, "encode_spans", encode_spans)
    batch = a_batch()
    assert module.OTLPSpanExporter().export(batch) is SpanExportResult.FAILURE
    assert asked == [batch]
