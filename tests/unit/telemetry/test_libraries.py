"""What other libraries log of their failures, and what is left of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.telemetry.talkative import SCENARIOS, secret_of

SCRIPT = Path(__file__).with_name("talkative.py")


def output_of(form: str) -> str:
    """Everything that a process prints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), form],
        env={**os.environ, "HAYSTACK_TELEMETRY_ENABLED": "false"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def unguarded() -> str:
    return output_of("unguarded")


@pytest.fixture(scope="module")
def guarded() -> str:
    return output_of("json")


def records_of(output: str) -> dict[str, list[dict[str, Any]]]:
    """By scenario. Every line is a JSON object, but for what a handler of another library says."""
    found: dict[str, list[dict[str, Any]]] = {}
    name = ""
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        record = json.loads(line)
        if "scenario" in record:
            name = record["scenario"]
            found[name] = []
        else:
            found.setdefault(name, []).append(record)
    return found


# The version that is pinned prints none of it; another may.
@pytest.mark.parametrize("name", sorted({*SCENARIOS} - {"openai_bad_request"}))
def test_a_secret_is_in_the_log_where_nothing_guards_it(unguarded: str, name: str) -> None:
    assert secret_of(name) in unguarded


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_secret_is_in_the_output_of_a_process_with_our_logs(guarded: str, name: str) -> None:
    assert secret_of(name) not in guarded


def test_no_part_of_a_secret_is_in_the_output_in_the_form_for_terminals() -> None:
    output = output_of("console")
    assert "Secret-" not in output
    assert "Task exception was never retrieved" in output


@pytest.mark.parametrize("name", SCENARIOS)
def test_that_something_happened_is_still_told(guarded: str, name: str) -> None:
    records = records_of(guarded)[name]
    if name == "faststream_handler_failure":
        # Its broker makes a handler, which is no business of ours, for what is left.
        assert "(text withheld)" in guarded
    elif name not in ("haystack_pipeline_inputs", "openai_bad_request"):
        records = [r for r in records if r["level"] not in ("debug", "info")]
    assert records
    assert all(record["logger"] for record in records)


@pytest.mark.parametrize(
    ("name", "error_type"),
    [
        ("httpx_connection_error", "httpx.ConnectError"),
        ("aiohttp_server_error", "builtins.RuntimeError"),
        ("nats_refused_with_a_password", "builtins.ConnectionRefusedError"),
        ("nats_callback_error", "builtins.RuntimeError"),
        ("task_never_retrieved", "builtins.RuntimeError"),
        ("callback_error", "builtins.RuntimeError"),
        ("future_callback_error", "builtins.RuntimeError"),
        ("thread_error", "builtins.RuntimeError"),
        ("finalizer_error", "builtins.RuntimeError"),
        ("pydantic_error", "pydantic_core._pydantic_core.ValidationError"),
        ("chained_exception", "builtins.RuntimeError"),
        ("exception_as_message", "builtins.ValueError"),
        ("structlog_of_others", "builtins.ValueError"),
        ("unhandled_in_the_process", "builtins.ValueError"),
    ],
)
def test_a_failure_is_told_by_its_type_and_where_it_was_raised(
    guarded: str, name: str, error_type: str
) -> None:
    found = [r for r in records_of(guarded)[name] if r.get("error_type") == error_type]
    assert found
    # An exception that is only logged was raised nowhere.
    assert any(r["raised_at"] for r in found) or name == "exception_as_message"


def test_a_literal_message_stays_without_its_arguments(guarded: str) -> None:
    records = records_of(guarded)
    [told] = [r for r in records["argument"] if r["logger"] == "a.library"]
    assert told["event"] == "it failed: %s"
    assert told["place"].rpartition(":")[0].endswith("talkative.py")
    [told] = [r for r in records["formatted_message"] if r["logger"] == "a.library"]
    assert told["event"] == "(text withheld)"
    assert "asyncio" in {r["logger"] for r in records["task_never_retrieved"]}
