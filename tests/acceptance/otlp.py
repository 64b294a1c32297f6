"""A receiver of OTLP over HTTP, as a collector is one: it decodes what exporters send."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["Received", "Receiver"]


@dataclass(frozen=True, kw_only=True)
class Received:
    """A span as it came over the wire."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    kind: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[bytes]
    service: str
    raw: Span = field(repr=False)


class Receiver:
    """`async with Receiver() as receiver`: `receiver.url` is for `OTEL_EXPORTER_OTLP_ENDPOINT`."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.requests = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        sent = ExportTraceServiceRequest.FromString(await request.read())
        self.requests += 1
        for resource in sent.resource_spans:
            attributes = {item.key: _value(item.value) for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_received(span, attributes) for span in scope.spans]
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    def named(self, start: str) -> list[Received]:
        """Those whose name begins so, in the order they began."""
        found = [span for span in self.spans if span.name.startswith(start)]
        return sorted(found, key=lambda span: span.start_ns)

    def path_of(self, span: Received) -> list[str]:
        """The names from a span up to its root."""
        by_id = {other.span_id: other for other in self.spans}
        found, above = [span.name], by_id.get(span.parent_id)
        while above is not None:
            found.append(above.name)
            above = by_id.get(above.parent_id)
        return found


def _received(span: Span, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        kind=Span.SpanKind.Name(span.kind),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes={item.key: _value(item.value) for item in span.attributes},
        links=[link.span_id for link in span.links],
        service=str(resource.get("service.name")),
        raw=span,
    )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
