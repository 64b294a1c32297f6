"""Spans as notes: what is said of a span while a run goes on, made into the SDK's when it is sent.

The SDK's span takes 22 µs where it is made over and over, and 90 where a worker does something else
in between: it asks a sampler, locks, cleans and copies, at a moment when events wait. A note is
a name, two contexts and a dict, and most of the worker's spans never need to be more
(`span_encoding`). Whatever else is done to one, such as an event that an author's tool adds, turns
it into a span of the SDK's at once.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import Any, Protocol, cast

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    INVALID_SPAN_ID,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)

from hayrunner.telemetry import names
from hayrunner.telemetry.tracing import resolved

__all__ = ["Notebook", "NotedSpan", "SpanMaker"]

_PLAIN = frozenset({str, bool, int, float})


class Notebook(Protocol):
    """Where notes are made."""

    def ended(self, note: "NotedSpan") -> None:
        """There is nothing more to come."""
        ...

    def made(self, note: "NotedSpan") -> Span:
        """A span of the SDK's in the place of a note, which goes on and ends as others do."""
        ...


class NotedSpan(Span):
    """A span below `parent`, another of this process, that is sampled. `attributes` are of `str`,
    `bool`, `int`, `float` and tuples of `str`. `started` and `ended` are in nanoseconds since the
    epoch; `ended` is None before."""

    def __init__(
        self, name: str, kind: SpanKind, parent: SpanContext, span_id: int, notebook: Notebook
    ) -> None:
        self._notebook = notebook
        self._made: Span | None = None
        self.name = name
        self.kind = kind
        self.parent = parent
        # Flags and state are those of the parent, as the SDK has it for a span that is sampled.
        self.context = SpanContext(
            parent.trace_id,
            span_id,
            is_remote=False,
            trace_flags=parent.trace_flags,
            trace_state=parent.trace_state,
        )
        self.attributes: dict[str, Any] = {}
        self._later: dict[str, Callable[[], str | None]] = {}
        self.started = time_ns()
        self.ended: int | None = None

    def get_span_context(self) -> SpanContext:
        return self.context

    def is_recording(self) -> bool:
        return self.ended is None

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        if self.ended is not None:
            return
        if self._made is None:
            plain = self.attributes
            for name, value in attributes.items():
                if type(value) in _PLAIN:
                    plain[name] = value
                elif _is_texts(value):
                    plain[name] = tuple(value)
                else:
                    self._sdk_span()
                    break
            else:
                return
        self._sdk_span().set_attributes(attributes)

    def set_later(self, name: str, make: Callable[[], str | None]) -> None:
        """An attribute that `make` gives, called once, when the span is sent: see `tell`."""
        if self.ended is None:
            if self._made is None:
                self._later[name] = make
            elif (value := resolved(make)) is not None:
                self._made.set_attribute(name, value)

    def tell(self) -> None:
        """Put together what was left for later."""
        later, self._later = self._later, {}
        for name, make in later.items():
            if (value := resolved(make)) is not None:
                self.attributes[name] = value

    def update_name(self, name: str) -> None:
        if self.ended is None:
            self.name = name
            if self._made is not None:
                self._made.update_name(name)

    def add_event(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
    ) -> None:
        if self.ended is None:
            self._sdk_span().add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        if self.ended is None:
            self._sdk_span().add_link(context, attributes)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        if self.ended is None:
            self._sdk_span().set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        if self.ended is None:
            self._sdk_span().record_exception(exception, attributes, timestamp, escaped)

    def end(self, end_time: int | None = None) -> None:
        if self.ended is not None:
            return
        self.ended = end_time or time_ns()
        if self._made is None:
            self._notebook.ended(self)
        else:
            self._made.end(self.ended)

    def _sdk_span(self) -> Span:
        """The SDK's in its place, which is what ends from here on."""
        if self._made is None:
            self._made = self._notebook.made(self)
        return self._made


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        type(item) is str for item in cast("Sequence[Any]", value)
    )


class SpanMaker:
    """Makes the SDK's spans of notes, with the ids that those have. Its sampler takes them all."""

    def __init__(self, resource: Resource, processor: SpanProcessor | None = None) -> None:
        self.limits = SpanLimits()
        self._ids = _GivenIds()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=resource,
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=self.limits,
        )
        if processor is not None:
            provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(names.SCOPE)

    def made(self, note: NotedSpan) -> Span:
        """A span that has begun, with what is said of it so far."""
        note.tell()
        self._ids.span_id = note.context.span_id
        try:
            return self._tracer.start_span(
                note.name,
                context=set_span_in_context(NonRecordingSpan(note.parent), Context()),
                kind=note.kind,
                attributes=note.attributes,
                start_time=note.started,
            )
        finally:
            self._ids.span_id = INVALID_SPAN_ID

    def readable(self, span: "ReadableSpan | NotedSpan") -> ReadableSpan:
        """What ended, as the SDK's exporters read it."""
        if not isinstance(span, NotedSpan):
            return span
        made = self.made(span)
        made.end(span.ended)
        return cast("ReadableSpan", made)


class _GivenIds(RandomIdGenerator, threading.local):
    """The next span's, to the thread that says which."""

    span_id = INVALID_SPAN_ID

    def generate_span_id(self) -> int:
        return self.span_id
