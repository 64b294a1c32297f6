"""The agent loop: Haystack's Agent with the step made ours.

Haystack keeps its part: prompts, state, hooks, tool selection, toolsets, spans. One private
method is overridden, `_run_step_async`, because what happens inside a step is what this project
promises things about: which model calls are made, which tool calls are run, in which order
events appear, and that an empty or malformed reply never makes it loop. haystack-ai is held to
one minor version for it; tests/unit/agent/test_haystack_internals.py fails when it changes.
"""

import contextlib
import copy
import operator
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

from haystack.components.agents import Agent as HaystackAgent
from haystack.components.agents.state import State, replace_values
from haystack.dataclasses import ChatMessage, ChatRole, ToolCall
from haystack.tools import Tool, flatten_tools_or_toolsets

from hayrunner.adapters import haystack_internals as internals
from hayrunner.adapters.call_checks import CheckedCalls, with_calls
from hayrunner.adapters.context import REPLY_REJECTED, RunContext, current_run
from hayrunner.adapters.convert import to_wire_parts
from hayrunner.adapters.interjections import goes_on_for_what_was_said, take_in
from hayrunner.adapters.kept_steps import keep_called, keep_settled, take_found
from hayrunner.adapters.model_call import ModelReply, call_model, with_preamble
from hayrunner.adapters.parameters import check_tool_choice
from hayrunner.adapters.spans import NO_SPAN, foreign_tracing, note_calls_not_run, span
from hayrunner.adapters.tool_batch import ToolBatch
from hayrunner.errors import ConfigurationError
from hayrunner.hooks import ModelResponse
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import Data, StreamEvent, ToolExecutionCommitted, ToolOutput

__all__ = ["LoopAgent", "loop_agent"]

# The loop counts model calls per run; Haystack's own limit, per agent, must not come first.
_NO_LIMIT = 2**31 - 1
_DROPPED = "This call was not run: the run was stopped first."
_LENGTH, _FILTER, _TEXT = "length", "content_filter", "text"


def loop_agent(agent: HaystackAgent) -> "LoopAgent":
    """An agent configured like `agent`, sharing its generator, tools and hooks, whose steps are
    this module's. An author's subclass keeps its other overrides. `ConfigurationError` for an
    agent whose prompts have mandatory variables."""
    if isinstance(agent, LoopAgent):
        return agent
    missing = [name for name in internals.mandatory_inputs(agent) if name != "messages"]
    if missing:
        raise ConfigurationError(
            f"the Haystack Agent's prompts need values that no run gives: {', '.join(missing)}"
        )
    base = type(agent)
    cls = (
        LoopAgent
        if base is HaystackAgent
        else cast("type[LoopAgent]", type(f"Loop{base.__name__}", (LoopAgent, base), {}))
    )
    # A copy, and not a new object: a subclass may be constructed in a way of its own.
    loop = cast("LoopAgent", copy.copy(agent))
    loop.__class__ = cls
    loop.own_max_turns = agent.max_agent_steps
    loop.max_agent_steps = _NO_LIMIT
    loop.streaming_callback = None
    internals.keep_templates(loop)
    return loop


class LoopAgent(HaystackAgent):
    """Haystack's Agent, driven by the run in `current_run`. `own_max_turns` is the limit that its
    author set."""

    own_max_turns: int = _NO_LIMIT

    def _initialize_fresh_execution(self, *args: Any, **kwargs: Any) -> Any:
        context = super()._initialize_fresh_execution(*args, **kwargs)
        run = current_run.get()
        messages: list[ChatMessage] = context.state.data["messages"]
        if all(message.is_from(ChatRole.SYSTEM) for message in messages):
            raise InvalidRequest("there is no message to answer", field="messages")
        rest = with_preamble(messages, run.settings.preamble)
        if rest is not messages:
            context.state.set("messages", rest, handler_override=replace_values)
        if run.model_calls == 0:  # a repair turn of structured output has no tools
            tools = flatten_tools_or_toolsets(context.tools)
            check_tool_choice(run.settings.tool_choice, [tool.name for tool in tools])
        return context

    def _create_agent_span(self, tools: Any) -> Any:
        # Its tags hold every tool's schema, made anew for each run.
        return super()._create_agent_span(tools) if foreign_tracing() else NO_SPAN

    async def continue_after_exit(self, exe_context: Any) -> bool:
        """Run `on_exit` hooks: whether one of them keeps the run going."""
        return await self._continue_after_exit_hooks_async(exe_context=exe_context)

    def exit_tool(self, calls: list[ToolCall], messages: list[ChatMessage]) -> str | None:
        """The name of the tool whose success ends the run, if one does."""
        asked = [ChatMessage.from_assistant(tool_calls=calls)]
        return self._check_exit_conditions(llm_messages=asked, tool_messages=messages)

    async def _run_step_async(self, exe_context: Any, agent_span: Any) -> bool:
        run = current_run.get()
        tags = {"haystack.agent.step": exe_context.counter}
        with span("haystack.agent.step", tags=tags, parent=agent_span):
            return await _Step(self, exe_context, run).run()


class _Step:
    """One step: a model call, and the tools it asks for."""

    def __init__(self, agent: LoopAgent, exe_context: Any, run: RunContext) -> None:
        self.agent = agent
        self.exe = exe_context
        self.run_context = run
        self.state: State = exe_context.state

    async def run(self) -> bool:
        """Whether the loop goes on."""
        run = self.run_context
        found = take_found(run, self.state)
        if found is not None:
            self.exe.counter = self.state.data["step_count"]
            if found.phase == "exited":
                return await self._continue_after_exit() or await goes_on_for_what_was_said(run)
            if found.phase == "called":
                run.called = found.checkpoint
                answer = found.reply_of(self._current_tools())
                return await self._use_tools(answer) or await goes_on_for_what_was_said(run)
        await take_in(run, self.state)
        return await self._play() or await goes_on_for_what_was_said(run)

    async def _play(self) -> bool:
        tools = self._current_tools()
        await self._before_llm()
        if (reason := self.state.data.get("stop_run")) is not None:
            self.run_context.stop_reason = str(reason)
            return self._end(reason, "stopped")
        answer = await self._call_model(tools)
        reply = answer.message
        if await self._rejected(reply):
            return True
        if not reply.tool_calls:
            return await self._end_with_reply(reply)
        self.run_context.tool_choice_honoured = True
        await keep_called(self.run_context, self.state, answer)
        return await self._use_tools(answer)

    async def _use_tools(self, answer: ModelReply) -> bool:
        await self._hooks("before_tool")
        exit_tool = await self._run_tools(answer)
        self._count_step()
        if exit_tool is None:
            await keep_settled(self.run_context, self.state)
            return True
        self._end(exit_tool, "tool")
        await keep_settled(self.run_context, self.state, exited=True)
        return await self._continue_after_exit()

    def _current_tools(self) -> list[Tool]:
        # Flattened at every step: a dynamic toolset may have found tools in the one before.
        tools = flatten_tools_or_toolsets(self.exe.tools)
        internals.check_duplicate_tool_names(tools=tools)
        self.state.set("tools", tools, handler_override=replace_values)
        return tools

    async def _before_llm(self) -> None:
        if self.agent.hooks.get("before_llm"):
            with self._appended_to_history():
                await self._hooks("before_llm")

    async def _hooks(self, point: Any) -> None:
        await internals.run_hooks(hooks=self.agent.hooks, hook_point=point, state=self.state)

    async def _call_model(self, tools: list[Tool]) -> ModelReply:
        run = self.run_context
        generator = run.generator or self.agent.chat_generator
        answer = await call_model(run, generator, self.state.data["messages"], tools)
        reply = answer.message
        self.state.set("messages", [reply])
        internals.record_llm_usage(self.state, [reply])
        internals.record_context_tokens(self.state, [reply])
        return answer

    async def _end_with_reply(self, reply: ChatMessage) -> bool:
        """A reply without tool calls ends the run, an empty one too: asking again would loop."""
        self._count_step()
        reason = reply.meta.get("finish_reason")
        if reason in (_LENGTH, _FILTER):
            self._end(reason, reason)
        else:
            self._end(_TEXT, "stop")
        return await self._continue_after_exit()

    def _end(self, exit_reason: str, finish_reason: str) -> bool:
        self.state.set("exit_reason", exit_reason)
        self.run_context.finish_reason = finish_reason
        return False

    def _count_step(self) -> None:
        self.exe.counter += 1
        self.state.set("step_count", self.exe.counter)

    async def _continue_after_exit(self) -> bool:
        if not self.agent.hooks.get("on_exit"):
            return False
        with self._appended_to_history():
            return await self.agent.continue_after_exit(self.exe)

    @contextlib.contextmanager
    def _appended_to_history(self) -> Generator[None]:
        """Messages that hooks append to the conversation are part of the run's history, too. A
        hook that rewrites the conversation changes what the model sees, not what happened."""
        before = list(self.state.data["messages"])
        yield
        after = self.state.data["messages"]
        if len(after) > len(before) and all(map(operator.is_, before, after)):
            self.run_context.new_messages.extend(after[len(before) :])

    async def _rejected(self, reply: ChatMessage) -> bool:
        """Whether a hook wants another reply; the feedback is in history then."""
        run = self.run_context
        if not run.hooks.watches("on_model_response"):
            return False
        retry = await run.hooks.model_response(
            ModelResponse(
                message=run.to_wire([reply])[0],
                finish_reason=str(reply.meta.get("finish_reason")),
                usage=run.normalizer.usage,
            )
        )
        if retry is None:
            return False
        rejected = "This call was not run: the reply it is part of was rejected."
        answers = [
            ChatMessage.from_tool(tool_result=rejected, origin=call, error=True)
            for call in reply.tool_calls
        ]
        self.state.set("messages", answers)
        await self._report(reply.tool_calls, {})
        # For consumers, who have seen the text: what `step` counts is not the answer.
        told = Data(data_type=REPLY_REJECTED, data={"step": run.normalizer.step})
        await run.emit([told])
        feedback = ChatMessage.from_user(retry.feedback)
        run.new_messages.append(feedback)
        self.state.set("messages", [feedback])
        self._count_step()
        return True

    async def _run_tools(self, answer: ModelReply) -> str | None:
        """Run what `before_tool` hooks left of the reply's calls; the name of the tool that ends
        the run, if one does."""
        reply = answer.message
        tools = {tool.name: tool for tool in answer.tools}
        pending = _pending_calls(self.state)
        checked = CheckedCalls(self.run_context, tools, answer.tool_choice)
        await checked.check(pending)
        if checked.answers:
            note_calls_not_run(pending, checked.answers, tools)
        if checked.repaired:
            reply = self._mend(reply, checked.repaired)
        batch = ToolBatch(
            run_context=self.run_context,
            calls=checked.runnable,
            tools=tools,
            state=self.state,
            raise_on_failure=self.agent.raise_on_tool_invocation_failure,
        )
        try:
            messages = await self._answers(pending, checked, batch)
            self.state.set("messages", messages)
            internals.record_tool_calls(self.state, messages)
            await self._hooks("after_tool")
        except BaseException:
            # The run ends, and these tools were run: that much is told, with its last events.
            self.run_context.unsent.extend(self._committed(reply.tool_calls, batch.executed))
            raise
        await self._report(reply.tool_calls, batch.executed)
        if batch.stopped is not None:
            raise batch.stopped
        if self.agent.exit_conditions == ["text"] or not pending:
            return None
        return self.agent.exit_tool(pending, messages)

    @staticmethod
    async def _answers(
        pending: Sequence[ToolCall], checked: CheckedCalls, batch: ToolBatch
    ) -> list[ChatMessage]:
        """One tool message per call, in call order."""
        ran = await batch.run() if batch.calls else []
        by_call = {
            call.id: message or ChatMessage.from_tool(tool_result=_DROPPED, origin=call, error=True)
            for call, message in zip(batch.calls, ran, strict=True)
        }
        return [
            by_call[call.id]
            if call.id in by_call
            else ChatMessage.from_tool(
                tool_result=checked.answers[call.id], origin=call, error=True
            )
            for call in pending
        ]

    def _mend(self, reply: ChatMessage, repaired: Mapping[str | None, ToolCall]) -> ChatMessage:
        """History has the calls that were run: no provider is sent arguments it cannot read."""

        def mend(message: ChatMessage) -> ChatMessage:
            if not any(call.id in repaired for call in message.tool_calls):
                return message
            return with_calls(message, [repaired.get(c.id, c) for c in message.tool_calls])

        # Not the last one only: a hook may have made several messages of one.
        messages: list[ChatMessage] = self.state.data["messages"]
        self.state.set("messages", [mend(message) for message in messages], replace_values)
        mended = mend(reply)
        history = self.run_context.new_messages
        history[:] = [mended if message is reply else message for message in history]
        return mended

    async def _report(
        self, announced: Sequence[ToolCall], executed: Mapping[str, ToolCall]
    ) -> None:
        """Events and history of the step's calls, in call order, as the hooks left them."""
        run = self.run_context
        results = _results_by_call(self.state.data["messages"], {call.id for call in announced})
        events: list[StreamEvent] = []
        for record, call in zip(run.normalizer.calls, announced, strict=True):
            events.extend(self._committed([call], executed))
            message = results.get(call.id)
            record.answered = True
            events.append(_output(record.id, message, run.normalizer.step))
            events.extend(run.citations.sources_of(record.id, message, run.normalizer.step))
            run.new_messages.append(
                message or ChatMessage.from_tool(tool_result="", origin=call, error=False)
            )
        await run.emit(events)

    def _committed(
        self, announced: Sequence[ToolCall], executed: Mapping[str, ToolCall]
    ) -> list[ToolExecutionCommitted]:
        """One event for each call that was run, with the arguments really used."""
        return [
            ToolExecutionCommitted(
                tool_call_id=ran.id or "",
                tool_name=ran.tool_name,
                tool_input=ran.arguments,
                step=self.run_context.normalizer.step,
            )
            for call in announced
            if (ran := executed.get(call.id or "")) is not None
        ]


def _pending_calls(state: State) -> list[ToolCall]:
    return [
        call
        for message in internals.pending_tool_call_messages(state)
        for call in message.tool_calls
    ]


def _results_by_call(
    messages: Sequence[ChatMessage], wanted: set[str | None]
) -> dict[str | None, ChatMessage]:
    """The last message with a result for each of these calls. From the end: that is where a
    step's results are, of a conversation that may be long."""
    found: dict[str | None, ChatMessage] = {}
    for message in reversed(messages):
        if found.keys() == wanted:
            break
        for result in message.tool_call_results:
            if result.origin.id in wanted:
                found.setdefault(result.origin.id, message)
    return found


def _output(call_id: str, message: ChatMessage | None, step: int) -> ToolOutput:
    if message is None or message.tool_call_result is None:
        # A hook took the result out of the conversation: the consumer is not shown it, either.
        return ToolOutput(tool_call_id=call_id, tool_output="", step=step)
    result = message.tool_call_result
    return ToolOutput(
        tool_call_id=call_id,
        tool_output=to_wire_parts(result.result),
        is_error=result.error,
        step=step,
    )
