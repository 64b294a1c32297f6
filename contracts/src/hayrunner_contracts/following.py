"""Reading one run's events: order, gaps, late join, resumption. Pure: no bus, no clock.

`EventFollower` turns what arrives, live or replayed, early, late or twice, into the run's events
in order, each once. `MessageBuilder` turns those into the message they describe.
"""

from collections.abc import Iterable
from typing import Any, cast

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

__all__ = [
    "Event",
    "EventFollower",
    "EventsLost",
    "FollowedCall",
    "MessageBuilder",
    "followed_events",
]

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
    held, up to `hold` events and `hold_bytes` bytes; beyond that it is refused and counted in
    `refused`, and whoever feeds must bring it again (it is in the stream). Of several events with
    one `seq` the first that came counts. Nothing is taken after `stream_end`.

    A `run_resumed` of a higher attempt than any before is always taken, also where its `seq` is not
    above the last one: what a worker and a server took with them when they died was seen and never
    stored, and the next worker numbers from what is stored. The events go on from that `seq`.
    `attempt` is the highest one that the reader has seen before `after`; where it is None, every
    `run_resumed` up to `after` that comes before `caught_up` is called counts as seen.
    """

    __slots__ = (
        "_after", "_attempt", "_held", "_held_bytes", "_hold", "_hold_bytes", "_seen",
        "done", "dropped", "last", "misled", "refused",
    )  # fmt: skip

    def __init__(
        self,
        after: int = 0,
        *,
        attempt: int | None = None,
        hold: int = 10_000,
        hold_bytes: int = 0,
    ) -> None:
        if after < 0:
            raise ValueError("after must not be negative")
        self.last = after
        """The sequence number up to which everything has been returned."""
        self.done = False
        """Whether `stream_end` was returned, or lies at or before `after`."""
        self.refused = 0
        """How many events came early while the hold was full."""
        self.dropped = False
        """Whether something held was let go because the run was resumed below it: it may belong to
        the new attempt, and is to be brought again. For whoever feeds to reset."""
        self.misled = False
        """Whether `stream_end` came with a `seq` that was already returned for something else, or
        of an attempt that was not announced: a `run_resumed` was missed."""
        self._after = after
        self._seen = after if attempt is None else 0
        self._attempt = attempt or 0
        self._hold = hold
        self._hold_bytes = hold_bytes
        self._held: dict[int, tuple[Event, bytes]] = {}
        self._held_bytes = 0

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
        return bool(self._held) and isinstance(self._held[max(self._held)][0], StreamEnd)

    def caught_up(self) -> None:
        """All that was stored when the reader came has been fed: a higher attempt is news now."""
        self._seen = 0

    def feed(self, event: Event) -> list[Event]:
        """The events that can be passed on now that `event` has come: none, one or many."""
        return [ready for ready, _ in self.take(event, b"")]

    def take(self, event: Event, data: bytes) -> list[tuple[Event, bytes]]:
        """`feed`, with the bytes that each event came in."""
        if self.done:
            return []
        if type(event) is RunResumed and event.attempt > self._attempt:
            return self._resume(event, data)
        if event.seq != self.last + 1:
            self._out_of_turn(event, data)
            return []
        if self._comes_unannounced(event):
            return []
        ready = [(event, data)]
        self.last += 1
        self._note_attempt(event)
        while self._held and (following := self._held.pop(self.last + 1, None)) is not None:
            self._held_bytes -= len(following[1])
            if self._comes_unannounced(following[0]):
                break
            ready.append(following)
            self.last += 1
            self._note_attempt(following[0])
        if type(ready[-1][0]) is StreamEnd:
            self.done = True
            self._let_go(0)
        return ready

    def _comes_unannounced(self, event: Event) -> bool:
        """Whether it is the end of an attempt whose `run_resumed` was missed, though the numbers
        fit: a lonely server passed on what it could not store."""
        if type(event) is not StreamEnd or not 0 < self._attempt < event.attempt:
            return False
        self.misled = True
        return True

    def _note_attempt(self, event: Event) -> None:
        if isinstance(event, MessageStart | RunResumed):
            self._attempt = max(self._attempt, event.attempt)

    def _resume(self, event: RunResumed, data: bytes) -> list[tuple[Event, bytes]]:
        if event.seq > self.last + 1:
            held = self._held.get(event.seq, (None, b""))[0]
            if not isinstance(held, RunResumed) or held.attempt < event.attempt:
                self._let_go(event.seq)
                self._keep(event, data)
            return []
        if event.seq <= self._seen:
            self._attempt = event.attempt
            return []
        self._let_go(0)
        self.last, self._attempt, self.misled = event.seq, event.attempt, False
        return [(event, data)]

    def _out_of_turn(self, event: Event, data: bytes) -> None:
        if event.seq > self.last:
            self._keep(event, data)
        elif type(event) is MessageStart:
            # Of a later attempt: the first one's was seen, and never stored.
            self._note_attempt(event)
        elif type(event) is StreamEnd:
            # At or before the start: there is nothing to come.
            self.done = event.seq <= self._after
            self.misled = not self.done

    def _keep(self, event: Event, data: bytes) -> None:
        if event.seq in self._held:
            return
        is_full = len(self._held) >= self._hold or (
            self._hold_bytes and self._held and self._held_bytes + len(data) > self._hold_bytes
        )
        if is_full:
            self.refused += 1
        else:
            self._held[event.seq] = (event, data)
            self._held_bytes += len(data)

    def _let_go(self, first: int) -> None:
        """Hold nothing any more from sequence `first` on."""
        kept = {seq: item for seq, item in self._held.items() if seq < first}
        self.dropped = self.dropped or (not self.done and len(kept) < len(self._held))
        self._held = kept
        self._held_bytes = sum(len(data) for _, data in kept.values())


def followed_events(events: Iterable[Event]) -> list[Event]:
    """A run as a reader sees it, from all that the stream holds of it in the stream's order:
    doubles left out, late ones in their place, nothing behind a gap that stays."""
    follower = EventFollower()
    return [ready for event in events for ready in follower.feed(event)]


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
    voids, so that `text`, `tool_calls` and `events` never show an interrupted step twice; text and
    reasoning of a reply that was rejected (`reply_rejected`) are left out.

    To go on reading elsewhere: `attach(message_id, message.last_seq, attempt=message.attempt)`.
    """

    def __init__(self) -> None:
        self.message_id: str | None = None
        self.agent: str | None = None
        self.thread_id: str | None = None
        self.attempt = 0
        self.last_seq = 0
        """The `seq` of the last event that was added."""
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
        return "".join(chunk.content for chunk in self._text)

    @property
    def reasoning(self) -> str:
        """The model's reasoning so far, where the provider shows it."""
        return "".join(chunk.content for chunk in self._reasoning)

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
        self.last_seq = event.seq
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
            case Data(data_type=data_type) if data_type == REPLY_REJECTED:
                self._reject(event)
            case _:
                self._apply_end(event)
                self._apply_call(event)

    def _reject(self, event: Data) -> None:
        """The text of that step is no part of the answer."""
        step = event.step
        if isinstance(event.data, dict):
            step = cast("dict[str, Any]", event.data).get("step", step)
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
