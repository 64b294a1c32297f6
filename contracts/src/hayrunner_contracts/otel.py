"""OpenTelemetry traces of requests. Needs the extra `otel` (opentelemetry-api).

    client = RunClient(connection, tracing=OpenTelemetryTracing())

Every published request is a span `send agents.{namespace}.{agent}.requests`, and its W3C context
travels in the NATS headers `traceparent` and `tracestate`, so that the worker's spans are in the
requester's trace. Baggage does not travel. No span holds content, nor what an exception says.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hayrunner_contracts.errors import ERROR_CODES, RunError
from hayrunner_contracts.headers import TRACEPARENT, TRACESTATE

__all__ = [
    "DESTINATION_NAME",
    "DESTINATION_TEMPLATE",
    "ERROR_TYPE",
    "MESSAGE_BODY_SIZE",
    "MESSAGE_ID",
    "OPERATION_NAME",
    "OPERATION_TYPE",
    "SYSTEM",
    "OpenTelemetryTracing",
    "carried_context",
    "context_headers",
    "destination_attributes",
]

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION_NAME = "messaging.destination.name"
DESTINATION_TEMPLATE = "messaging.destination.template"
MESSAGE_ID = "messaging.message.id"
MESSAGE_BODY_SIZE = "messaging.message.body.size"
ERROR_TYPE = "error.type"

_TEMPLATES = {
    "requests": "agents.{namespace}.{agent}.requests",
    "ask": "agents.{namespace}.{agent}.ask",
}
_OTHER = "_OTHER"
# Of its own, and not the process's: that one carries baggage, too.
_PROPAGATOR = TraceContextTextMapPropagator()


class OpenTelemetryTracing:
    """See `hayrunner_contracts.tracing.RequestTracing`. Spans go to `provider`; to the process's,
    if it is not given."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = get_tracer("hayrunner", tracer_provider=provider)

    @contextmanager
    def sending(
        self, destination: str, message_id: str | None, size: int
    ) -> Generator[Mapping[str, str]]:
        """The span of one publish."""
        attributes = destination_attributes(destination, "send", "send", message_id)
        attributes[MESSAGE_BODY_SIZE] = size
        span = self._tracer.start_span(
            f"send {destination}",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        )
        # Its text may hold content, whatever it is: the code says what there is to say.
        with use_span(span, True, record_exception=False, set_status_on_exception=False):
            try:
                yield context_headers()
            except BaseException as error:
                _failed(span, error)
                raise


def destination_attributes(
    destination: str, operation: str, kind: str, message_id: str | None
) -> dict[str, str | int]:
    """What every span of a message has. `destination` is the subject of an agent's requests: the
    same for all of them. Subjects of single runs stand nowhere."""
    attributes: dict[str, str | int] = {
        SYSTEM: "nats",
        OPERATION_NAME: operation,
        OPERATION_TYPE: kind,
        DESTINATION_NAME: destination,
    }
    if (template := _TEMPLATES.get(destination.rpartition(".")[2])) is not None:
        attributes[DESTINATION_TEMPLATE] = template
    if message_id:
        attributes[MESSAGE_ID] = message_id
    return attributes


def context_headers(context: Context | None = None) -> dict[str, str]:
    """The span of a context, as headers; of the current one, if none is given. Empty where there
    is none."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, context)
    return headers


def carried_context(headers: Mapping[str, str]) -> Context | None:
    """The context that came with a message; None where none did, or none that can be read."""
    carried = {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}
    if TRACEPARENT not in carried:
        return None
    context = _PROPAGATOR.extract(carried, Context())
    return context or None


def _failed(span: Span, error: BaseException) -> None:
    code = error.code if isinstance(error, RunError) else _OTHER
    span.set_attribute(ERROR_TYPE, code if code in ERROR_CODES else _OTHER)
    span.set_status(Status(StatusCode.ERROR))
