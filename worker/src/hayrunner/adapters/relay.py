"""A subagent's events on their way into the run that called it: its tool activity, tagged."""

from msgspec.structs import replace

from hayrunner.adapters.citation_tags import renumbered
from hayrunner.adapters.citations import CitedDocument
from hayrunner.adapters.context import REPLY_REJECTED, RunContext
from hayrunner_contracts.events import (
    Data,
    RunResumed,
    Source,
    StreamEvent,
    ToolApprovalRequest,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
    UnknownEvent,
)

__all__ = ["Relay", "RemoteRelay"]

_CallEvent = (
    ToolCallStart | ToolInputComplete | ToolApprovalRequest | ToolExecutionCommitted | ToolOutput
)


class Relay:
    """The sink of a subagent's run in this process.

    Passed on are its tool calls, from their start to their output, the sources they found and
    the data they emitted, under the step of the call that asked the subagent. Its text,
    reasoning, arguments as they are written, and model calls are not.
    """

    def __init__(self, parent: RunContext, agent: str) -> None:
        self._parent = parent
        self._agent = agent
        self._step = parent.normalizer.step
        parent.share()

    async def emit(self, event: StreamEvent) -> None:
        if isinstance(event, _CallEvent):
            await self._pass_on(event)
        elif isinstance(event, Source) or (
            # A subagent's text is not shown, so it need not be taken back.
            isinstance(event, Data) and event.data_type != REPLY_REJECTED
        ):
            await self._parent.emit([replace(event, step=self._step)])

    async def _pass_on(self, event: _CallEvent) -> None:
        # The agent that is there already is a subagent's own subagent.
        told = replace(event, agent=event.agent or self._agent, step=self._step)
        open_calls = self._parent.relayed
        if isinstance(told, ToolCallStart):
            open_calls[told.tool_call_id] = ToolOutput(
                tool_call_id=told.tool_call_id,
                tool_output="",
                is_error=True,
                agent=told.agent,
                step=told.step,
            )
        elif isinstance(told, ToolOutput):
            open_calls.pop(told.tool_call_id, None)
        await self._parent.emit([told])


class RemoteRelay(Relay):
    """The same for a run somewhere else, whose ids and source numbers are its own: both are
    replaced by ones of the parent's run. What an interrupted attempt left open is closed."""

    def __init__(self, parent: RunContext, agent: str) -> None:
        super().__init__(parent, agent)
        self._ids: dict[str, str] = {}
        self._numbers: dict[int, int] = {}

    async def take(self, event: StreamEvent | UnknownEvent) -> None:
        """Pass an event on that came over the bus."""
        if isinstance(event, RunResumed):
            await self.close("This call has no result: the subagent's worker was lost.")
            self._ids.clear()
            self._numbers.clear()
        elif isinstance(event, Source):
            await self._take_source(event)
        elif isinstance(event, ToolCallStart):
            self._ids[event.tool_call_id] = self._parent.normalizer.unique_id(event.tool_call_id)
            await self.emit(replace(event, tool_call_id=self._ids[event.tool_call_id]))
        elif isinstance(event, ToolApprovalRequest):
            # A decision goes to the run that asks, and its consumers do not know that one.
            return
        elif isinstance(event, _CallEvent):
            # One whose start was not seen cannot be shown.
            if (known := self._ids.get(event.tool_call_id)) is not None:
                await self.emit(replace(event, tool_call_id=known))
        elif isinstance(event, StreamEvent):
            await self.emit(event)

    async def _take_source(self, event: Source) -> None:
        citations = self._parent.citations
        numbered = citations.registry.add(
            CitedDocument(
                index=event.index,
                title=event.title,
                content=event.content,
                url=event.url,
                source_id=event.source_id,
                media_type=event.media_type,
            )
        )
        self._numbers[event.index] = numbered.index
        call_id = self._ids.get(event.tool_call_id or "")
        if told := citations.tell(numbered, call_id, step=self._step):
            await self.emit(told)

    def cited(self, text: str) -> str:
        """The subagent's answer, with the source numbers that the parent's run has."""
        return renumbered(text, self._numbers)

    async def close(self, why: str) -> None:
        """Give every call that is open an error output."""
        await self._parent.emit(self._parent.close_relayed(why, list(self._ids.values())))
