"""Runs as the tests of this folder see them: what a provider says, who answers, what came out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.agent import Agent
from hayrunner_contracts.events import (
    MessageStart,
    StreamEnd,
    StreamEvent,
    TextChunk,
    ToolInputComplete,
    ToolOutput,
)
from hayrunner_contracts.options import RunOptions
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.testing import assert_valid_stream

MESSAGE_ID = "01981a60-0000-7000-8000-000000000002"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

Event = TypeVar("Event", bound=StreamEvent)


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One chunk of a chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-1"} | {
        "choices": [choice]
    }


def usage_chunk() -> dict[str, Any]:
    return chunk({}) | {"choices": [], "usage": USAGE}


def text_turn(*words: str, finish: str = "stop") -> list[dict[str, Any]]:
    """A turn that says `words`."""
    return [*(chunk({"content": word}) for word in words), chunk({}, finish), usage_chunk()]


def call_turn(*calls: tuple[str, dict[str, Any] | str], text: str = "") -> list[dict[str, Any]]:
    """A turn that calls tools: names and arguments, as an object or as raw text."""
    deltas: list[dict[str, Any]] = [{"content": text}] if text else []
    for index, (name, arguments) in enumerate(calls):
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function = {"name": name, "arguments": raw}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        deltas.append({"tool_calls": [call]})
    return [*(chunk(delta) for delta in deltas), chunk({}, "tool_calls"), usage_chunk()]


def agent_over(generator: Any, **settings: Any) -> Agent:
    """An agent whose class attributes are `settings`; model calls that fail are not made again,
    unless they say so."""

    class Scripted(Agent):
        name = "support"
        provider_retries = 0

        def get_llm(self) -> Any:
            return generator

    for name, value in settings.items():
        setattr(Scripted, name, value)
    return Scripted()


class Sink:
    """Keeps what a run emits."""

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []

    async def emit(self, event: StreamEvent) -> None:
        self.events.append(event)

    def framed(self) -> list[StreamEvent]:
        """The events with the frame that a publisher puts around them, numbered."""
        start = MessageStart(message_id=MESSAGE_ID, agent="support")
        framed = [start, *self.events, StreamEnd()]
        return [msgspec.structs.replace(e, seq=n) for n, e in enumerate(framed, start=1)]


@dataclass(frozen=True)
class Told:
    """What became of a run. Its events are valid."""

    events: list[StreamEvent]
    outcome: RunOutcome

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def kinds(self) -> list[str]:
        return kinds(self.events)

    @property
    def code(self) -> str | None:
        return None if self.outcome.error is None else self.outcome.error.code

    @property
    def text(self) -> str:
        return text_of(self.events)

    @property
    def roles(self) -> list[str]:
        return [message.role for message in self.outcome.messages]


def request(prompt: str = "hi", options: dict[str, Any] | None = None, **fields: Any) -> RunRequest:
    if "messages" not in fields:
        fields["prompt"] = prompt
    given = RunOptions(**(options or {}))
    return RunRequest(message_id=MESSAGE_ID, options=given, **fields)


async def tell(
    agent: Agent, prompt: str = "hi", options: dict[str, Any] | None = None, **fields: Any
) -> Told:
    """Run a request to its end and hold its events to the rules."""
    sink = Sink()
    session = agent.open_session(
        request(prompt, options, **fields), message_id=MESSAGE_ID, sink=sink, agent_name="support"
    )
    outcome = await session.run()
    events = sink.framed()
    assert_valid_stream(events)
    return Told(events, outcome)


def kinds(events: Sequence[StreamEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def text_of(events: Sequence[StreamEvent]) -> str:
    return "".join(event.content for event in events if isinstance(event, TextChunk))


def inputs_of(events: Sequence[StreamEvent]) -> list[tuple[str, Any]]:
    return [(e.tool_name, e.tool_input) for e in events if isinstance(e, ToolInputComplete)]


def outputs_of(events: Sequence[StreamEvent]) -> list[tuple[Any, bool]]:
    return [(e.tool_output, e.is_error) for e in events if isinstance(e, ToolOutput)]
