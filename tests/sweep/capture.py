"""Every channel that leaves a process beside the payloads of messages, raw, as (place, text)."""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from tests.sweep.sentinels import Found, scan

__all__ = ["CHANNELS", "Captured", "Hit", "RecordKeeper", "span_kind"]

CHANNELS = (
    "span attributes",
    "span names",
    "span events",
    "span status",
    "span links",
    "span resources",
    "log, as JSON",
    "log, as text",
    "log, another handler",
    "metrics, Prometheus",
    "metrics, OpenTelemetry",
    "NATS headers",
    "NATS subjects",
    "HTTP headers",
    "HTTP addresses",
    "process output",
    "process arguments",
)


@dataclass(frozen=True)
class Hit:
    """A sentinel that was found. The place is finer than the channel: the span and its attribute,
    the header, the logger."""

    channel: str
    place: str
    found: Found


@dataclass
class Captured:
    """What was captured, and how much of it there is."""

    texts: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    amounts: Counter[str] = field(default_factory=Counter[str])

    def add(self, channel: str, place: str, text: str) -> None:
        assert channel in CHANNELS, channel
        self.texts.append((channel, place, text))
        self.amounts[channel] += 1

    def hits(self) -> Iterator[Hit]:
        for channel, place, text in self.texts:
            for found in scan(text):
                yield Hit(channel, place, found)

    def of(self, channel: str) -> list[str]:
        return [text for known, _, text in self.texts if known == channel]

    # --- spans

    def add_span(self, span: ReadableSpan) -> None:
        """Everything that a span holds, each part on its own."""
        kind = span_kind(span.name)
        self.add("span names", kind, span.name)
        for name, value in (span.attributes or {}).items():
            self.add("span attributes", f"{kind}: {name}", f"{name} {_plain(value)}")
        for event in span.events:
            self.add("span events", kind, f"{event.name} {dict(event.attributes or {})!r}")
        self.add("span status", kind, f"{span.status.status_code} {span.status.description}")
        for link in span.links:
            told = f"{link.context.trace_state!r} {dict(link.attributes or {})!r}"
            self.add("span links", kind, told)
        context = span.context
        state = None if context is None else context.trace_state
        scope, parts = span.instrumentation_scope, dict(span.resource.attributes)
        self.add("span resources", kind, f"{scope!r} {parts!r} {state!r}")
        # Whatever an SDK writes of it beside these.
        rest = json.loads(span.to_json())
        for known in ("name", "attributes", "events", "status", "links", "resource"):
            rest.pop(known, None)
        self.add("span resources", kind, json.dumps(rest))

    # --- messages

    def add_message(self, subject: str, headers: Mapping[str, str] | None) -> None:
        """A message's subject and headers; its payload is content by design."""
        kind = subject.partition(".")[0]
        self.add("NATS subjects", kind, subject)
        for name, value in (headers or {}).items():
            self.add("NATS headers", name, f"{name}: {value}")

    def add_request(self, path: str, headers: Mapping[str, str]) -> None:
        """An outgoing HTTP request: its address and its headers; its body is content by design."""
        self.add("HTTP addresses", "path", path)
        for name, value in headers.items():
            self.add("HTTP headers", name.lower(), f"{name}: {value}")


def span_kind(name: str) -> str:
    """The first word of a span's name."""
    return name.partition(" ")[0]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


class RecordKeeper(logging.Handler):
    """A handler as a library may attach one: shows the whole record, exceptions included."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(logging.DEBUG)
        self._captured = captured
        self._full = logging.Formatter("%(name)s %(message)s %(threadName)s %(taskName)s")

    def emit(self, record: logging.LogRecord) -> None:
        self._captured.add("log, another handler", record.name, _whole(record, self._full))

    def handleError(self, record: logging.LogRecord) -> None:
        # Seen like everything else, in place of a traceback on the terminal.
        self._captured.add("log, another handler", record.name, f"{record.__dict__!r}")


def _whole(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    # A name that is not there before Python 3.12.
    record.taskName = getattr(record, "taskName", None)
    error: Any = (record.exc_info or (None, None, None))[1]
    notes = [repr(error), getattr(error, "__notes__", None)]
    shown = {key: value for key, value in record.__dict__.items() if key not in _OF_THE_FORMATTER}
    try:
        told = formatter.format(record)
    except Exception as problem:  # as broken as the record is
        told = repr(problem)
    finally:
        record.exc_text = None  # else the next handler shows what this one made
    return f"{told} {shown!r} {record.args!r} {record.msg!r} {notes!r}"


_OF_THE_FORMATTER = frozenset({"_logger", "_name", "message"})
