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

NOTES = """
import sys
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.trace import set_span_in_context
from hayrunner.settings import load_settings
from hayrunner.telemetry.otel_setup import set_up_export

by_the_library, sizes = trace_exporter.encode_spans, []

def counting(spans):
    found = list(spans)
    sizes.append(len(found))
    return by_the_library(found)

trace_exporter.encode_spans = counting
export = set_up_export(load_settings())
tracer = export.provider.get_tracer("hayrunner")
root = tracer.start_span("root")
for number in range(int(sys.argv[1])):
    tracer.start_span(str(number), set_span_in_context(root), attributes={"a": number}).end()
root.end()
export.end()
print(sum(sizes))
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


def test_the_workers_own_are_there_and_encoded_as_notes(
    collector: tuple[str, list[tuple[str, bytes]]],
) -> None:
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    url, taken = collector
    own = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", NOTES, "600"],
        env={**own, "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SERVICE_NAME": "notes"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Its root, and one of each batch for the words about all.
    assert int(done.stdout) == 1 + len(taken)

    names: list[str] = []
    ids: set[bytes] = set()
    for _, body in taken:
        for resource in messages.ExportTraceServiceRequest.FromString(body).resource_spans:
            said = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            assert said["service.name"] == "notes"
            for scope in resource.scope_spans:
                assert scope.scope.name == "hayrunner"
                names += [span.name for span in scope.spans]
                ids |= {span.span_id for span in scope.spans}
    assert sorted(names) == sorted(["root", *map(str, range(600))])
    assert len(ids) == 601
