"""Metrics in both forms, from one table."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from hayrunner.telemetry.definitions import ALL, Definition
from hayrunner.telemetry.metrics import Metrics
from hayrunner.telemetry.model_meter import CallLabels

CALL = CallLabels(agent="support", provider="openai", model="gpt-x")


def fill(metrics: Metrics) -> None:
    """One of everything."""
    metrics.run_started("support", queue_wait_s=0.25)
    metrics.run_ended("support", outcome="failed", error_code="max_turns")
    metrics.run_left("support", duration_s=1.5)
    metrics.run_started("support", queue_wait_s=None)
    metrics.event_stored(0.003)
    metrics.redelivered("support")
    metrics.dead_letter("support", "invalid_request")
    metrics.heartbeat_missed()
    metrics.events_repaired(3)
    metrics.model_called(CALL, duration_s=2.0, first_chunk_s=0.5, error_code=None)
    metrics.model_called(CALL, duration_s=0.1, first_chunk_s=None, error_code="provider_error")
    metrics.tokens_used(CALL, input_tokens=100, output_tokens=7)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and labels, as a scraper reads them."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> MeterProvider:
    return MeterProvider(metric_readers=[reader], shutdown_on_exit=False)


def told(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_every_metric_of_the_table_is_shown_to_prometheus() -> None:
    metrics = Metrics(["support"])
    fill(metrics)
    shown = {name for name, _ in samples(metrics)}

    for definition in ALL:
        suffix = "_bucket" if definition.kind == "histogram" else ""
        assert definition.prometheus_name + suffix in shown


def test_names_follow_the_rules_of_both_worlds() -> None:
    names = [definition.name for definition in ALL]
    assert len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} == {"hayrunner", "gen_ai"}
    by_name = {definition.name: definition.prometheus_name for definition in ALL}
    assert by_name["hayrunner.runs.started"] == "hayrunner_runs_started_total"
    assert by_name["hayrunner.queue.wait"] == "hayrunner_queue_wait_seconds"
    assert by_name["gen_ai.client.token.usage"] == "gen_ai_client_token_usage"
    assert by_name["gen_ai.client.operation.duration"] == "gen_ai_client_operation_duration_seconds"


def test_the_numbers_are_what_was_recorded() -> None:
    metrics = Metrics(["support"])
    fill(metrics)

    assert value(metrics, "hayrunner_runs_started_total", agent="support") == 2
    assert value(metrics, "hayrunner_runs_active", agent="support") == 1
    assert value(metrics, "hayrunner_queue_wait_seconds_sum", agent="support") == 0.25
    assert value(metrics, "hayrunner_event_publish_duration_seconds_count") == 1
    assert value(metrics, "hayrunner_events_repaired_total") == 3
    call = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "openai",
        "gen_ai_request_model": "gpt-x",
        "gen_ai_agent_name": "support",
    }
    duration = "gen_ai_client_operation_duration_seconds_sum"
    assert value(metrics, duration, **call, error_type="") == 2.0
    assert value(metrics, duration, **call, error_type="provider_error") == 0.1
    first_chunk = "gen_ai_client_operation_time_to_first_chunk_seconds_count"
    assert value(metrics, first_chunk, **call) == 1
    tokens = "gen_ai_client_token_usage_sum"
    assert value(metrics, tokens, **call, gen_ai_token_type="input") == 100
    assert value(metrics, tokens, **call, gen_ai_token_type="output") == 7


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_opentelemetry_gets_the_same_numbers(
    definition: Definition, reader: InMemoryMetricReader, provider: MeterProvider
) -> None:
    metrics = Metrics(["support"], meter=provider.get_meter("hayrunner"))
    fill(metrics)
    metric = told(reader)[definition.name]
    assert metric.unit == definition.unit

    for point in metric.data.data_points:
        labels = dict.fromkeys(definition.prometheus_labels, "")
        labels |= {name.replace(".", "_"): text for name, text in point.attributes.items()}
        assert labels.keys() == set(definition.prometheus_labels)
        if definition.kind == "histogram":
            name = f"{definition.prometheus_name}_sum"
            assert value(metrics, name, **labels) == pytest.approx(point.sum)
            assert point.explicit_bounds == definition.buckets
            count = f"{definition.prometheus_name}_count"
            assert value(metrics, count, **labels) == point.count
        else:
            assert value(metrics, definition.prometheus_name, **labels) == point.value


def test_what_is_in_no_closed_set_is_one_label(
    reader: InMemoryMetricReader, provider: MeterProvider
) -> None:
    metrics = Metrics(["support"], meter=provider.get_meter("hayrunner"))
    metrics.run_started("secret-agent", queue_wait_s=0)
    metrics.run_ended("secret-agent", outcome="failed", error_code="secret-code")
    metrics.redelivered("secret-agent")
    metrics.dead_letter("secret-agent", "secret-code")
    call = CallLabels(agent="secret-agent", provider="secret-provider", model=None)
    metrics.model_called(call, duration_s=1, first_chunk_s=1, error_code="secret-code")
    metrics.tokens_used(call, input_tokens=1, output_tokens=1)

    assert b"secret" not in metrics.exposition()
    assert metrics.exposition().count(b"_OTHER") > 10
    assert all("secret" not in metric.to_json() for metric in told(reader).values())


def test_models_beyond_a_hundred_are_one_label() -> None:
    metrics = Metrics(["support"])
    for number in range(150):
        call = CallLabels(agent="support", provider="openai", model=f"m-{number}")
        metrics.model_called(call, duration_s=1, first_chunk_s=None, error_code=None)

    models = {dict(labels).get("gen_ai_request_model") for _, labels in samples(metrics)}
    assert len(models - {None}) == 101
    assert "_OTHER" in models


def test_two_workers_of_one_process_show_their_own_numbers_and_add_up_elsewhere(
    reader: InMemoryMetricReader, provider: MeterProvider
) -> None:
    first, second = (Metrics(["support"], meter=provider.get_meter("hayrunner")) for _ in range(2))
    first.redelivered("support")
    second.redelivered("support")

    assert value(first, "hayrunner_redeliveries_total", agent="support") == 1
    assert value(second, "hayrunner_redeliveries_total", agent="support") == 1
    [point] = told(reader)["hayrunner.redeliveries"].data.data_points
    assert point.value == 2


def test_prometheus_default_registry_knows_none_of_them() -> None:
    # Else an exporter of OpenTelemetry's that serves that one would show them a second time.
    from prometheus_client import REGISTRY, generate_latest

    fill(Metrics(["support"]))
    assert b"hayrunner" not in generate_latest(REGISTRY)
    assert b"gen_ai" not in generate_latest(REGISTRY)


def test_neither_the_sdk_nor_the_api_of_metrics_is_imported_for_prometheus_alone() -> None:
    code = (
        "import sys; from hayrunner.telemetry.metrics import Metrics; "
        "Metrics(['a']).redelivered('a'); "
        "apis = ('opentelemetry.sdk', 'opentelemetry.metrics'); "
        "print([name for name in sys.modules if name.startswith(apis)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_meter_of_the_process_is_found() -> None:
    code = (
        "from opentelemetry import metrics; "
        "from opentelemetry.sdk.metrics import MeterProvider; "
        "from opentelemetry.sdk.metrics.export import InMemoryMetricReader; "
        "reader = InMemoryMetricReader(); "
        "metrics.set_meter_provider(MeterProvider(metric_readers=[reader])); "
        "from hayrunner.telemetry.metrics import Metrics; "
        "Metrics(['a']).redelivered('a'); "
        "print(reader.get_metrics_data().to_json())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "hayrunner.redeliveries" in done.stdout
