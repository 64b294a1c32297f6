"""The message that a run's events describe."""

from msgspec.structs import replace

from hayrunner_contracts.events import (
    REPLY_REJECTED,
    Data,
    Error,
    MessageEnd,
    MessageStart,
    ReasoningChunk,
    RunResumed,
    Source,
    StreamEnd,
    StreamEvent,
    Suggestion,
    TextChunk,
    ToolApprovalRequest,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
    UnknownEvent,
    Usage,
)
from hayrunner_contracts.following import Event, MessageBuilder
from hayrunner_contracts.message_ids import new_message_id

MESSAGE_ID = new_message_id()
START = MessageStart(message_id=MESSAGE_ID, agent="support", thread_id="t1")


def built(*events: StreamEvent) -> MessageBuilder:
    builder = MessageBuilder()
    for seq, event in enumerate(events, 1):
        builder.add(replace(event, seq=seq))
    return builder


def test_text_reasoning_and_the_end_are_collected() -> None:
    usage = Usage(input_tokens=3, output_tokens=5, total_tokens=8)
    message = built(
        START,
        ReasoningChunk(content="Hm. "),
        TextChunk(content="It is "),
        TextChunk(content="on its way."),
        Source(index=1, title="Orders"),
        Suggestion(suggestions=["When?"]),
        MessageEnd(finish_reason="stop", usage=usage),
        StreamEnd(),
    )

    assert (message.message_id, message.agent, message.thread_id) == (MESSAGE_ID, "support", "t1")
    assert message.text == "It is on its way."
    assert message.reasoning == "Hm. "
    assert [source.title for source in message.sources] == ["Orders"]
    assert message.suggestions == ["When?"]
    assert (message.finish_reason, message.usage, message.done) == ("stop", usage, True)


def test_a_tool_call_is_followed_from_start_to_output() -> None:
    message = built(
        START,
        ToolCallStart(tool_call_id="c1", tool_name="refund"),
        ToolInputChunk(tool_call_id="c1", input_chunk='{"a'),
        ToolInputChunk(tool_call_id="c1", input_chunk='": 1}'),
        ToolInputComplete(tool_call_id="c1", tool_name="refund", tool_input={"a": 1}),
        ToolApprovalRequest(tool_call_id="c1", tool_name="refund", tool_input={"a": 1}),
    )
    [call] = message.tool_calls
    assert call.awaits_approval
    assert not call.done
    assert call.input_text == '{"a": 1}'

    message.add(ToolExecutionCommitted(tool_call_id="c1", tool_name="refund", tool_input={"a": 2}))
    message.add(ToolOutput(tool_call_id="c1", tool_output="done"))
    assert call.executed_input == {"a": 2}
    assert (call.done, call.output, call.is_error) == (True, "done", False)
    assert not call.awaits_approval


def test_an_interrupted_step_leaves_no_trace_after_the_run_resumed() -> None:
    message = built(
        START,
        TextChunk(content="Let me look. "),
        ToolCallStart(tool_call_id="c1", tool_name="look"),
        ToolInputComplete(tool_call_id="c1", tool_name="look", tool_input={}),
        ToolOutput(tool_call_id="c1", tool_output="seen"),
        TextChunk(content="It is bro"),
        ToolCallStart(tool_call_id="c2", tool_name="look"),
        Source(index=1, title="void"),
        RunResumed(attempt=2, discard_after=5),
        TextChunk(content="It is on its way."),
        MessageEnd(finish_reason="stop"),
        StreamEnd(),
    )

    assert message.text == "Let me look. It is on its way."
    assert [call.tool_call_id for call in message.tool_calls] == ["c1"]
    assert message.sources == []
    assert message.attempt == 2
    assert [event.seq for event in message.events] == [1, 2, 3, 4, 5, 9, 10, 11, 12]


def test_a_run_that_starts_over_has_one_message() -> None:
    message = built(
        START,
        TextChunk(content="Once "),
        RunResumed(attempt=2, discard_after=1),
        TextChunk(content="Once upon"),
        RunResumed(attempt=3, discard_after=1),
        TextChunk(content="Once upon a time"),
    )

    assert message.text == "Once upon a time"
    assert message.message_id == MESSAGE_ID


def test_an_error_is_kept() -> None:
    message = built(START, Error(error_code="busy_thread", error_message="busy", retryable=True))

    assert message.error is not None
    assert message.error.error_code == "busy_thread"


def test_unknown_events_are_kept_and_change_nothing() -> None:
    unknown: Event = UnknownEvent(type="mood", seq=2, raw=b"{}")
    message = built(START)
    message.add(unknown)

    assert message.events[1] is unknown
    assert message.text == ""


def test_a_rejected_reply_has_no_part_in_the_text() -> None:
    message = built(
        START,
        TextChunk(content="Let me look. ", step=1),
        ReasoningChunk(content="Hm.", step=2),
        TextChunk(content="It is", step=2),
        Data(data_type=REPLY_REJECTED, data={"step": 2}),
        ReasoningChunk(content="Ah.", step=3),
        TextChunk(content="It is on its way.", step=3),
        Data(data_type="progress", data={"step": 3}),
        Data(data_type=REPLY_REJECTED, data="nonsense"),
    )
    assert message.text == "Let me look. It is on its way."
    assert message.reasoning == "Ah."
    assert len(message.events) == 9


def test_a_rejection_that_a_lost_attempt_made_is_void_with_it() -> None:
    message = built(
        START,
        TextChunk(content="It is", step=1),
        Data(data_type=REPLY_REJECTED, data={"step": 1}),
        RunResumed(attempt=2, discard_after=1),
        TextChunk(content="Hello", step=1),
    )
    assert message.text == "Hello"
