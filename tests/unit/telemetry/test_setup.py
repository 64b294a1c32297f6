"""What turns the export of traces on, and how it ends."""

import logging
import threading
import time

import pytest
from opentelemetry import trace
from tests.unit.telemetry.traces import Traces

from hayrunner.settings import load_settings
from hayrunner.telemetry import otel_setup
from hayrunner.telemetry.gate import ContentPolicy
from hayrunner.telemetry.otel_setup import content_policy, set_up_export

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "OTEL_METRICS_EXPORTER",
        "OTEL_SDK_DISABLED",
        "OTEL_TRACES_EXPORTER",
        CAPTURE,
        "HAYRUNNER_CONTENT_TELEMETRY",
    ):
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({}, None),
        (ENDPOINT, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": " OTLP "}, "otlp"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, None),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "no"}, "otlp"),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, None),
    ],
)
def test_an_endpoint_or_an_exporter_turns_it_on(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], where: str | None
) -> None:
    set_all(monkeypatch, variables)
    assert load_settings().traces == where


@pytest.mark.parametrize(
    ("variables", "policy"),
    [
        ({}, ContentPolicy()),
        ({"HAYRUNNER_CONTENT_TELEMETRY": "never"}, ContentPolicy(forbidden=True)),
        *(
            (
                {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": value},
                ContentPolicy(default=on),
            )
            for value, on in [
                ("true", True),
                ("True", True),
                ("SPAN_ONLY", True),
                ("SPAN_AND_EVENT", True),
                ("EVENT_ONLY", False),
                ("NO_CONTENT", False),
                ("false", False),
                ("yes", False),
                ("", False),
            ]
        ),
    ],
)
def test_the_operator_says_what_holds_by_default_and_what_never_does(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], policy: ContentPolicy
) -> None:
    set_all(monkeypatch, variables)
    assert content_policy(load_settings()) == policy


def test_without_configuration_nothing_is_set_up() -> None:
    assert set_up_export(load_settings()) is None


def test_a_provider_that_the_process_has_is_used_and_not_ended(
    monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: traces.provider)
    export = set_up_export(load_settings())
    assert export is not None
    assert export.provider is traces.provider
    export.end()
    with traces.provider.get_tracer("x").start_as_current_span("still taken"):
        pass
    assert traces.tree() == [("still taken", None)]


def test_a_missing_extra_is_said_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_all(monkeypatch, ENDPOINT)
    monkeypatch.setattr(otel_setup, "_is_installed", lambda name: False)  # pyright: ignore[reportUnknownLambdaType]
    with caplog.at_level(logging.WARNING):
        assert set_up_export(load_settings()) is None
    assert "hayrunner[otel]" in caplog.text


def test_the_end_has_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(20)

    monkeypatch.setattr(otel_setup, "END_LIMIT_S", 0.05)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        otel_setup._end(hang)  # pyright: ignore[reportPrivateUsage]
    assert time.monotonic() - began < 10
    release.set()
    assert "collector" in caplog.text


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({}, None),
        (ENDPOINT, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, None),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:4318/v1/metrics"}, "otlp"),
        ({"OTEL_METRICS_EXPORTER": "console"}, "console"),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, None),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_an_endpoint_or_an_exporter_turns_the_export_of_metrics_on(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], where: str | None
) -> None:
    set_all(monkeypatch, variables)
    assert load_settings().metrics == where
