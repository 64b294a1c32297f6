"""What one run owns while it goes on."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from haystack.dataclasses import ChatMessage

from hayrunner.adapters.answer_tool import AnswerTool
from hayrunner.adapters.hook_chain import HookChain
from hayrunner.adapters.normalize import ChunkNormalizer
from hayrunner.adapters.outcome import EventSink
from hayrunner.adapters.settings import RunSettings
from hayrunner.approvals import ApprovalRules
from hayrunner.errors import HayrunnerError
from hayrunner.run_inbox import RunInbox
from hayrunner.storage.base import ThreadTurn
from hayrunner_contracts.events import StreamEvent, Usage

__all__ = ["DiscardEvents", "RunContext", "current_run"]


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
    `inbox` has what people send to the run, None where nobody can; `notes` are what the model is
    to be told before its next call.
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
    invalid_retries_used: int = 0
    tool_choice_honoured: bool = False
    new_messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
    finish_reason: str | None = None
    stop_reason: str | None = None
    streaming: asyncio.Task[Any] | None = None
    delta_error: HayrunnerError | None = None
    unsent: deque[StreamEvent] = field(default_factory=deque[StreamEvent])

    async def emit(self, events: Iterable[StreamEvent]) -> None:
        """Give events to the sink, in order; waits where the sink does.

        If the wait is cancelled, what was not given stays and goes first the next time: events
        that the normalizer counts as told are never lost.
        """
        unsent = self.unsent
        unsent.extend(events)
        while unsent:
            await self.sink.emit(unsent.popleft())

    @property
    def last_text(self) -> str | None:
        """The text of the last assistant message that has any."""
        for message in reversed(self.new_messages):
            if message.text and message.role == "assistant":
                return message.text
        return None


current_run: contextvars.ContextVar[RunContext] = contextvars.ContextVar("hayrunner_run")
"""The run of the current task: the loop is one object shared by all runs of an agent."""
