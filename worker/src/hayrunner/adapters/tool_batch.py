"""The tools of one step: run, in call order where it shows, and reported after all have settled.

Haystack's own executor bounds concurrency per agent, streams results as batches end, and puts a
tool's exception and arguments into logs and results. The pieces of it that know how tools and
`State` fit together are used; running and reporting are done here.
"""

import asyncio
import contextvars
import copy
import functools
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from haystack import tracing
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, Document, ToolCall
from haystack.tools import Tool
from haystack.tools.errors import ToolInvocationError

from hayrunner.adapters import haystack_internals as internals
from hayrunner.adapters.admission import Refused, admit, ask_hooks
from hayrunner.adapters.citations import documents_in
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import to_wire_parts
from hayrunner.errors import HayrunnerError, HookStopped, RunStopped, ToolError
from hayrunner.hooks import ToolResult
from hayrunner.tool_context import ToolCallInfo, set_tool_call
from hayrunner_contracts.events import Data

__all__ = ["ToolBatch"]

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ToolBatch:
    """The calls of one step that are to be run.

    `settings.tool_concurrency` of them run at once, started in call order. Calls that read
    `State` run after those of the same step that write it, whatever their order. Where a call may
    need an approval, none runs before all that are needed are decided.

    After `run`: `executed` has the call as it was really run, by id; `stopped` is what ended the
    run, a hook or an approval that did not come: calls that had not started by then were dropped,
    running ones drained.
    """

    run_context: RunContext
    calls: list[ToolCall]
    tools: Mapping[str, Tool]
    state: State
    raise_on_failure: bool = False
    executed: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    stopped: RunStopped | None = None

    async def run(self) -> list[ChatMessage | None]:
        """One tool message per call, in call order; None for a call that was dropped. A tool's
        failure is a message, too."""
        calls = self.calls
        tools = [self.tools[call.tool_name] for call in calls]
        results: list[ChatMessage | None] = [None] * len(calls)
        try:
            admitted = await admit(self.run_context, calls, self.tools) or [None] * len(calls)
        except RunStopped as stop:
            self.stopped = stop
            return results
        slots = asyncio.Semaphore(self.run_context.settings.tool_concurrency)
        parent = tracing.tracer.current_span()
        for group in internals.schedule_tool_calls(calls, tools):
            outcomes = await self._gather(
                [self._turn(calls[i], admitted[i], tools[i], slots, parent) for i in group]
            )
            for i, outcome in zip(group, outcomes, strict=True):
                if outcome is not None:
                    results[i], result = outcome
                    if not isinstance(result, _Failure):
                        internals.merge_tool_outputs(tools[i], result, self.state)
        return results

    @staticmethod
    async def _gather(work: list[Any]) -> list[Any]:
        """All outcomes in order. If this is cancelled, or one raises, the others are cancelled
        and waited for, so that no tool outlives its run."""
        tasks = [asyncio.ensure_future(item) for item in work]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _turn(
        self,
        call: ToolCall,
        admitted: ToolCall | Refused | None,
        tool: Tool,
        slots: asyncio.Semaphore,
        parent: Any,
    ) -> tuple[ChatMessage, Any] | None:
        async with slots:
            if self.stopped is not None:
                return None
            try:
                decided = admitted or await ask_hooks(self.run_context, call)
                if isinstance(decided, Refused):
                    failure = _Failure(decided.text)
                    return self._message(call, tool, failure), failure
                return await self._call(decided, tool, parent)
            except HookStopped as stop:
                # Those that run already go on to their end; those that wait are dropped.
                self.stopped = self.stopped or stop
                return None

    async def _call(self, call: ToolCall, tool: Tool, parent: Any) -> tuple[ChatMessage, Any]:
        self.executed[call.id or ""] = call
        result = await self._invoke(call, tool, parent)
        message = self._message(call, tool, result)
        if self.run_context.hooks.watches("on_tool_result"):
            message = await self._shown(call, message)
        return message, result

    async def _shown(self, call: ToolCall, message: ChatMessage) -> ChatMessage:
        """The message as the hooks want the model to see it."""
        told = message.tool_call_results[0]
        result = ToolResult(
            tool_call_id=call.id or "",
            tool_name=call.tool_name,
            tool_input=call.arguments,
            output=to_wire_parts(told.result),
            is_error=told.error,
        )
        shown = await self.run_context.hooks.tool_result(result)
        if shown is result:
            return message
        return ChatMessage.from_tool(
            tool_result=str(shown.output), origin=call, error=shown.is_error
        )

    async def _invoke(self, call: ToolCall, tool: Tool, parent: Any) -> Any:
        arguments = internals.prepare_tool_args(
            tool=tool, tool_call_arguments=call.arguments, state=self.state
        )
        with internals.create_tool_span(tool, call, parent) as span:
            span.set_content_tag("haystack.agent.step.tool.input", call.arguments)
            set_tool_call(self._info(call))
            try:
                result = await self._await_tool(tool, arguments)
            except ToolInvocationError as error:
                span.set_tag("haystack.tool.error", True)
                return self._failed(call, error)
            span.set_content_tag("haystack.agent.step.tool.output", result)
            return result

    async def _await_tool(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        own = type(tool).invoke_async is not Tool.invoke_async
        if own or tool.async_function is not None or self.run_context.executor is None:
            return await tool.invoke_async(**arguments)
        # Not the loop's own threads: a tool that blocks would hold up name lookups with it.
        context = contextvars.copy_context()
        call = functools.partial(context.run, functools.partial(tool.invoke, **arguments))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.run_context.executor, call)

    def _info(self, call: ToolCall) -> ToolCallInfo:
        run = self.run_context

        async def publish(event: Data) -> None:
            await run.emit([event])

        return ToolCallInfo(
            message_id=run.message_id,
            agent=run.agent,
            thread_id=run.thread_id,
            user=run.user,
            step=run.normalizer.step,
            tool_call_id=call.id or "",
            tool_name=call.tool_name,
            tool_context=copy.deepcopy(run.settings.tool_context),
            publish=publish,
            loop=asyncio.get_running_loop(),
        )

    def _failed(self, call: ToolCall, error: ToolInvocationError) -> "_Failure":
        # The exception's text holds the arguments, and whatever the tool put into it: it goes
        # neither to the log nor to the model, unless the tool meant it for the model.
        cause = error.__cause__
        if isinstance(cause, ToolError):
            return _Failure(str(cause))
        ref = uuid.uuid4().hex[:12]
        logger.warning(
            "tool %s failed with %s (ref %s)", call.tool_name, type(cause or error).__name__, ref
        )
        if self.raise_on_failure:
            raise HayrunnerError(f"the tool {call.tool_name} failed (ref {ref})")
        return _Failure(f"The tool {call.tool_name} failed (ref {ref}).")

    def _message(self, call: ToolCall, tool: Tool, outcome: Any) -> ChatMessage:
        if isinstance(outcome, _Failure):
            return ChatMessage.from_tool(tool_result=outcome.text, origin=call, error=True)
        if documents := documents_in(outcome):
            return self._cited(documents, outcome, call, tool)
        return internals.build_tool_message(
            outcome, call, tool, raise_on_failure=self.raise_on_failure
        )

    def _cited(
        self, documents: list[Document], outcome: Any, call: ToolCall, tool: Tool
    ) -> ChatMessage:
        try:
            return self.run_context.citations.message(documents, outcome, call, tool)
        # Policy: an author's formatter may raise anything, and its text may hold content.
        except Exception as error:
            ref = uuid.uuid4().hex[:12]
            logger.warning("formatting sources failed: %s (ref %s)", type(error).__name__, ref)
            text = f"The tool {call.tool_name} failed (ref {ref})."
            return ChatMessage.from_tool(tool_result=text, origin=call, error=True)


@dataclass(frozen=True)
class _Failure:
    text: str
