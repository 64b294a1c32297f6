"""Reading one run's events: order, gaps, late join, resumption. Pure: no bus, no clock.

`EventFollower` turns what arrives, live or replayed, early, late or twice, into the run's events
in order, each once. `MessageBuilder` turns those into the message they describe.
"""

from typing import Any

import msgspec

from hayrunner_contracts.events import (
    REPLY_REJECTED,
    Data,
    Error,
    FinishReason,
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

__all__ = ["Event", "EventFollower", "EventsLost", "FollowedCall", "MessageBuilder"]

Event = StreamEvent | UnknownEvent
"""What a reader of a run sees: an event this version knows, or one it does not."""


class EventsLost(Exception):
    """Events of the run cannot be read any more: too old, or never stored.

    `first` and `last` are their sequence numbers; `last` is None where it is not known. The run's
    result may still be there.
    """

    def __init__(self, message: str, *, first: int, last: int | None = None) -> None:
        super().__init__(message)
        self.first = first
        self.last = last


class EventFollower:
    """The events of one message after sequence `after`, in order and each once.

    `feed` takes events as they come and returns those that are ready. What comes too early is
    held, up to `hold` events; beyond that it is refused and counted in `refused`, and whoever
    feeds must bring it again (it is in the stream). Nothing is taken after `stream_end`.
    """

    __slots__ = ("_held", "_hold", "done", "last", "refused")

    def __init__(self, after: int = 0, *, hold: int = 10_000) -> None:
        if after < 0:
            raise ValueError("after must not be negative")
        self.last = after
        """The sequence number up to which everything has been returned."""
        self.done = False
        """Whether `stream_end` was returned, or lies at or before `after`."""
        self.refused = 0
        """How many events came early while the hold was full."""
        self._hold = hold
        self._held: dict[int, Event] = {}

    @property
    def waiting(self) -> bool:
        """Whether something is held back because something before it is missing."""
        return bool(self._held)

    @property
    def gap(self) -> tuple[int, int] | None:
        """The first and last sequence number missing before what is held, if anything is."""
        if not self._held:
            return None
        return self.last + 1, min(self._held) - 1

    @property
    def end_is_held(self) -> bool:
        """Whether `stream_end` has come, but not all that is before it."""
        return bool(self._held) and isinstance(self._held[max(self._held)], StreamEnd)

    def feed(self, event: Event) -> list[Event]:
        """The events that can be passed on now that `event` has come: none, one or many."""
        if self.done or event.seq != self.last + 1:
            self._out_of_turn(event)
            return []
        ready = [event]
        self.last += 1
        if self._held:
            while (following := self._held.pop(self.last + 1, None)) is not None:
                ready.append(following)
                self.last += 1
        if type(ready[-1]) is StreamEnd:
            self.done = True
            self._held.clear()
        return ready

    def _out_of_turn(self, event: Event) -> None:
        if self.done:
            return
        if event.seq <= self.last:
            # A double. The end at or before the start means that there is nothing to come.
            if type(event) is StreamEnd:
                self.done = True
            return
        if len(self._held) < self._hold or event.seq in self._held:
            self._held[event.seq] = event
        else:
            self.refused += 1


class FollowedCall(msgspec.Struct, kw_only=True):
    """One tool call, as far as the events have told."""

    tool_call_id: str
    tool_name: str
    agent: str | None = None
    input_text: str = ""
    """The pieces of its arguments, joined."""
    tool_input: dict[str, Any] | str | None = None
    """As the model wrote it."""
    executed_input: dict[str, Any] | None = None
    """As it was really executed."""
    awaits_approval: bool = False
    output: str | list[dict[str, Any]] | None = None
    is_error: bool = False

    @property
    def done(self) -> bool:
        """Whether its output has come."""
        return self.output is not None


class MessageBuilder:
    """The one coherent message that a run's events describe, whatever attempts it took.

    Feed it the events in order, as a follower returns them. A `run_resumed` removes the events it
    voids, so that `text`, `tool_calls` and `events` never show an interrupted step twice; a reply
    that was rejected has no part in `text` and `reasoning`.
    """

    def __init__(self) -> None:
        self.message_id: str | None = None
        self.agent: str | None = None
        self.thread_id: str | None = None
        self.attempt = 0
        self.done = False
        self._events: list[Event] = []
        self._forget()

    def _forget(self) -> None:
        self.finish_reason: FinishReason | None = None
        self.usage: Usage | None = None
        self.error: Error | None = None
        self.sources: list[Source] = []
        self.suggestions: list[str] = []
        self._text: list[TextChunk] = []
        self._reasoning: list[ReasoningChunk] = []
        self._calls: dict[str, FollowedCall] = {}

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that count, void ones removed."""
        return tuple(self._events)

    @property
    def text(self) -> str:
        """The answer's text so far."""
        return "".join([chunk.content for chunk in self._text])

    @property
    def reasoning(self) -> str:
        """The model's reasoning so far, where the provider shows it."""
        return "".join([chunk.content for chunk in self._reasoning])

    @property
    def tool_calls(self) -> list[FollowedCall]:
        """The tool calls so far, in the order in which they began."""
        return list(self._calls.values())

    def add(self, event: Event) -> None:
        """Take the next event in."""
        if isinstance(event, RunResumed):
            self._discard_after(event.discard_after)
            self.attempt = event.attempt
        self._events.append(event)
        self._apply(event)

    def _discard_after(self, seq: int) -> None:
        self._events = [event for event in self._events if event.seq <= seq]
        self._forget()
        for event in self._events:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        match event:
            case TextChunk():
                self._text.append(event)
            case ReasoningChunk():
                self._reasoning.append(event)
            case MessageStart():
                self.message_id, self.agent = event.message_id, event.agent
                self.thread_id, self.attempt = event.thread_id, max(self.attempt, event.attempt)
            case Source():
                self.sources.append(event)
            case Suggestion():
                self.suggestions = list(event.suggestions)
            case Data():
                self._reject(event)
            case _:
                self._apply_end(event)
                self._apply_call(event)

    def _reject(self, event: Data) -> None:
        if event.data_type == REPLY_REJECTED and isinstance(event.data, dict):
            step: Any = event.data.get("step")  # pyright: ignore[reportUnknownMemberType]
            self._text = [chunk for chunk in self._text if chunk.step != step]
            self._reasoning = [chunk for chunk in self._reasoning if chunk.step != step]

    def _apply_end(self, event: Event) -> None:
        match event:
            case MessageEnd():
                self.finish_reason, self.usage = event.finish_reason, event.usage
                for call in self._calls.values():
                    call.awaits_approval = False
            case Error():
                self.error = event
            case StreamEnd():
                self.done = True
            case _:
                pass

    def _apply_call(self, event: Event) -> None:
        match event:
            case ToolCallStart():
                self._call(event.tool_call_id, event.tool_name).agent = event.agent
            case ToolInputChunk():
                self._call(event.tool_call_id).input_text += event.input_chunk
            case ToolInputComplete():
                self._call(event.tool_call_id, event.tool_name).tool_input = event.tool_input
            case ToolApprovalRequest():
                self._call(event.tool_call_id, event.tool_name).awaits_approval = True
            case ToolExecutionCommitted():
                call = self._call(event.tool_call_id, event.tool_name)
                call.executed_input, call.awaits_approval = event.tool_input, False
            case ToolOutput():
                call = self._call(event.tool_call_id)
                call.output, call.is_error = event.tool_output, event.is_error
                call.awaits_approval = False
            case _:
                pass

    def _call(self, tool_call_id: str, tool_name: str = "") -> FollowedCall:
        call = self._calls.get(tool_call_id)
        if call is None:
            call = FollowedCall(tool_call_id=tool_call_id, tool_name=tool_name)
            self._calls[tool_call_id] = call
        elif tool_name:
            call.tool_name = tool_name
        return call
