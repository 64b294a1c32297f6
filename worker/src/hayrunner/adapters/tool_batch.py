"""The tools of one step: run, in call order where it shows, and reported after all have settled.

Haystack's own executor bounds concurrency per agent, streams results as batches end, and puts a
tool's exception and arguments into logs and results. The pieces of it that know how tools and
`State` fit together are used; running and reporting are done here.
"""

import asyncio
import contextlib
import contextvars
import functools
import logging
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from haystack import tracing
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, Document, ToolCall
from haystack.tools import Tool
from haystack.tools.errors import ToolInvocationError

from hayrunner.adapters import haystack_internals as internals
from hayrunner.adapters.admission import Refused, admit, ask_hooks
from hayrunner.adapters.cancellation import is_cancelled, raise_if_cancelled
from hayrunner.adapters.citations import documents_in
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import to_wire_parts
from hayrunner.adapters.plain_values import copied
from hayrunner.adapters.spans import (
    note_tool_end,
    tool_call_not_run,
    tool_call_span,
    tool_span,
)
from hayrunner.errors import HayrunnerError, HookFailed, HookStopped, RunStopped, ToolError
from hayrunner.hooks import ToolResult
from hayrunner.tool_context import ToolCallInfo, reset_tool_call, set_tool_call
from hayrunner_contracts.events import Data

__all__ = ["ToolBatch"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


_WITHHELD = "The result of this call is withheld: the run was stopped."


@dataclass(frozen=True)
class _Failure:
    text: str


_Outcome: TypeAlias = tuple[ChatMessage, Any]
"""What the model is told, and what the tool gave back: a `_Failure` where there is nothing."""


@dataclass(kw_only=True)
class ToolBatch:
    """The calls of one step that are to be run.

    `settings.tool_concurrency` of them run at once, started in call order. Calls that read
    `State` run after those of the same step that write it, whatever their order. Where a call may
    need an approval, none runs before all that are needed are decided.

    After `run`: `executed` has the calls whose tools were begun, as they were run, by id; also
    where `run` raised. `stopped` is what ended the run: a hook, by its answer or by failing, or an
    approval that did not come. Calls whose tools had not begun by then were dropped, running ones
    drained.
    """

    run_context: RunContext
    calls: list[ToolCall]
    tools: Mapping[str, Tool]
    state: State
    raise_on_failure: bool = False
    executed: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    stopped: RunStopped | HookFailed | None = None

    async def run(self) -> list[ChatMessage | None]:
        """One tool message per call, in call order; None for a call that was dropped. A tool's
        failure is a message, too."""
        calls = self.calls
        tools = [self.tools[call.tool_name] for call in calls]
        results: list[ChatMessage | None] = [None] * len(calls)
        try:
            admitted = await admit(self.run_context, calls, self.tools) or [None] * len(calls)
        except (RunStopped, HookFailed) as stop:
            self.stopped = stop
            return results
        at_once = self.run_context.settings.tool_concurrency
        # Without a bound to keep, a slot is one more thing to wait for.
        slots = asyncio.Semaphore(at_once) if at_once < len(calls) else contextlib.nullcontext()
        parent = tracing.tracer.current_span()
        groups = [list(range(len(calls)))]
        if any(map(internals.uses_state, tools)):
            groups = internals.schedule_tool_calls(calls, tools)
        for group in groups:
            turns = [self._turn(calls[i], admitted[i], tools[i], slots, parent) for i in group]
            outcomes = await _settled(turns)
            for i, outcome in zip(group, outcomes, strict=True):
                if outcome is not None:
                    results[i], result = outcome
                    if not isinstance(result, _Failure):
                        internals.merge_tool_outputs(tools[i], result, self.state)
        return results

    async def _turn(
        self,
        call: ToolCall,
        admitted: ToolCall | Refused | None,
        tool: Tool,
        slots: AbstractAsyncContextManager[None],
        parent: Any,
    ) -> _Outcome | None:
        async with slots:
            if self.stopped is not None:
                return None
            try:
                decided = admitted or await ask_hooks(self.run_context, call)
            except (HookStopped, HookFailed) as stop:
                self.stopped = self.stopped or stop
                return None
            # A sibling may have stopped the run while this one's hooks were asked.
            if self.stopped is not None:
                return None
            if isinstance(decided, Refused):
                tool_call_not_run(call, self.tools, decided.text, refused=True)
                failure = _Failure(decided.text)
                return self._message(call, tool, failure), failure
            return await self._call(decided, tool, parent)

    async def _call(self, call: ToolCall, tool: Tool, parent: Any) -> _Outcome:
        await self.run_context.confirm()
        self.executed[call.id or ""] = call
        with tool_call_span(call, self.tools) as traced:
            result = await self._invoke(call, tool, parent)
            message = self._message(call, tool, result)
            note_tool_end(traced, message, failed=isinstance(result, _Failure))
        if not self.run_context.hooks.watches("on_tool_result"):
            return message, result
        try:
            return await self._shown(call, message), result
        except (HookStopped, HookFailed) as stop:
            # The tool was run, so it is not said to have been dropped; but a hook that stops the
            # run over a result does not want it seen.
            self.stopped = self.stopped or stop
            withheld = _Failure(_WITHHELD)
            return self._message(call, tool, withheld), withheld

    async def _shown(self, call: ToolCall, message: ChatMessage) -> ChatMessage:
        """The message as the hooks want the model to see it."""
        told = message.tool_call_results[0]
        result = ToolResult(
            tool_call_id=call.id or "",
            tool_name=call.tool_name,
            tool_input=copied(call.arguments),
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
        # A copy: what a tool does to its arguments changes nothing of what is told of the call.
        arguments: dict[str, Any] = copied(call.arguments)
        if internals.uses_state(tool):
            arguments = internals.prepare_tool_args(
                tool=tool, tool_call_arguments=arguments, state=self.state
            )
        with tool_span(tool, call, parent) as span:
            span.set_content_tag("haystack.agent.step.tool.input", call.arguments)
            token = set_tool_call(self._info(call))
            try:
                result = await self._await_tool(tool, arguments)
            except ToolInvocationError as error:
                span.set_tag("haystack.tool.error", True)
                return self._failed(call, error.__cause__ or error)
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                # Nobody cancelled this call: the tool waited for something that was cancelled.
                span.set_tag("haystack.tool.error", True)
                return self._failed(call, error)
            finally:
                reset_tool_call(token)
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
            if not run.ended:
                await run.emit([event])

        return ToolCallInfo(
            message_id=run.message_id,
            agent=run.agent,
            thread_id=run.thread_id,
            user=run.user,
            step=run.normalizer.step,
            tool_call_id=call.id or "",
            tool_name=call.tool_name,
            tool_context=copied(run.settings.tool_context),
            publish=publish,
            loop=asyncio.get_running_loop(),
        )

    def _failed(self, call: ToolCall, cause: BaseException) -> _Failure:
        # The exception's text holds the arguments, and whatever the tool put into it: it goes
        # neither to the log nor to the model, unless the tool meant it for the model.
        if isinstance(cause, ToolError):
            return _Failure(str(cause))
        ref = uuid.uuid4().hex[:12]
        logger.warning("tool %s failed with %s (ref %s)", call.tool_name, type(cause).__name__, ref)
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


async def _settled(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All outcomes in order, or the first exception. If this is cancelled, or one raises, the
    others are cancelled, once, and waited for, so that no tool outlives its run."""
    if len(work) == 1:
        # A task costs as much as the rest of a call.
        outcome = await work[0]
        raise_if_cancelled()
        return [outcome]
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        ended = [task for task in tasks if task.done() and not task.cancelled()]
        failures = [error for task in ended if (error := task.exception()) is not None]
    if failures:
        raise failures[0]
    return [task.result() for task in tasks]
