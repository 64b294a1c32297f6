"""A note of a span, beside the SDK's span of the same."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from hayrunner.telemetry import names
from hayrunner.telemetry.noted_spans import NotedSpan
from hayrunner.telemetry.noting_provider import NotingProvider
from hayrunner.telemetry.tracing import keep_content

RESOURCE = Resource({"service.name": "hayrunner"})


class Exported:
    """One of the two, and what it exported."""

    def __init__(self, *, noted: bool) -> None:
        self.memory = InMemorySpanExporter()
        self.provider: TracerProvider
        if noted:
            self.provider = NotingProvider(RESOURCE, self.memory, SimpleSpanProcessor)
        else:
            self.provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
            self.provider.add_span_processor(SimpleSpanProcessor(self.memory))

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer(names.SCOPE)

    def below_a_root(self, do: Callable[[Span], object], **begun: Any) -> ReadableSpan:
        """A span below one of this process, as it is exported."""
        root = self.tracer.start_span("root", context=Context())
        context = set_span_in_context(root, Context())
        span = self.tracer.start_span("a span", context, start_time=None, **begun)
        do(span)
        span.end()
        root.end()
        below, above = self.memory.get_finished_spans()
        assert below.parent == above.context
        assert above.context is not None
        assert below.context is not None
        assert below.context.trace_id == above.context.trace_id
        assert below.context.trace_flags == above.context.trace_flags
        assert below.context.is_remote is False
        return below


@pytest.fixture
def noting() -> Exported:
    return Exported(noted=True)


def comparable(span: ReadableSpan) -> dict[str, Any]:
    """What is said of it, without the ids and times that are its own."""
    assert span.start_time
    assert span.end_time
    assert span.start_time <= span.end_time
    attributes = dict(span.attributes or {})
    events = [(event.name, dict(event.attributes or {})) for event in span.events]
    for _, told in events:
        # It names the line that recorded.
        told.pop("exception.stacktrace", None)
    return {
        "name": span.name,
        "kind": span.kind,
        "status": (span.status.status_code, span.status.description),
        "attributes": attributes,
        "types": {name: type(value) for name, value in attributes.items()},
        "events": events,
        "links": [(link.context, dict(link.attributes or {})) for link in span.links],
        "resource": span.resource,
        "scope": span.instrumentation_scope,
        "dropped": (span.dropped_attributes, span.dropped_events, span.dropped_links),
    }


def recorded(span: Span) -> None:
    try:
        raise LookupError("no such order")
    except LookupError as error:
        span.record_exception(error, {"who": "an author"}, escaped=True)


ELSEWHERE = SpanContext(7, 8, is_remote=True, trace_flags=TraceFlags(1))

WAYS: dict[str, Callable[[Span], object]] = {
    "nothing": lambda span: None,
    "texts and numbers": lambda span: span.set_attributes(
        {"a": "text", "b": True, "c": 1, "d": 1.0, "e": ("x", "y"), "f": ["z"]}
    ),
    "one": lambda span: span.set_attribute("a", -3),
    "the same twice": lambda span: (span.set_attribute("a", 1), span.set_attributes({"a": "2"})),
    "other values": lambda span: span.set_attributes(
        {"a": "kept", "b": {"in": [1, 2]}, "c": None, "d": b"bytes", "e": [1, 2.5], "f": "too"}
    ),
    "no value at all": lambda span: span.set_attribute("a", object),  # type: ignore[arg-type]
    "a subclass of a text": lambda span: span.set_attribute("a", StatusText("x")),
    "a name": lambda span: span.update_name("another"),
    "an event": lambda span: span.add_event("it came", {"at": 1}),
    "an event of then": lambda span: span.add_event("it came", timestamp=5),
    "an exception": recorded,
    "a link": lambda span: span.add_link(ELSEWHERE, {"to": "there"}),
    "a status": lambda span: span.set_status(Status(StatusCode.ERROR)),
    "a status with a text": lambda span: span.set_status(StatusCode.ERROR, "it broke"),
    "two states": lambda span: (span.set_status(StatusCode.OK), span.set_status(StatusCode.ERROR)),
    "more after an event": lambda span: (
        span.set_attribute("a", 1),
        span.add_event("it came"),
        span.set_attributes({"b": 2}),
        span.update_name("another"),
        span.set_attribute("c", ["x"]),
        span.add_event("again"),
    ),
    "too many": lambda span: span.set_attributes({f"a{number}": number for number in range(200)}),
}


class StatusText(str):
    __slots__ = ()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [SpanKind.INTERNAL, SpanKind.CLIENT])
def test_it_is_exported_as_the_sdk_has_it(noting: Exported, way: str, kind: SpanKind) -> None:
    begun = {"kind": kind, "attributes": {"first": "of all", "number": 1}}
    sdk = Exported(noted=False).below_a_root(WAYS[way], **begun)
    assert comparable(noting.below_a_root(WAYS[way], **begun)) == comparable(sdk)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "1"),
    ],
)
@pytest.mark.parametrize("way", ["texts and numbers", "other values", "more after an event"])
def test_limits_are_the_sdks(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, way: str
) -> None:
    monkeypatch.setenv(variable, value)
    begun = {"attributes": {"first": "of all"}}
    sdk = Exported(noted=False).below_a_root(WAYS[way], **begun)
    assert comparable(Exported(noted=True).below_a_root(WAYS[way], **begun)) == comparable(sdk)


def note(noting: Exported, **begun: Any) -> NotedSpan:
    root = noting.tracer.start_span("root", context=Context())
    span = noting.tracer.start_span("a span", set_span_in_context(root, Context()), **begun)
    assert isinstance(span, NotedSpan)
    return span


def test_what_is_below_a_note_is_its_child(noting: Exported) -> None:
    span = note(noting)
    within = set_span_in_context(span, Context())
    assert get_current_span(within) is span
    noting.tracer.start_span("a note below", within).end()
    noting.provider.get_tracer("a library").start_span("the SDK's below", within).end()
    span.end()

    first, second, above = noting.memory.get_finished_spans()
    assert first.parent == second.parent == above.context
    assert second.instrumentation_scope is not None
    assert second.instrumentation_scope.name == "a library"


def test_times_are_when_it_began_and_ended(noting: Exported) -> None:
    span = note(noting)
    span.end(span.started + 5)
    (found,) = noting.memory.get_finished_spans()
    assert (found.start_time, found.end_time) == (span.started, span.started + 5)


def test_nothing_is_said_of_it_once_it_has_ended(noting: Exported) -> None:
    span = note(noting)
    assert span.is_recording()
    span.end()
    assert not span.is_recording()
    for say in WAYS.values():
        say(span)
    span.end()
    (found,) = noting.memory.get_finished_spans()
    assert found.name == "a span"
    assert not found.attributes
    assert not found.events
    assert not found.links


def test_it_has_its_id_when_it_turns_into_the_sdks(noting: Exported) -> None:
    span = note(noting)
    context = span.get_span_context()
    span.add_event("it came")
    assert span.get_span_context() == context
    span.end()
    (found,) = noting.memory.get_finished_spans()
    assert found.context == context
    assert found.start_time == span.started
    assert found.end_time == span.ended


def test_content_is_put_together_when_the_span_is_sent(noting: Exported) -> None:
    made: list[str] = []

    def content() -> str:
        made.append(threading.current_thread().name)
        return "said"

    def broken() -> str:
        raise LookupError("with a secret")

    span = note(noting)
    keep_content(span, "a", True, lambda: content)
    keep_content(span, "b", True, lambda: broken)
    keep_content(span, "c", True, lambda: lambda: None)
    keep_content(span, "d", False, lambda: content)
    span.set_attribute("e", 1)
    assert made == []
    span.end()
    (found,) = noting.memory.get_finished_spans()
    assert dict(found.attributes or {}) == {
        "a": "said",
        "b": '"[not recorded: LookupError]"',
        "e": 1,
    }
    assert len(made) == 1


def test_a_span_of_the_sdks_has_its_content_at_once(noting: Exported) -> None:
    before, after, none = note(noting), note(noting), noting.tracer.start_span("a root")
    keep_content(before, "a", True, lambda: lambda: "said")
    before.add_event("it came")
    after.add_event("it came")
    for span in (after, none):
        keep_content(span, "a", True, lambda: lambda: "said")
        keep_content(span, "b", True, lambda: lambda: None)
    for span in (before, after, none):
        span.end()
    found = noting.memory.get_finished_spans()
    assert [dict(span.attributes or {}) for span in found] == [{"a": "said"}] * 3


def test_threads_make_each_its_own(noting: Exported) -> None:
    # The id that the SDK's gets is said right before it asks for one.
    spans = [note(noting) for _ in range(200)]

    def finish(some: list[NotedSpan]) -> None:
        for span in some:
            span.add_event("it came")
            span.end()

    threads = [threading.Thread(target=finish, args=(spans[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {
        (context.span_id, span.start_time)
        for span in noting.memory.get_finished_spans()
        if (context := span.context) is not None
    }
    assert found == {(span.context.span_id, span.started) for span in spans}


# --- what is no note


@pytest.mark.parametrize(
    "above",
    [
        SpanContext(0, 0, is_remote=False),
        ELSEWHERE,
        SpanContext(7, 8, is_remote=False, trace_flags=TraceFlags(0)),
    ],
    ids=["a root", "of elsewhere", "not sampled"],
)
def test_the_sampler_is_asked_where_it_has_not_been(noting: Exported, above: SpanContext) -> None:
    context = set_span_in_context(NonRecordingSpan(above), Context())
    span = noting.tracer.start_span("a span", context)
    assert not isinstance(span, NotedSpan)
    assert span.is_recording() is (not above.is_valid or above.trace_flags.sampled)


def test_flags_and_state_go_down(noting: Exported) -> None:
    above = SpanContext(
        RandomIdGenerator().generate_trace_id(),
        8,
        is_remote=False,
        trace_flags=TraceFlags(3),
        trace_state=TraceState([("vendor", "x")]),
    )
    context = set_span_in_context(NonRecordingSpan(above), Context())
    span = noting.tracer.start_span("a span", context)
    assert isinstance(span, NotedSpan)
    span.end()
    (found,) = noting.memory.get_finished_spans()
    assert found.context is not None
    assert found.context == span.get_span_context()
    assert found.context.trace_state == above.trace_state
    assert found.context.trace_flags == above.trace_flags


def test_links_and_times_are_the_sdks(noting: Exported) -> None:
    root = noting.tracer.start_span("root", context=Context())
    context = set_span_in_context(root, Context())
    assert not isinstance(
        noting.tracer.start_span("a span", context, links=[Link(ELSEWHERE)]), NotedSpan
    )
    assert not isinstance(noting.tracer.start_span("a span", context, start_time=1), NotedSpan)


def test_whoever_else_looks_sees_the_sdks(noting: Exported) -> None:
    seen = InMemorySpanExporter()
    noting.provider.add_span_processor(SimpleSpanProcessor(seen))
    noting.below_a_root(lambda span: span.set_attribute("a", 1))
    assert seen.get_finished_spans() == noting.memory.get_finished_spans()


@pytest.mark.parametrize(
    ("sampler", "is_noted"),
    [
        ("parentbased_always_on", True),
        ("parentbased_traceidratio", True),
        ("always_on", True),
        ("traceidratio", False),
        ("parentbased_always_off", False),
    ],
)
def test_samplers_that_decide_span_by_span_are_asked(
    monkeypatch: pytest.MonkeyPatch, sampler: str, is_noted: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1.0")
    noting = Exported(noted=True)
    root = noting.tracer.start_span("root", context=Context())
    span = noting.tracer.start_span("a span", set_span_in_context(root, Context()))
    assert isinstance(span, NotedSpan) is is_noted
    assert span.is_recording() is not sampler.endswith("off")


def test_a_sdk_that_is_disabled_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    noting = Exported(noted=True)
    root = noting.tracer.start_span("root", context=Context())
    assert not root.is_recording()


def test_other_tracers_are_the_sdks(noting: Exported) -> None:
    root = noting.tracer.start_span("root", context=Context())
    other = noting.provider.get_tracer("a library")
    span = other.start_span("a span", set_span_in_context(root, Context()))
    assert not isinstance(span, NotedSpan)


def test_a_span_around_a_block_is_the_current_one(noting: Exported) -> None:
    with noting.tracer.start_as_current_span("a span") as span:
        assert get_current_span() is span
    (found,) = noting.memory.get_finished_spans()
    assert found.name == "a span"
