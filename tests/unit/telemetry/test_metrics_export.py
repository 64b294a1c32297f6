"""The worker's metrics as a collector gets them."""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import sys
from hayrunner.telemetry.metrics import Metrics
from hayrunner.telemetry.metrics_export import export_metrics
from hayrunner.telemetry.model_meter import CallLabels

apis = ("opentelemetry.sdk", "opentelemetry.metrics")
before = [name for name in sys.modules if name.startswith(apis)]
end = export_metrics(sys.argv[1])
from opentelemetry.metrics import get_meter

get_meter("authors").create_counter("authors.own").add(2)
metrics = Metrics(["support"])
metrics.redelivered("support")
metrics.run_started("support", queue_wait_s=0.3)
call = CallLabels(agent="support", provider="openai", model="m")
metrics.model_called(call, duration_s=2.0, first_chunk_s=0.5, error_code=None)
end()
assert before == [], before
"""


def run(kind: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_console_shows_what_was_recorded() -> None:
    shown = run("console", OTEL_SERVICE_NAME="my-worker")

    for text in (
        "hayrunner.redeliveries",
        "hayrunner.queue.wait",
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "authors.own",
        "my-worker",
    ):
        assert text in shown


def test_a_provider_of_the_process_is_used_as_it_is() -> None:
    code = (
        "from opentelemetry import metrics; "
        "from opentelemetry.sdk.metrics import MeterProvider; "
        "from opentelemetry.sdk.metrics.export import InMemoryMetricReader; "
        "from hayrunner.telemetry.metrics_export import export_metrics; "
        "reader = InMemoryMetricReader(); "
        "metrics.set_meter_provider(MeterProvider([reader])); "
        "end = export_metrics('console'); "
        "from hayrunner.telemetry.metrics import Metrics; "
        "Metrics(['a']).redelivered('a'); end(); "
        "assert 'hayrunner.redeliveries' in reader.get_metrics_data().to_json()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry.exporter") is None, reason="the extra otel is not there"
)
def test_a_collector_gets_them_over_otlp(
    collector: tuple[str, list[tuple[str, bytes]]],
) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    url, taken = collector
    run("otlp", OTEL_EXPORTER_OTLP_ENDPOINT=url)

    assert {path for path, _ in taken} == {"/v1/metrics"}
    found: dict[str, Any] = {}
    for _, body in taken:
        request = ExportMetricsServiceRequest.FromString(body)
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                assert scope.scope.name == (
                    "authors" if "authors.own" in {m.name for m in scope.metrics} else "hayrunner"
                )
                found |= {metric.name: metric for metric in scope.metrics}
    assert found["authors.own"].sum.data_points[0].as_int == 2
    assert found["hayrunner.redeliveries"].sum.data_points[0].as_int == 1
    duration = found["gen_ai.client.operation.duration"]
    assert duration.unit == "s"
    [point] = duration.histogram.data_points
    assert (point.sum, point.count) == (2.0, 1)
    assert not point.HasField("min")
    assert not point.HasField("max")
    attributes = {item.key: item.value.string_value for item in point.attributes}
    assert attributes["gen_ai.request.model"] == "m"
    assert "error.type" not in attributes
