"""The spans of requests as the worker takes them: one for each attempt.

On the first delivery an attempt is a part of the requester's trace. A redelivery or a resumption
may come hours later, and from another worker: it is a trace of its own, with links to the
requester's span and to the attempt before, as far as that is known. The context comes in the
headers `traceparent` and `tracestate`; baggage is neither taken nor sent.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind

from hayrunner.telemetry import names, tracing
from hayrunner_contracts.headers import TRACEPARENT
from hayrunner_contracts.otel import (
    OpenTelemetryTracing,
    carried_context,
    context_headers,
    destination_attributes,
)
from hayrunner_contracts.tracing import NoTracing, RequestTracing

__all__ = [
    "attempt_span",
    "attempt_traceparent",
    "note_attempt_end",
    "note_attempt_parked",
    "request_tracing",
]

_NO_SPAN: AbstractContextManager[None] = nullcontext()


class _Attempt:
    """A span and what names it, which is written with every step."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.traceparent = context_headers(trace.set_span_in_context(span)).get(TRACEPARENT)


_current_attempt: ContextVar[_Attempt | None] = ContextVar("hayrunner_attempt", default=None)


def attempt_span(
    destination: str,
    headers: Mapping[str, str],
    *,
    message_id: str | None,
    attempt: int = 1,
    delivery: int = 1,
    queue_wait_s: float | None = None,
    earlier: str | None = None,
    gone: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> AbstractContextManager[None]:
    """The span of one attempt at a request that came on `destination` with `headers`.

    `attempt` and `delivery` count from 1; `earlier` is the `traceparent` of the attempt before.
    How it ended is told by `note_attempt_end`. An exception of the types `gone` says that another
    worker has the run, which is no failure.
    """
    if not tracing.is_on():
        return _NO_SPAN
    attributes = destination_attributes(destination, "process", "process", message_id)
    again = attempt > 1 or delivery > 1
    asked = carried_context(headers)
    links = [_link(asked, "requester")]
    if earlier:
        links.append(_link(carried_context({TRACEPARENT: earlier}), "earlier attempt"))
    return _live_attempt_span(
        f"{names.PROCESS} {destination}",
        {
            **attributes,
            names.ATTEMPT: attempt,
            names.DELIVERY: delivery,
            names.QUEUE_WAIT: None if queue_wait_s is None else max(0.0, queue_wait_s),
        },
        # An empty context makes a root: this process's current span has no part in a request.
        parent=Context() if again or asked is None else asked,
        links=[link for link in links if link is not None] if again else [],
        gone=gone,
    )


@contextmanager
def _live_attempt_span(
    name: str,
    attributes: Mapping[str, object],
    *,
    parent: Context,
    links: list[Link],
    gone: type[BaseException] | tuple[type[BaseException], ...],
) -> Generator[None]:
    lost: BaseException | None = None
    span = tracing.begun(name, SpanKind.CONSUMER, attributes, parent=parent, links=links)
    with tracing.OpenedSpan(span):
        token = _current_attempt.set(_Attempt(span))
        try:
            yield
        except gone as error:
            span.set_attribute(names.OUTCOME, names.HANDED_BACK)
            lost = error
        except BaseException as error:
            cut = isinstance(error, asyncio.CancelledError)
            span.set_attribute(names.OUTCOME, names.HANDED_BACK if cut else names.FAILED)
            raise
        finally:
            _current_attempt.reset(token)
    if lost is not None:
        raise lost


def note_attempt_end(status: str, error_code: str | None) -> None:
    """The run has ended in the current attempt, with this status and error code."""
    attempt = _current_attempt.get()
    if attempt is None:
        return
    span, outcome = attempt.span, _OUTCOMES.get(status, names.OTHER)
    span.set_attributes({names.RUN_STATUS: status, names.OUTCOME: outcome})
    if error_code is not None:
        tracing.failed(span, error_code if error_code in names.ERROR_TYPES else names.OTHER)


def note_attempt_parked() -> None:
    """The run waits for a person, and will go on in another attempt."""
    attempt = _current_attempt.get()
    if attempt is not None:
        attempt.span.set_attribute(names.OUTCOME, names.PARKED)


def attempt_traceparent() -> str | None:
    """What names the current attempt's span to a later one; None where there is none."""
    attempt = _current_attempt.get()
    return None if attempt is None else attempt.traceparent


def request_tracing() -> RequestTracing:
    """What a client of this process traces its requests with."""
    return OpenTelemetryTracing(tracing.current_provider()) if tracing.is_on() else NoTracing()


_OUTCOMES = {
    "completed": names.DONE,
    "failed": names.FAILED,
    "cancelled": names.CANCELLED,
}


def _link(context: Context | None, what: str) -> Link | None:
    if context is None:
        return None
    found = trace.get_current_span(context).get_span_context()
    return Link(found, {names.LINK_TO: what}) if found.is_valid else None
