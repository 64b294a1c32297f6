"""What one run owns while it goes on."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from haystack.dataclasses import ChatMessage
from msgspec.structs import replace

from hayrunner.adapters.answer_tool import AnswerTool
from hayrunner.adapters.citation_tags import TagFilter
from hayrunner.adapters.citations import RunCitations
from hayrunner.adapters.convert import WireMessages
from hayrunner.adapters.hook_chain import HookChain
from hayrunner.adapters.normalize import ChunkNormalizer
from hayrunner.adapters.outcome import EventSink, StepStore
from hayrunner.adapters.settings import RunSettings
from hayrunner.approvals import ApprovalRules
from hayrunner.errors import HayrunnerError
from hayrunner.run_inbox import RunInbox
from hayrunner.storage.base import ThreadTurn
from hayrunner_contracts.events import REPLY_REJECTED, StreamEvent, ToolOutput, Usage

if TYPE_CHECKING:
    from hayrunner.adapters.checkpoints import Checkpoint, Found

__all__ = ["REPLY_REJECTED", "DiscardEvents", "RunContext", "current_run"]


class DiscardEvents:
    """A sink for runs nobody watches."""

    async def emit(self, event: StreamEvent) -> None:
        return None


@dataclass(kw_only=True)
class RunContext:
    """The state of one run: never shared, reached through `current_run` inside the loop.

    `new_messages` are those the run made, in order, as they stand in history. `finish_reason`
    is set when the loop ends by itself, `stop_reason` when a hook ended it. `unsent` are events
    that happened and were not given to the sink yet. `executor` runs sync tools: a pool of the
    agent's own, so that a tool that blocks holds up no other agent. `turn` is the run's on its
    thread, taken only where the thread is loaded and saved. `answer_tool` is what the model is to
    call for its answer, where its generator knows no format. `streaming` is the model
    call that is going on where hooks watch it, `delta_error` what one of them ended it with.
    `looked_at` counts the messages whose call ids are known. `first_chunk_at` is when the current
    model call brought its first chunk, on the clock of `time.perf_counter`.
    `stopping` says that somebody ended the run early. `ended` is set before the last events: a
    tool's thread may live on, and is not heard then.
    `inbox` has what people send to the run, None where nobody can; `notes` are what the model is
    to be told before its next call.

    `parent` is the run that this one is a part of, `path` names the agents above, whether they
    run here or elsewhere. `subagent_calls` counts model calls of subagents, `relayed` has an
    output for every call of theirs that is open. `suggest` finds follow-up questions for an
    answer; None where nobody wants them. `deadline` is in seconds since the epoch.

    `steps` is where a durable run's steps are kept, `in_loop` says that what runs now is a loop
    that can go on from one. `found` is what an earlier attempt kept, until the loop has gone on
    from it. `called` is the checkpoint of the step that goes on.
    """

    message_id: str
    settings: RunSettings
    agent: str = "agent"
    thread_id: str | None = None
    user: str | None = None
    turn: ThreadTurn | None = None
    hooks: HookChain = field(default_factory=HookChain)
    executor: Executor | None = None
    inbox: RunInbox | None = None
    approvals: ApprovalRules = field(default_factory=ApprovalRules)
    notes: list[str] = field(default_factory=list[str])
    sink: EventSink = field(default_factory=DiscardEvents)
    generator: Any = None
    generation_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    answer_tool: AnswerTool | None = None
    normalizer: ChunkNormalizer = field(default_factory=ChunkNormalizer)
    usage: Usage = field(default_factory=Usage)
    model_calls: int = 0
    looked_at: int = 0
    first_chunk_at: float | None = None
    invalid_retries_used: int = 0
    tool_choice_honoured: bool = False
    new_messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
    finish_reason: str | None = None
    stop_reason: str | None = None
    streaming: asyncio.Task[Any] | None = None
    delta_error: HayrunnerError | None = None
    stopping: bool = False
    ended: bool = False
    unsent: deque[StreamEvent] = field(default_factory=deque[StreamEvent])
    to_wire: WireMessages = field(default_factory=WireMessages)
    citations: RunCitations = field(default_factory=RunCitations)
    suggest: Callable[[str], Awaitable[list[str]]] | None = None
    deadline: float | None = None
    parent: "RunContext | None" = None
    path: tuple[str, ...] = ()
    subagent_calls: int = 0
    relayed: dict[str, ToolOutput] = field(default_factory=dict[str, ToolOutput])
    steps: StepStore | None = None
    in_loop: bool = False
    found: "Found | None" = None
    called: "Checkpoint | None" = None
    _tags: TagFilter = field(default_factory=TagFilter)
    _in_turn: asyncio.Lock | None = None

    async def emit(self, events: Iterable[StreamEvent]) -> None:
        """Give events to the sink, in order; waits where the sink does.

        If the wait is cancelled, what was not given stays and goes first the next time: events
        that the normalizer counts as told are never lost.
        """
        self.unsent.extend(self._tags.pass_on(events) if self.citations.any else events)
        if self._in_turn is None:
            await self._send()
            return
        async with self._in_turn:
            await self._send()

    async def _send(self) -> None:
        unsent, emit = self.unsent, self.sink.emit
        while unsent:
            await emit(unsent.popleft())

    def straight_emit(self) -> Callable[[StreamEvent], Awaitable[None]] | None:
        """The sink's own `emit`, for the text of one model call, where nothing stands between:
        no hook, no citation, nobody else who emits. None where something does."""
        if self.hooks.watches_deltas or self.citations.any or self._in_turn or self.unsent:
            return None
        straight = getattr(self.sink, "straight", None)
        return self.sink.emit if straight is None else straight()

    async def confirm(self) -> None:
        """Before a tool runs: does not return where the run is another worker's by now."""
        for run in self.lineage():
            if run.steps is not None:
                await run.steps.confirm()

    def share(self) -> None:
        """Others will emit, too: where the sink waits, none of them overtakes another."""
        if self._in_turn is None:
            self._in_turn = asyncio.Lock()

    def spend(self, usage: Usage) -> None:
        """Count tokens, for this run and those it is a part of."""
        for run in self.lineage():
            run.usage = run.usage + usage
            run.hooks.goes_on(usage=run.usage)

    def lineage(self) -> "Iterator[RunContext]":
        """This run and those in this process that it is a part of, innermost first."""
        run: RunContext | None = self
        while run is not None:
            yield run
            run = run.parent

    @property
    def budget_left(self) -> int | None:
        """Tokens that may still be used before a budget is spent; None where there is none."""
        budgets = ((run.settings.token_budget, run.usage.total_tokens) for run in self.lineage())
        return min((budget - used for budget, used in budgets if budget is not None), default=None)

    @property
    def is_subagent(self) -> bool:
        return bool(self.path)

    @property
    def all_model_calls(self) -> int:
        return self.model_calls + self.subagent_calls

    def close_relayed(self, why: str, call_ids: Iterable[str] | None = None) -> list[StreamEvent]:
        """An error output for every open call of a subagent, or for those of these ids."""
        ids = list(self.relayed) if call_ids is None else [i for i in call_ids if i in self.relayed]
        return [replace(self.relayed.pop(call_id), tool_output=why) for call_id in ids]

    @property
    def last_text(self) -> str | None:
        """The text of the last assistant message that has any."""
        for message in reversed(self.new_messages):
            if message.text and message.role == "assistant":
                return message.text
        return None


current_run: contextvars.ContextVar[RunContext] = contextvars.ContextVar("hayrunner_run")
"""The run of the current task: the loop is one object shared by all runs of an agent."""
