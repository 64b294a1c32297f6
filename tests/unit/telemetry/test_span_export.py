"""The worker's spans as a collector gets them."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from hayrunner.settings import load_settings
from hayrunner.telemetry.otel_setup import set_up_export

export = set_up_export(load_settings())
tracer = export.provider.get_tracer("t")
for number in range(int(sys.argv[1])):
    tracer.start_span(str(number)).end()
export.end()
"""


@pytest.mark.parametrize(
    ("variables", "most"),
    [
        ({}, 128),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "200"}, 200),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "1000"}, 512),
    ],
)
def test_spans_are_sent_so_many_at_once(
    collector: tuple[str, list[tuple[str, bytes]]], variables: dict[str, str], most: int
) -> None:
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    url, taken = collector
    own = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "600"],
        env={**own, "OTEL_EXPORTER_OTLP_ENDPOINT": url, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    names: list[str] = []
    sizes: list[int] = []
    for path, body in taken:
        assert path == "/v1/traces"
        [resource] = messages.ExportTraceServiceRequest.FromString(body).resource_spans
        [scope] = resource.scope_spans
        sizes.append(len(scope.spans))
        names += [span.name for span in scope.spans]
    assert max(sizes) <= most
    assert sum(size == most for size in sizes) >= 1
    assert sorted(names, key=int) == [str(number) for number in range(600)]
