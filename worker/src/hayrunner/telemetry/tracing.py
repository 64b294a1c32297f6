"""Whether spans are made, and how every one of them is opened, marked and ended.

Off until `turn_on`: then nothing is made, and asking costs one test. A span is the current one
while its work goes on, in a coroutine of its own: none is held across the `yield` of an async
generator. No exception is recorded, and no status has a text.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Any, Self

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)

from hayrunner.telemetry import gate, names
from hayrunner.telemetry.gate import Content, ContentPolicy

__all__ = [
    "OpenedSpan",
    "begun",
    "current_provider",
    "failed",
    "inherited_content",
    "is_on",
    "keep_content",
    "keeps_content",
    "resolved",
    "set_known",
    "turn_off",
    "turn_on",
]


class _Switch:
    """Whether spans are made, and where they go: one per process, as OpenTelemetry's own."""

    __slots__ = ("policy", "provider", "tracer")

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        self.provider: TracerProvider | None = None
        self.policy = ContentPolicy()


_switch = _Switch()


def turn_on(provider: TracerProvider | None = None, policy: ContentPolicy | None = None) -> None:
    """Make spans from now on. They go to `provider`; to the process's, if it is not given.
    `hayrunner.telemetry.tracer.start_tracing` does this, and Haystack's spans with it."""
    _switch.tracer = get_tracer(names.SCOPE, tracer_provider=provider)
    _switch.provider = provider
    _switch.policy = policy or ContentPolicy()


def turn_off() -> None:
    """Make no more spans."""
    _switch.tracer = _switch.provider = None
    _switch.policy = ContentPolicy()


def is_on() -> bool:
    return _switch.tracer is not None


def current_provider() -> TracerProvider | None:
    """Where spans go; None for the process's own provider."""
    return _switch.provider


def keeps_content(recorded: bool | None, outer: bool | None) -> bool:
    """Whether a run keeps content. `recorded` is what its settings say, None where they do not;
    `outer` whether the run does that it is within, None where it is within none."""
    return gate.no_more_than(outer, gate.keeps_content(recorded, _switch.policy))


def inherited_content(recorded: bool | None) -> bool:
    """What a run says to the runs elsewhere that are a part of it: whether it keeps content."""
    return gate.keeps_content(recorded, _switch.policy)


class OpenedSpan:
    """A span around a block, the current one in it. What the block raises ends the span with its
    code, and nothing of its text.

    A class, and none of the generators that OpenTelemetry has for this: three of them, one within
    the other, cost more than the span.
    """

    _token: Token[Context]

    def __init__(self, span: Span) -> None:
        self.span = span

    def __enter__(self) -> Self:
        self._token = attach(set_span_in_context(self.span))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self._raised(error)
        finally:
            detach(self._token)
            self.span.end()

    def _raised(self, error: BaseException) -> None:
        note_exception(self.span, error)


def begun(
    name: str,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    *,
    parent: Context | None = None,
    links: Sequence[Link] = (),
) -> Span:
    """A span that begins now. `parent` None is the current context."""
    tracer = _switch.tracer
    assert tracer is not None  # asked by whoever calls this
    return tracer.start_span(
        name,
        context=parent,
        kind=kind,
        attributes=without_none(attributes),
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    )


def note_exception(span: Span, error: BaseException) -> None:
    """What is kept of an exception: the code of what went wrong."""
    failed(span, gate.error_type(error))


def without_none(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def failed(span: Span, code: str) -> None:
    """Mark a span as failed, by a code. What was cancelled is no error."""
    span.set_attribute(names.ERROR_TYPE, code)
    if code != "cancelled":
        span.set_status(Status(StatusCode.ERROR))


def keep_content(span: Span, name: str, keeps: bool, content: Callable[[], Content]) -> None:
    """Set an attribute of content, where it may be kept. What `content` gives may be called for it,
    once and from any thread: where a span is sent later, so is its content put together."""
    try:
        kept = gate.kept(keeps, content)
    # Policy: no run fails for its trace, whatever an author's tool or component puts into it.
    except Exception as error:
        set_known(span, name, not_recorded(error))
        return
    if kept is None or isinstance(kept, str):
        set_known(span, name, kept)
    # A span of the SDK's has no such thing.
    elif (set_later := getattr(span, "set_later", None)) is not None:
        set_later(name, kept)
    else:
        set_known(span, name, resolved(kept))


def resolved(make: Callable[[], str | None]) -> str | None:
    """The content, or what kind of error it is that there is none."""
    try:
        return make()
    # As above.
    except Exception as error:
        return not_recorded(error)


def not_recorded(error: Exception) -> str:
    return f'"[not recorded: {type(error).__name__}]"'


def set_known(span: Span, name: str, value: Any) -> None:
    """Set an attribute, unless there is nothing to say."""
    if value is not None:
        span.set_attribute(name, value)
