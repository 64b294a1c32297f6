"""What an operator's tools ask: alive, ready, metrics, the contract."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from faststream.asgi import AsgiResponse, get

from hayrunner.telemetry.metrics import Metrics
from hayrunner_contracts.asyncapi import asyncapi

__all__ = ["health_routes"]

_JSON = {"content-type": "application/json"}


def health_routes(
    *, problems: Callable[[], Sequence[str]], metrics: Metrics
) -> list[tuple[str, Any]]:
    """The ASGI routes. `problems` says what keeps the worker from being ready, if anything.

    `/livez` says that the event loop turns, and nothing of NATS: restarting a worker does not
    bring a server back.
    """

    @get
    async def livez(scope: Any) -> AsgiResponse:
        return AsgiResponse(b'{"alive":true}', 200, _JSON)

    @get
    async def readyz(scope: Any) -> AsgiResponse:
        found = list(problems())
        body = msgspec.json.encode({"ready": not found, "problems": found})
        return AsgiResponse(body, 503 if found else 200, _JSON)

    @get
    async def exposition(scope: Any) -> AsgiResponse:
        kind = "text/plain; version=1.0.0; charset=utf-8"
        return AsgiResponse(metrics.exposition(), 200, {"content-type": kind})

    @get
    async def contract(scope: Any) -> AsgiResponse:
        return AsgiResponse(msgspec.json.encode(asyncapi()), 200, _JSON)

    return [
        ("/livez", livez),
        ("/readyz", readyz),
        ("/metrics", exposition),
        ("/asyncapi.json", contract),
    ]
