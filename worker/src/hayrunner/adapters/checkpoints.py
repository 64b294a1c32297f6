"""What is kept of a run after each of its steps, so that another worker can go on from there.

A step is kept twice: when the calls of its reply are known and none has run, and when all have
settled. So a call that was run is never run again, and one that was interrupted is run again under
the id it had. What a run is given by its request and its agent is not kept: it is there again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from haystack.components.agents.state import State
from haystack.components.agents.state.state_utils import replace_values
from haystack.dataclasses import ChatMessage
from msgspec import UNSET, Struct, UnsetType

from hayrunner.adapters import haystack_internals as internals
from hayrunner.adapters.citations import CitedDocument
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.model_call import ModelReply
from hayrunner.adapters.normalize import CallRecord
from hayrunner.adapters.outcome import Phase, RunOutcome
from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import FinishReason, Usage
from hayrunner_contracts.messages import ChatMessage as WireMessage
from hayrunner_contracts.options import ToolChoice
from hayrunner_contracts.results import RunStatus

__all__ = [
    "AskedCall",
    "Checkpoint",
    "Ended",
    "Found",
    "NotKept",
    "called",
    "decode",
    "ended",
    "settled",
]

_VERSION = 1
# Of a State: what is plain, and what is there again anyway.
_PLAIN = (
    "step_count",
    "token_usage",
    "context_tokens",
    "tool_call_counts",
    "exit_reason",
    "continue_run",
)
_REMADE = ("messages", "tools", "hook_context")


class NotKept(Exception):
    """There is something in the run's state that cannot be kept. `key` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the state's {key} cannot be kept")
        self.key = key


class AskedCall(Struct, frozen=True, kw_only=True):
    """A call that people were asked about. `expires_at` is in seconds since the epoch."""

    id: str
    expires_at: float | None = None


class KeptCall(Struct, frozen=True, kw_only=True):
    """A `CallRecord` whose deltas are over."""

    id: str
    provider_id: str
    tool_name: str
    announced: bool = True
    completed: bool = True
    answered: bool = False


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source of the run, and whether its event was emitted."""

    index: int
    title: str | None = None
    content: str | None = None
    url: str | None = None
    source_id: str | None = None
    media_type: str | None = None
    meta: dict[str, Any] = {}
    told: bool = False


class Ended(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the run ended, before its memory and its result were written."""

    status: RunStatus
    finish_reason: FinishReason
    answer: Any = None
    error: RunFailure | None = None
    messages: list[WireMessage] = []


class Checkpoint(Struct, kw_only=True, omit_defaults=True):
    """One run at the border of a step, or in one whose calls are known and have not run.

    `table` has every message once; `conversation` is what the model sees, `history` what the run
    made, `reply` the message with the calls: positions in it.
    """

    version: int
    # First, as it only grows: of a large checkpoint only what differs from the last is kept.
    table: list[dict[str, Any]] = []
    phase: Phase
    conversation: list[int] = []
    history: list[int] = []
    reply: int | None = None
    state: dict[str, Any] = {}
    own_state: dict[str, Any] = {}
    step: int = 0
    used_ids: list[str] = []
    calls: list[KeptCall] = []
    offered: list[str] = []
    tool_choice: ToolChoice | UnsetType | None = UNSET
    asked: list[AskedCall] | None = None
    usage: Usage = Usage()
    model_calls: int = 0
    subagent_calls: int = 0
    looked_at: int = 0
    invalid_retries_used: int = 0
    tool_choice_honoured: bool = False
    finish_reason: str | None = None
    notes: list[str] = []
    said_taken: int = 0
    decided: list[str] = []
    sources: list[Source] = []
    ended: Ended | None = None

    def encode(self) -> bytes:
        """As JSON. Values in `meta` and `extra` that have no form there become their text."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder(enc_hook=str)
_DECODER = msgspec.json.Decoder(Checkpoint)


@dataclass(frozen=True)
class Found:
    """A checkpoint that was read again: its messages, and the values of the author's own State."""

    checkpoint: Checkpoint
    messages: list[ChatMessage]
    own_values: dict[str, Any]

    @property
    def phase(self) -> Phase:
        return self.checkpoint.phase

    def into_run(self, run: RunContext) -> None:
        """Make `run` what it was. Its State follows when its loop begins."""
        kept = self.checkpoint
        run.new_messages = [self.messages[position] for position in kept.history]
        run.usage = kept.usage
        run.model_calls = kept.model_calls
        run.subagent_calls = kept.subagent_calls
        run.looked_at = kept.looked_at
        run.invalid_retries_used = kept.invalid_retries_used
        run.tool_choice_honoured = kept.tool_choice_honoured
        run.finish_reason = kept.finish_reason
        run.notes = list(kept.notes)
        run.hooks.goes_on(step=kept.model_calls, usage=kept.usage)
        run.normalizer.go_on(kept.step, kept.used_ids, [_record(call) for call in kept.calls])
        if run.inbox is not None:
            run.inbox.go_on(said_taken=kept.said_taken, settled=kept.decided)
        for source in kept.sources:
            fields = msgspec.structs.asdict(source)
            told = fields.pop("told")
            run.citations.know(CitedDocument(**fields), told=told)

    def into_state(self, state: State) -> None:
        """Make a fresh `state` what it was."""
        kept = self.checkpoint
        conversation = [self.messages[position] for position in kept.conversation]
        state.set("messages", conversation, handler_override=replace_values)
        for key, value in kept.state.items():
            state.set(key, value, handler_override=replace_values)
        for key, value in self.own_values.items():
            state.set(key, value, handler_override=replace_values)

    def reply_of(self, tools: Sequence[Any]) -> ModelReply:
        """The reply whose calls had not run; `tools` are those of the loop."""
        kept = self.checkpoint
        assert kept.reply is not None
        offered = set(kept.offered)
        return ModelReply(
            message=self.messages[kept.reply],
            tools=[tool for tool in tools if tool.name in offered],
            tool_choice=kept.tool_choice,
        )


def decode(data: bytes) -> Found | None:
    """None for one that this worker does not understand, such as one of another version of the
    agent, whose State has classes that are not there: the run starts over."""
    try:
        kept = _DECODER.decode(data)
        if kept.version != _VERSION:
            return None
        messages = [ChatMessage.from_dict(message) for message in kept.table]
        own = {key: internals.deserialize_value(value) for key, value in kept.own_state.items()}
    # Policy: whatever Haystack, or a class of an author's, raises over a value, it cannot be read.
    except Exception:
        return None
    return Found(kept, messages, own)


def called(run: RunContext, state: State, answer: ModelReply) -> Checkpoint:
    """The reply is known, and none of its calls has run. Raises `NotKept`."""
    kept = _of(run, state, "called")
    kept.reply = next(
        position
        for position, message in zip(kept.conversation, state.data["messages"], strict=True)
        if message is answer.message
    )
    kept.calls = [
        KeptCall(
            id=call.id,
            provider_id=call.provider_id,
            tool_name=call.tool_name,
            announced=call.announced,
            completed=call.completed,
        )
        for call in run.normalizer.calls
    ]
    kept.offered = [tool.name for tool in answer.tools]
    kept.tool_choice = answer.tool_choice
    return kept


def settled(run: RunContext, state: State, *, exited: bool) -> Checkpoint:
    """All calls of the step have settled; `exited` where one of them ended the loop. Raises
    `NotKept`."""
    return _of(run, state, "exited" if exited else "settled")


def ended(run: RunContext, outcome: RunOutcome) -> Checkpoint:
    """Nothing is left but to write down how the run ended."""
    return Checkpoint(
        version=_VERSION,
        phase="ended",
        usage=outcome.usage,
        model_calls=run.model_calls,
        subagent_calls=run.subagent_calls,
        step=run.normalizer.step,
        ended=Ended(
            status=outcome.status,
            finish_reason=outcome.finish_reason,
            answer=outcome.answer,
            error=outcome.error,
            messages=outcome.messages,
        ),
    )


def _of(run: RunContext, state: State, phase: Phase) -> Checkpoint:
    table = _Table()
    conversation = [table.add(message) for message in state.data["messages"]]
    history = [table.add(message) for message in run.new_messages]
    inbox = run.inbox
    return Checkpoint(
        version=_VERSION,
        phase=phase,
        table=table.messages,
        conversation=conversation,
        history=history,
        state={key: state.data[key] for key in _PLAIN if key in state.data},
        own_state=_own(state),
        step=run.normalizer.step,
        used_ids=sorted(run.normalizer.used_ids),
        usage=run.usage,
        model_calls=run.model_calls,
        subagent_calls=run.subagent_calls,
        looked_at=run.looked_at,
        invalid_retries_used=run.invalid_retries_used,
        tool_choice_honoured=run.tool_choice_honoured,
        finish_reason=run.finish_reason,
        notes=list(run.notes),
        said_taken=0 if inbox is None else inbox.said_taken,
        decided=[] if inbox is None else sorted(inbox.settled),
        sources=[
            Source(**_fields(document), told=told) for document, told in run.citations.known()
        ],
    )


class _Table:
    """Messages, each once, whatever list they stand in."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._at: dict[int, int] = {}

    def add(self, message: ChatMessage) -> int:
        position = self._at.get(id(message))
        if position is None:
            position = self._at[id(message)] = len(self.messages)
            self.messages.append(message.to_dict())
        return position


def _own(state: State) -> dict[str, Any]:
    """What the agent's author keeps in the State, in Haystack's own form for it."""
    kept: dict[str, Any] = {}
    for key, value in state.data.items():
        if key in _PLAIN or key in _REMADE or value is None:
            continue
        try:
            kept[key] = internals.serialize_value(value)
            # What could not be read again is better known now.
            internals.deserialize_value(kept[key])
        # Policy: whatever an author's value raises, it is one that cannot be kept.
        except Exception as error:
            raise NotKept(key) from error
    return kept


def _fields(document: CitedDocument) -> dict[str, Any]:
    return {
        "index": document.index,
        "title": document.title,
        "content": document.content,
        "url": document.url,
        "source_id": document.source_id,
        "media_type": document.media_type,
        "meta": dict(document.meta),
    }


def _record(call: KeptCall) -> CallRecord:
    return CallRecord(
        id=call.id,
        provider_id=call.provider_id,
        tool_name=call.tool_name,
        announced=call.announced,
        completed=call.completed,
        answered=call.answered,
    )
