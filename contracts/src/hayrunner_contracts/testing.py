"""What tests of a service need: a client without a bus, waiting for a condition, a run's events
made up, and the rules that every stream keeps, as a check."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from hayrunner_contracts.events import (
    MessageEnd,
    MessageStart,
    ModelCallEnd,
    StreamEnd,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
    Usage,
)
from hayrunner_contracts.memory_client import InMemoryRunClient, RecordedRequest
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.stream_rules import Event, check_stream, effective_events

__all__ = [
    "InMemoryRunClient",
    "RecordedRequest",
    "assert_valid_stream",
    "check_stream",
    "effective_events",
    "eventually",
    "numbered",
    "some_events",
    "some_request",
    "some_result",
    "some_tool_events",
]

SOME_MESSAGE_ID = "01981a60-0000-7000-8000-000000000001"


async def eventually(
    condition: Callable[[], object | Awaitable[object]],
    timeout: float = 10.0,
    *,
    what: str = "the condition",
) -> None:
    """Wait until `condition()` is true (awaited where it returns an awaitable), at most
    `timeout` seconds; `AssertionError` naming `what` after that."""
    end = time.monotonic() + timeout
    while True:
        outcome = condition()
        if isinstance(outcome, Awaitable):
            outcome = await outcome
        if outcome:
            return
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        await asyncio.sleep(0.01)


def assert_valid_stream(events: Sequence[Event], *, is_numbered: bool = True) -> None:
    """`AssertionError` listing every rule that the events of one run break."""
    problems = check_stream(events, is_numbered=is_numbered)
    if problems:
        seen = ", ".join(type(event).__name__ for event in events)
        raise AssertionError("\n".join([*problems, f"events: {seen}"]))


def some_request(prompt: str = "Where is order 7?", **changes: Any) -> RunRequest:
    """A request; `changes` are its fields."""
    fields: dict[str, Any] = {"message_id": SOME_MESSAGE_ID, "prompt": prompt, **changes}
    return RunRequest(**fields)


def some_events(
    *words: str,
    message_id: str = SOME_MESSAGE_ID,
    agent: str = "support",
    tools: Iterable[StreamEvent] = (),
) -> list[StreamEvent]:
    """The events of one finished run, numbered: a step of tool calls where `tools` are given
    (see `some_tool_events`), then a step whose text is `words`."""
    usage = Usage(input_tokens=10, output_tokens=5, total_tokens=15)
    told: list[StreamEvent] = [MessageStart(message_id=message_id, agent=agent)]
    step = 1
    calls = list(tools)
    if calls:
        told += calls
        told.append(ModelCallEnd(step=1, model="some-model", finish_reason="tool", usage=usage))
        step = 2
    told += [TextChunk(step=step, content=word) for word in words or ("Hello", " there")]
    told.append(ModelCallEnd(step=step, model="some-model", finish_reason="stop", usage=usage))
    told.append(MessageEnd(finish_reason="stop", usage=usage + usage if calls else usage))
    told.append(StreamEnd())
    return numbered(told)


def some_tool_events(
    tool_call_id: str = "call-1",
    tool_name: str = "find_order",
    tool_input: dict[str, Any] | None = None,
    tool_output: str = "shipped",
    *,
    step: int = 1,
) -> list[StreamEvent]:
    """The events of one tool call that worked, not numbered."""
    given = {"order": 7} if tool_input is None else tool_input
    text = msgspec.json.encode(given).decode()
    call: dict[str, Any] = {"step": step, "tool_call_id": tool_call_id}
    return [
        ToolCallStart(**call, tool_name=tool_name),
        ToolInputChunk(**call, input_chunk=text[:3]),
        ToolInputChunk(**call, input_chunk=text[3:]),
        ToolInputComplete(**call, tool_name=tool_name, tool_input=given),
        ToolExecutionCommitted(**call, tool_name=tool_name, tool_input=given),
        ToolOutput(**call, tool_output=tool_output),
    ]


def some_result(answer: Any = "Hello there", **changes: Any) -> RunResult:
    """The result of a completed run; `changes` are its fields."""
    fields: dict[str, Any] = {
        "message_id": SOME_MESSAGE_ID,
        "agent": "support",
        "status": "completed",
        "answer": answer,
        "finish_reason": "stop",
        "usage": Usage(input_tokens=10, output_tokens=5, total_tokens=15),
        "model_calls": 1,
    }
    return RunResult(**{**fields, **changes})


def numbered(events: Iterable[StreamEvent], first: int = 1) -> list[StreamEvent]:
    """The events with `seq` counted from `first`."""
    return [
        msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(events, start=first)
    ]
