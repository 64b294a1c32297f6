"""Runs whose spans are caught by the SDK's own exporter in memory."""

import gzip
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.agent.conftest import provide
from tests.unit.telemetry.traces import Traces

from hayrunner.telemetry.tracer import stop_tracing

__all__ = ["provide"]


@pytest.fixture(params=[True, False], ids=["own SDK", "SDK of the process"])
def traces(request: pytest.FixtureRequest) -> Iterator[Traces]:
    """Tracing, on until the test ends; `traces.start(policy)` with another policy."""
    caught = Traces(noted=request.param)
    caught.start()
    yield caught
    stop_tracing()
    caught.close()


class _Collector(http.server.BaseHTTPRequestHandler):
    taken: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        type(self).taken.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Where one listens, and the path and the body of each request that it took."""

    class Handler(_Collector):
        taken: list[tuple[str, bytes]] = []  # noqa: RUF012

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Handler.taken
    server.shutdown()
    server.server_close()
    thread.join()
