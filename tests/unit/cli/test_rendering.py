"""A run on the terminal: what is shown, in which order, and what never gets through."""

import io

import pytest
from rich.console import Console

from hayrunner.cli.rendering import RunView, make_console, safe_text
from hayrunner_contracts.events import (
    Data,
    Error,
    MessageEnd,
    MessageStart,
    ModelCallEnd,
    ReasoningChunk,
    RunResumed,
    Source,
    StreamEnd,
    StreamEvent,
    Suggestion,
    TextChunk,
    ToolApprovalRequest,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
    UnknownEvent,
)
from hayrunner_contracts.testing import some_events, some_tool_events


def shown(*events: StreamEvent | UnknownEvent) -> str:
    written = io.StringIO()
    view = RunView(make_console(written))
    for event in events:
        view.show(event)
    return written.getvalue()


def test_a_run_reads_as_its_tools_with_arguments_and_results_then_text_then_usage() -> None:
    events = some_events("It ", "is shipped.", tools=some_tool_events())
    assert shown(*events) == (
        '  → find_order {"order":7}\n'
        "  ← find_order shipped\n"
        "It is shipped.\n"
        "\n"
        "stop · 2 model calls · 20 tokens in, 10 out, 30 in all · some-model\n"
    )


def test_text_is_out_before_its_line_ends() -> None:
    assert shown(TextChunk(content="Hel")) == "Hel"


def test_reasoning_and_the_text_of_each_step_stand_on_lines_of_their_own() -> None:
    told = shown(
        ReasoningChunk(content="Hm", step=1),
        TextChunk(content="One", step=1),
        TextChunk(content=" more", step=1),
        TextChunk(content="Two", step=2),
    )
    assert told == "Hm\nOne more\nTwo"


def test_arguments_that_were_changed_before_they_were_run_are_shown_as_run() -> None:
    told = shown(
        ToolInputComplete(tool_call_id="a", tool_name="f", tool_input={"x": 1}),
        ToolExecutionCommitted(tool_call_id="a", tool_name="f", tool_input={"x": 2}),
        ToolOutput(tool_call_id="a", tool_output=[{"text": "two"}]),
    )
    assert told == '  → f {"x":1}\n  → run with {"x":2}\n  ← f [{"text":"two"}]\n'


def test_a_subagents_calls_are_shown_as_its_own() -> None:
    told = shown(
        ToolInputComplete(tool_call_id="a", tool_name="f", tool_input={"x": 1}, agent="helper"),
        ToolOutput(tool_call_id="a", tool_output="two", agent="helper"),
    )
    assert told == '  → helper: f {"x":1}\n  ← helper: f two\n'


def test_arguments_that_are_no_json_are_shown_as_they_are() -> None:
    told = shown(ToolInputComplete(tool_call_id="a", tool_name="f", tool_input='{"x": '))
    assert told == '  → f {"x": \n'


def test_a_failed_tool_is_marked() -> None:
    told = shown(ToolOutput(tool_call_id="a", tool_output="no", is_error=True))
    assert told.startswith("  ✗")


def test_an_error_says_its_code_and_whether_to_try_again() -> None:
    told = shown(
        TextChunk(content="Hal"),
        Error(error_code="provider_error", error_message="it broke", retryable=True, ref="r1"),
        MessageEnd(finish_reason="error"),
    )
    assert told.startswith("Hal\nprovider_error: it broke (ref r1); trying again may help\n")
    assert "usage unknown" in told


def test_a_takeover_is_said_and_what_stood_before_is_void() -> None:
    told = shown(TextChunk(content="Hal", step=1), RunResumed(attempt=2, discard_after=1))
    assert told.startswith("Hal\n-- the worker was lost; attempt 2 goes on")


def test_everything_else_is_a_line_or_nothing() -> None:
    told = shown(
        MessageStart(message_id="m", agent="a"),
        ToolApprovalRequest(tool_call_id="a", tool_name="pay", tool_input={}),
        Source(index=1, title="A page", url="https://example.org"),
        Data(data_type="chart", data={"a": 1}),
        Suggestion(suggestions=["And then?"]),
        ModelCallEnd(),
        StreamEnd(),
        UnknownEvent(type="new", seq=1, raw=b"{}"),
    )
    assert told == (
        "  ? pay {} waits for approval\n"
        "  [1] A page https://example.org\n"
        '  chart: {"a":1}\n'
        "  · And then?\n"
    )


def test_a_long_result_is_cut_on_the_terminal() -> None:
    told = shown(ToolOutput(tool_call_id="a", tool_output="x" * 10_000))
    assert len(told) < 2_100
    assert told.endswith("… (10000 characters)\n")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a\x1b[2Jb", "a[2Jb"),
        ("a\rb\x08\x07", "ab"),
        ("a\x9b31mb", "a31mb"),
        ("a\u202eb\u2066", "ab"),
        ("a\tb\nc", "a\tb\nc"),
    ],
)
def test_control_characters_never_reach_the_terminal(text: str, safe: str) -> None:
    assert safe_text(text) == safe
    assert shown(TextChunk(content=text)) == safe


def test_square_brackets_and_colons_are_text_and_no_markup() -> None:
    assert shown(TextChunk(content="[red]x[/red] :smile:")) == "[red]x[/red] :smile:"


def test_a_terminal_gets_colours_and_dim_reasoning() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system="standard")
    view = RunView(console)
    view.show(ReasoningChunk(content="Hm"))
    assert written.getvalue() == "\x1b[2mHm\x1b[0m"
