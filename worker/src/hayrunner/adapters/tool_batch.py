"""The tools of one step: run, in call order where it shows, and reported after all have settled.

Haystack's own executor bounds concurrency per agent, streams results as batches end, and puts a
tool's exception and arguments into logs and results. The pieces of it that know how tools and
`State` fit together are used; running and reporting are done here.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haystack import tracing
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool
from haystack.tools.errors import ToolInvocationError

from hayrunner.adapters import haystack_internals as internals
from hayrunner.adapters.normalize import INVALID_ARGUMENTS
from hayrunner.errors import HayrunnerError, ToolError

__all__ = ["ToolBatch", "invalid_call_feedback"]

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ToolBatch:
    """The calls of one step that are to be run.

    `concurrency` is how many run at once. Calls that read `State` run after those of the same
    step that write it, whatever their order.
    """

    calls: list[ToolCall]
    tools: Mapping[str, Tool]
    state: State
    concurrency: int
    raise_on_failure: bool = False

    async def run(self) -> list[ChatMessage]:
        """One tool message per call, in call order. A tool's failure is a message, too."""
        calls = self.calls
        tools = [self.tools[call.tool_name] for call in calls]
        results: list[ChatMessage | None] = [None] * len(calls)
        slots = asyncio.Semaphore(self.concurrency)
        parent = tracing.tracer.current_span()
        for group in internals.schedule_tool_calls(calls, tools):
            outcomes = await self._gather(
                [self._invoke(calls[i], tools[i], slots, parent) for i in group]
            )
            for i, outcome in zip(group, outcomes, strict=True):
                results[i] = self._message(calls[i], tools[i], outcome)
        return [message for message in results if message is not None]

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

    async def _invoke(
        self, call: ToolCall, tool: Tool, slots: asyncio.Semaphore, parent: Any
    ) -> Any:
        async with slots:
            arguments = internals.prepare_tool_args(
                tool=tool, tool_call_arguments=call.arguments, state=self.state
            )
            with internals.create_tool_span(tool, call, parent) as span:
                span.set_content_tag("haystack.agent.step.tool.input", call.arguments)
                try:
                    result = await tool.invoke_async(**arguments)
                except ToolInvocationError as error:
                    span.set_tag("haystack.tool.error", True)
                    return self._failed(call, error)
                span.set_content_tag("haystack.agent.step.tool.output", result)
                return result

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
        internals.merge_tool_outputs(tool, outcome, self.state)
        return internals.build_tool_message(
            outcome, call, tool, raise_on_failure=self.raise_on_failure
        )


@dataclass(frozen=True)
class _Failure:
    text: str


def invalid_call_feedback(call: ToolCall, tools: Mapping[str, Tool]) -> str | None:
    """What the model is told of a call that cannot be run; None where it can."""
    if (call.extra or {}).get(INVALID_ARGUMENTS) is not None:
        return (
            "This call was not run: its arguments are not a JSON object. "
            "Call the tool again with arguments that are one."
        )
    if call.tool_name not in tools:
        known = ", ".join(sorted(tools)) or "none"
        return f"This call was not run: there is no tool of that name. The tools are: {known}."
    return None
