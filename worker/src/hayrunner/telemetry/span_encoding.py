"""The worker's own spans in OTLP's protobuf form.

The exporter's encoder makes an object of every name and every value, which takes 40 µs a span and
more than the making of it. Most that is said of spans is said again and again: here an attribute's
bytes are kept, and a span is their concatenation, in 8 µs. Numbers of fields and their types are
those of opentelemetry-proto's `trace.proto` and `common.proto`, which do not change. What is not
plain goes the exporter's way.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits

from hayrunner.telemetry.noted_spans import NotedSpan
from hayrunner.telemetry.paced_export import PacedSpans, paced

__all__ = ["encoded", "encoding_notes"]

Encode = Callable[[Sequence[ReadableSpan]], ExportTraceServiceRequest]

_PIECE = 32
_KEPT_CHARACTERS = 64
"""Longer texts are content, or ids."""


def encoding_notes(encode: Encode) -> Encode:
    """`encode`, for what it alone can encode; notes as they are."""

    def encode_spans(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        if not isinstance(spans, PacedSpans):
            return encode(spans)
        maker, others = spans.maker, list[ReadableSpan]()
        notes: dict[NotedSpan, bytes] = {}
        for span in paced(spans.given, _PIECE):
            data = encoded(span, maker.limits) if isinstance(span, NotedSpan) else None
            if isinstance(span, NotedSpan) and data is not None:
                notes[span] = _sized(b"\x12", data)
            else:
                others.append(span)
        if not notes:
            return encode(PacedSpans(others, maker))
        # What is said of the resource and the scope is the library's to say, of one of them.
        request = encode([maker.readable(next(iter(notes)))])
        scope = request.resource_spans[0].scope_spans[0]
        del scope.spans[:]
        scope.MergeFromString(b"".join(notes.values()))
        if others:
            request.MergeFrom(encode(PacedSpans(others, maker)))
        return request

    return encode_spans


def encoded(span: NotedSpan, limits: SpanLimits) -> bytes | None:
    """A span of `trace.proto`; None for one that has something that is not plain, or too much."""
    if limits.max_span_attribute_length is not None or span.context.trace_state:
        return None
    span.tell()
    most = limits.max_span_attributes
    if most is not None and len(span.attributes) > most:
        return None
    try:
        return _span(span)
    # A lone surrogate, a number of more than 64 bits, a name that is none: what becomes of it is
    # the exporter's to say, and a batch is not lost for one of its spans.
    except Exception:
        return None


# The field's number and its wire type, each before its value.
_FIXED = struct.Struct("<2s16s 2s8s 2s8s cQ cQ cB 2s 2sI")
_HAS_IS_REMOTE = 0x100
"""Of `SpanFlags`: it is known whether the parent is remote. It is not."""


def _span(span: NotedSpan) -> bytes:
    assert span.ended is not None
    context = span.context
    fixed = _FIXED.pack(
        b"\x0a\x10",
        context.trace_id.to_bytes(16, "big"),
        b"\x12\x08",
        context.span_id.to_bytes(8, "big"),
        b"\x22\x08",
        span.parent.span_id.to_bytes(8, "big"),
        b"\x39",
        span.started,
        b"\x41",
        span.ended,
        b"\x30",
        span.kind.value + 1,
        b"\x7a\x00",  # a status that says nothing
        b"\x85\x01",
        _HAS_IS_REMOTE,
    )
    parts = [fixed, _text(b"\x2a", span.name)]
    # A copy, as a thread of an author's could have it still.
    for name, value in list(span.attributes.items()):
        if type(value) is str and len(value) > _KEPT_CHARACTERS:
            parts.append(_attribute(name, value))
        else:
            parts.append(_kept_attribute(name, value))
    return b"".join(parts)


def _attribute(name: str, value: Any) -> bytes:
    if not name:
        raise ValueError("an attribute without a name")
    said = _text(b"\x0a", name) + _sized(b"\x12", _value(value))
    return _sized(b"\x4a", said)


# By type too: 1, 1.0 and True are equal.
_kept_attribute = lru_cache(maxsize=2048, typed=True)(_attribute)


def _value(value: Any) -> bytes:
    kind = type(value)
    if kind is str:
        return _text(b"\x0a", value)
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if kind is int:
        return b"\x18" + _varint(int.from_bytes(value.to_bytes(8, "big", signed=True), "big"))
    if kind is float:
        return struct.pack("<cd", b"\x21", value)
    return _sized(b"\x2a", b"".join(_sized(b"\x0a", _value(item)) for item in value))


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode())


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


_ONE_BYTE = [bytes((number,)) for number in range(128)]


def _varint(number: int) -> bytes:
    if number < 128:
        return _ONE_BYTE[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
