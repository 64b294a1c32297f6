"""The rules that the events of every run keep, checked.

1. `seq` counts from 1 without gaps. A `run_resumed` of a higher attempt than any before may count
   back: what a reader saw beyond it was never stored.
2. `message_start` is first; there is one `message_end`, and one `stream_end`, which is last.
3. After `error` come only `message_end` and `stream_end`; a run that ended with `error` said why.
4. Ids of tool calls are unique in a run. Each `tool_call_start` has one `tool_input_complete`
   (or none and an output that is an error) and one `tool_output`; input chunks stand between
   start and completion and make up the input; a `tool_execution_committed`, at most one, stands
   before the output. A `tool_approval_request` for one stands between its completion and its
   commit; in a run of mode `answer` it is all that is told of its call. A call of a subagent
   names it in all of these but the input chunks.

An event that `run_resumed` voids counts for the first rule only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hayrunner_contracts.events import (
    Error,
    MessageEnd,
    MessageStart,
    RunResumed,
    StreamEnd,
    StreamEvent,
    ToolApprovalRequest,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
    UnknownEvent,
)

__all__ = ["Event", "check_stream", "effective_events"]

Event = StreamEvent | UnknownEvent

_AFTER_ERROR = (MessageEnd, StreamEnd, UnknownEvent)
_TOOL_EVENTS = (ToolInputChunk, ToolInputComplete, ToolExecutionCommitted, ToolOutput)
_ToolEvent = (
    ToolInputChunk | ToolInputComplete | ToolApprovalRequest | ToolExecutionCommitted | ToolOutput
)


def effective_events(events: Iterable[Event]) -> list[Event]:
    """The events without those that a later `run_resumed` says are void."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, RunResumed):
            kept = [one for one in kept if one.seq <= event.discard_after]
        kept.append(event)
    return kept


def check_stream(events: Sequence[Event], *, is_numbered: bool = True) -> list[str]:
    """What is wrong with the events of one run, told rule by rule; nothing where all is well.

    `is_numbered=False` leaves `seq` alone: events that never left a process have none.
    """
    if not events:
        return ["there are no events"]
    problems: list[str] = []
    if is_numbered:
        problems += _check_numbers(events)
    told = effective_events(events) if is_numbered else list(events)
    return problems + _check_frame(told) + _check_error(told) + _check_tools(told)


def _check_numbers(events: Sequence[Event]) -> list[str]:
    expected, attempt = 1, 0
    for event in events:
        goes_back = (
            isinstance(event, RunResumed) and event.attempt > attempt and event.seq < expected
        )
        if event.seq != expected and not goes_back:
            return [f"seq {expected} expected, {event.seq} found ({type(event).__name__})"]
        if isinstance(event, MessageStart | RunResumed):
            attempt = max(attempt, event.attempt)
        expected = event.seq + 1
    return []


def _check_frame(events: Sequence[Event]) -> list[str]:
    problems: list[str] = []
    for kind in (MessageStart, MessageEnd, StreamEnd):
        count = sum(isinstance(event, kind) for event in events)
        if count != 1:
            problems.append(f"{count} {kind.__name__} events, 1 expected")
    if not isinstance(events[0], MessageStart):
        problems.append(f"the first event is {type(events[0]).__name__}")
    if not isinstance(events[-1], StreamEnd):
        problems.append(f"the last event is {type(events[-1]).__name__}")
    return problems


def _check_error(events: Sequence[Event]) -> list[str]:
    problems: list[str] = []
    failed = False
    for event in events:
        if failed and not isinstance(event, _AFTER_ERROR):
            problems.append(f"{type(event).__name__} after Error")
        failed = failed or isinstance(event, Error)
        if isinstance(event, MessageEnd) and event.finish_reason == "error" and not failed:
            problems.append("finish_reason error without an Error before it")
    return problems


class _Call:
    """What was seen of one tool call."""

    def __init__(self, tool_call_id: str, agent: str | None) -> None:
        self._id = tool_call_id
        self._agent = agent
        self._chunks: list[str] = []
        self._completed = False
        self._committed = False
        self._output: ToolOutput | None = None

    def take(self, event: _ToolEvent) -> list[str]:
        problems = self._check_event(event)
        match event:
            case ToolInputChunk():
                if self._completed:
                    problems.append(f"{self._id}: an input chunk after the input was complete")
                self._chunks.append(event.input_chunk)
            case ToolInputComplete():
                if self._completed:
                    problems.append(f"{self._id}: the input was completed twice")
                self._completed = True
                problems += self._check_input(event.tool_input)
            case ToolApprovalRequest():
                if self._committed or not self._completed:
                    problems.append(f"{self._id}: asked about once committed, or not yet whole")
            case ToolExecutionCommitted():
                if self._committed or not self._completed:
                    problems.append(f"{self._id}: committed twice, or before the input was whole")
                self._committed = True
            case ToolOutput():
                self._output = event
        return problems

    def _check_event(self, event: _ToolEvent) -> list[str]:
        kind = type(event).__name__
        problems = [f"{self._id}: {kind} after its output"] if self._output else []
        if not isinstance(event, ToolInputChunk) and event.agent != self._agent:
            problems.append(f"{self._id}: {kind} names another agent")
        return problems

    def end(self) -> list[str]:
        if self._output is None:
            return [f"{self._id}: no output"]
        if not self._completed and not self._output.is_error:
            return [f"{self._id}: an output without an error, though the input never was whole"]
        return []

    def _check_input(self, tool_input: dict[str, Any] | str) -> list[str]:
        joined = "".join(self._chunks)
        if not joined.strip() or tool_input == joined:
            return []
        try:
            same = msgspec.json.decode(joined) == tool_input
        except msgspec.DecodeError:
            same = False
        return [] if same else [f"{self._id}: the input is not what its chunks make up"]


def _check_tools(events: Iterable[Event]) -> list[str]:
    problems: list[str] = []
    calls: dict[str, _Call] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            if event.tool_call_id in calls:
                problems.append(f"{event.tool_call_id}: started twice")
            calls[event.tool_call_id] = _Call(event.tool_call_id, event.agent)
        elif isinstance(event, ToolApprovalRequest):
            if (asked := calls.get(event.tool_call_id)) is not None:
                problems += asked.take(event)
        elif isinstance(event, _TOOL_EVENTS):
            call = calls.get(event.tool_call_id)
            if call is None:
                problems.append(f"{event.tool_call_id}: {type(event).__name__} before its start")
            else:
                problems += call.take(event)
    for call in calls.values():
        problems += call.end()
    return problems
