"""The checker of streams finds what it is there to find, and nothing in a good stream."""

from typing import Any

import msgspec
import pytest

from hayrunner_contracts.events import (
    Error,
    MessageEnd,
    MessageStart,
    RunResumed,
    StreamEnd,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
)
from hayrunner_contracts.testing import (
    assert_valid_stream,
    check_stream,
    effective_events,
    eventually,
    numbered,
    some_events,
    some_request,
    some_result,
    some_tool_events,
)

START = MessageStart(message_id="1", agent="a")
STOP = MessageEnd(finish_reason="stop")
END = StreamEnd()
CALL: list[Any] = some_tool_events()
STARTED, CHUNK_1, CHUNK_2, COMPLETE, COMMITTED, OUTPUT = CALL
FAILED_OUTPUT = msgspec.structs.replace(OUTPUT, is_error=True)
ERROR = Error(error_code="internal", error_message="")
# A subagent's calls stand between the start and the output of the call that asked it.
NESTED: list[Any] = [
    STARTED,
    CHUNK_1,
    CHUNK_2,
    COMPLETE,
    *(
        msgspec.structs.replace(event, agent="researcher")
        for event in some_tool_events("call-2")
        if not isinstance(event, ToolInputChunk)
    ),
    COMMITTED,
    OUTPUT,
]


def _problems(*events: StreamEvent) -> list[str]:
    return check_stream(numbered(events))


@pytest.mark.parametrize(
    "events",
    [
        some_events(),
        some_events("a", tools=CALL),
        some_events(tools=[*CALL, *some_tool_events("call-2")]),
        numbered([START, *NESTED, STOP, END]),
        numbered([START, STOP, END]),
        numbered([START, STARTED, CHUNK_1, FAILED_OUTPUT, STOP, END]),
        numbered([START, TextChunk(content="a"), ERROR, MessageEnd(finish_reason="error"), END]),
        numbered([START, STARTED, FAILED_OUTPUT, MessageEnd(finish_reason="cancelled"), END]),
    ],
)
def test_a_good_stream_has_no_problems(events: list[StreamEvent]) -> None:
    assert_valid_stream(events)


def test_events_that_were_never_published_need_no_numbers() -> None:
    assert check_stream([START, *CALL, STOP, END], is_numbered=False) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([START, STOP], "0 StreamEnd events"),
        ([STOP, END], "0 MessageStart events"),
        ([START, START, STOP, END], "2 MessageStart events"),
        ([START, STOP, STOP, END], "2 MessageEnd events"),
        ([START, END, STOP], "the last event is MessageEnd"),
        ([TextChunk(content="a"), START, STOP, END], "the first event is TextChunk"),
        ([START, ERROR, TextChunk(content="a"), STOP, END], "TextChunk after Error"),
        ([START, ERROR, ERROR, STOP, END], "Error after Error"),
        ([START, MessageEnd(finish_reason="error"), END], "error without an Error"),
        ([START, *CALL, *CALL, STOP, END], "call-1: started twice"),
        ([START, STARTED, STOP, END], "call-1: no output"),
        ([START, STARTED, OUTPUT, STOP, END], "though the input never was whole"),
        ([START, STARTED, COMPLETE, COMPLETE, OUTPUT, STOP, END], "completed twice"),
        ([START, STARTED, COMPLETE, OUTPUT, OUTPUT, STOP, END], "ToolOutput after its output"),
        ([START, STARTED, COMPLETE, OUTPUT, COMMITTED, STOP, END], "after its output"),
        ([START, STARTED, COMMITTED, COMPLETE, OUTPUT, STOP, END], "before the input was whole"),
        ([START, STARTED, COMPLETE, CHUNK_1, OUTPUT, STOP, END], "after the input was complete"),
        ([START, STARTED, CHUNK_1, COMPLETE, OUTPUT, STOP, END], "not what its chunks make up"),
        ([START, CHUNK_1, STOP, END], "call-1: ToolInputChunk before its start"),
        ([START, OUTPUT, STOP, END], "call-1: ToolOutput before its start"),
        ([START, *NESTED[:7], NESTED[-1], STOP, END], "call-2: no output"),
        (
            [START, *NESTED[:7], msgspec.structs.replace(NESTED[7], agent=None), STOP, END],
            "call-2: ToolOutput names another agent",
        ),
    ],
)
def test_a_broken_stream_is_told_what_is_wrong(events: list[StreamEvent], problem: str) -> None:
    assert any(problem in found for found in _problems(*events))
    with pytest.raises(AssertionError, match="events: "):
        assert_valid_stream(numbered(events))


def test_a_gap_a_repetition_and_a_wrong_beginning_are_found() -> None:
    good = some_events()
    assert check_stream(good[1:])[0].startswith("seq 1 expected, 2 found")
    assert check_stream([good[0], *good[2:]])[0].startswith("seq 2 expected, 3 found")
    assert check_stream([good[0], *good])[0].startswith("seq 2 expected, 1 found")
    assert check_stream([]) == ["there are no events"]


def test_input_that_is_no_json_is_compared_as_text() -> None:
    call = [
        ToolCallStart(tool_call_id="c", tool_name="f"),
        ToolInputChunk(tool_call_id="c", input_chunk="{oops"),
        ToolInputComplete(tool_call_id="c", tool_name="f", tool_input="{oops"),
        ToolOutput(tool_call_id="c", tool_output="no JSON", is_error=True),
    ]
    assert _problems(START, *call, STOP, END) == []


def test_an_interrupted_step_is_void() -> None:
    told = numbered(
        [START, TextChunk(content="a"), STARTED, CHUNK_1, RunResumed(attempt=2, discard_after=2),
         *CALL, STOP, END]
    )  # fmt: skip
    assert check_stream(told) == []
    kept = effective_events(told)
    assert [event.seq for event in kept] == [1, 2, 5, *range(6, 14)]


def test_a_second_interruption_voids_the_first_ones_repetition() -> None:
    told = numbered(
        [START, TextChunk(content="a"), RunResumed(attempt=2, discard_after=1),
         TextChunk(content="b"), RunResumed(attempt=3, discard_after=1), TextChunk(content="c"),
         STOP, END]
    )  # fmt: skip
    assert check_stream(told) == []
    texts = [event.content for event in effective_events(told) if isinstance(event, TextChunk)]
    assert texts == ["c"]


def test_made_up_requests_and_results_take_changes() -> None:
    assert some_request(mode="answer").mode == "answer"
    assert some_result(status="failed").status == "failed"
    assert some_result().message_id == some_request().message_id


async def test_waiting_ends_when_the_condition_comes_true() -> None:
    seen: list[int] = []

    async def condition() -> bool:
        seen.append(1)
        return len(seen) == 3

    await eventually(condition)
    assert len(seen) == 3


async def test_waiting_in_vain_names_the_condition() -> None:
    with pytest.raises(AssertionError, match=r"the moon did not come true within 0\.02 s"):
        await eventually(lambda: False, 0.02, what="the moon")
