"""The leak test: what people, models, tools and documents say is found in no channel of a run that
keeps no content, and of one that does exactly where it belongs.

`make sweep` prints what was found where.
"""

import base64
import json
import re
from collections import Counter

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from tests.sweep.capture import CHANNELS
from tests.sweep.runs import RUNS
from tests.sweep.sentinels import Found, mark, scan
from tests.sweep.stage import KEY
from tests.sweep.sweeps import ON, Swept, sweep, sweep_now
from tests.sweep.table import DOCUMENT, in_document, printed, short_form
from tests.sweep.ways import WAYS

from hayrunner.settings import load_settings
from hayrunner.telemetry import names
from hayrunner.telemetry.otel_setup import content_policy

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
FEW = ("with_history", "tool_error", "subagent_here", "subagent_elsewhere", "pipeline")


@pytest.fixture(scope="module")
def off() -> Swept:
    """Every run, without content."""
    return sweep_now()


@pytest.fixture(scope="module")
def on() -> Swept:
    """Every run, with content."""
    return sweep_now(RUNS, ON)


@pytest.fixture(scope="module")
def both() -> Swept:
    """Every run with content, and at the same time without."""
    return sweep_now(RUNS, both=True)


# --- without content


def test_without_content_no_sentinel_is_found_anywhere(off: Swept) -> None:
    assert off.leaks(keeps=False) == []


def test_without_content_there_are_spans_of_every_kind_with_usage_and_outcomes(
    off: Swept,
) -> None:
    kinds = Counter(span.name.partition(" ")[0] for span in off.spans)
    assert set(kinds) == {"send", "process", "invoke_agent", "chat", "execute_tool"}
    assert min(kinds.values()) > 30
    told = [dict(span.attributes or {}) for span in off.spans]
    assert sum(names.INPUT_TOKENS in attributes for attributes in told) > 60
    assert not any(names.CONTENT_ATTRIBUTES & attributes.keys() for attributes in told)
    assert {str(a[names.OUTCOME]) for a in told if names.OUTCOME in a} == names.OUTCOMES
    assert {str(a[names.ERROR_TYPE]) for a in told if names.ERROR_TYPE in a} >= {
        *("budget_exceeded", "cancelled", "deadline_exceeded", "internal", "invalid_request"),
        *("invalid_tool_call", "max_turns", "provider_error", "provider_rate_limited"),
        *("stopped", "structured_output", "tool_error", "unknown_agent"),
    }
    assert any(span.links for span in off.spans)


def test_without_content_every_other_channel_has_something_in_it(off: Swept) -> None:
    empty = {"span events", "process output", "process arguments"}
    for channel in set(CHANNELS) - empty:
        assert off.captured.amounts[channel] > 0, channel
    assert off.captured.amounts["NATS headers"] > 1_000
    assert any("traceparent" in text for text in off.captured.of("NATS headers"))
    assert any(text.startswith("Authorization") for text in off.captured.of("HTTP headers"))


def test_without_content_the_log_says_what_happened(off: Swept) -> None:
    lines = [json.loads(line) for line in off.captured.of("log, as JSON")]
    events = Counter(line["event"] for line in lines)
    assert events["run ended"] > 60
    for said in ("looking for %s", "(text withheld)", "looking", "not found", "attempt begun"):
        assert events[said] > 0, said
    assert events["an unhandled exception ended a thread"] > 0
    assert events["an exception could not be raised"] > 0
    assert events["a warning was issued"] > 0
    assert events["tool %s failed with %s (ref %s)"] == 0  # the worker's own are whole
    assert any(re.match(r"tool broken failed with", line["event"]) for line in lines)
    loggers = {line["logger"].partition(".")[0] for line in lines}
    assert loggers >= {"hayrunner", "haystack", "shop", "openai", "asyncio"}, loggers


def test_without_content_metrics_count_runs_and_tokens(off: Swept) -> None:
    text = "".join(off.captured.of("metrics, Prometheus"))
    for name in (
        'hayrunner_runs_ended_total{agent="support"',
        "gen_ai_client_token_usage_sum{",
        'hayrunner_dead_letters_total{agent="_OTHER"',
    ):
        assert name in text, name
    assert "hayrunner.runs.ended" in off.captured.of("metrics, OpenTelemetry")[0]


# --- with content


def test_with_content_every_sentinel_is_found_where_it_belongs_and_nowhere_else(
    on: Swept,
) -> None:
    found = on.places()
    expected = {
        what: {place for place in way.places if ": " in place} for what, way in WAYS.items()
    }
    assert found == {what: places for what, places in expected.items() if places}
    assert on.leaks(keeps=True) == []


def test_every_way_in_is_used_by_some_run(off: Swept, on: Swept) -> None:
    assert off.made == on.made == set(WAYS)


def test_the_key_of_the_provider_is_nowhere_but_in_its_own_header(on: Swept) -> None:
    # `without_key` of the stage took it out of that one, and saw it there.
    assert not [hit for hit in on.hits if hit.found.what == "ApiKey"]
    assert KEY not in "".join(text for _, _, text in on.captured.texts)


# --- both at the same time


def test_runs_at_the_same_time_keep_only_what_each_may(both: Swept) -> None:
    assert both.leaks(keeps=True) == []
    kept = [hit for hit in both.hits if WAYS[hit.found.what].kind == "content"]
    assert {hit.found.run for hit in kept} & both.off == set()
    assert {hit.found.run for hit in kept} - {0} >= {
        number for number, name in both.runs.items() if name == "with_history"
    } - both.off


def test_no_trace_of_a_run_without_content_has_an_attribute_for_it(both: Swept) -> None:
    runs: dict[int, set[int]] = {}
    with_content: set[int] = set()
    for span in both.spans:
        if names.CONTENT_ATTRIBUTES & (span.attributes or {}).keys():
            with_content.add(_trace_of(span))
            told = {found.run for found in scan(span.to_json())} - {0}
            runs.setdefault(_trace_of(span), set()).update(told)
    assert with_content
    for trace in with_content:
        assert runs[trace]
        assert not runs[trace] & both.off


def _trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


# --- who decides


async def test_the_operators_never_overrules_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYRUNNER_CONTENT_TELEMETRY", "never")
    monkeypatch.setenv(CAPTURE, "true")
    swept = await sweep(monkeypatch, FEW, ON, policy=content_policy(load_settings()))
    assert swept.leaks(keeps=False) == []
    assert len(swept.spans) > 40


async def test_the_operators_default_is_content_where_nobody_says_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CAPTURE, "span_only")
    swept = await sweep(monkeypatch, FEW, policy=content_policy(load_settings()))
    assert swept.leaks(keeps=True) == []
    assert {"Prompt", "Preamble", "ToolResult", "SubAnswer"} <= swept.places().keys()


def test_the_search_finds_a_sentinel_in_whatever_form_it_is() -> None:
    word = mark("Prompt", 7)
    assert next(iter(scan(f"a{word}b{word.upper()}"))) == Found("Prompt", 7)
    assert len(list(scan(f"a{word}b{word.upper()}"))) == 2
    assert list(scan(word[:12])) == [Found("Cut", 0)]
    for before in ("", "x", "xy", "xyz"):
        encoded = base64.b64encode(f"{before}{word}".encode()).decode()
        assert list(scan(encoded)) == [Found("Encoded", 0)]


# --- what is told of it


def test_the_document_has_the_table_as_it_is() -> None:
    text = DOCUMENT.read_text()
    assert in_document(text, short_form()) == text, "run `make sweep`"


def test_the_printed_table_has_every_way_in_every_run_and_the_verdict(
    off: Swept, on: Swept
) -> None:
    text = printed(off, on)
    for row in (*WAYS, *RUNS, *CHANNELS):
        assert row in text, row
    assert "0 leaks without content, 0 with." in text
