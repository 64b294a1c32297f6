"""What a run does between its first event and its last: the loop, and the form of its answer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from haystack.dataclasses import ChatMessage
from haystack.tools import Tool, Toolset, flatten_tools_or_toolsets
from pydantic import BaseModel

from hayrunner.adapters.context import REPLY_REJECTED, RunContext
from hayrunner.adapters.format_requests import format_request
from hayrunner.adapters.loop import LoopAgent
from hayrunner.adapters.model_call import check_limits
from hayrunner.adapters.parameters import run_generator
from hayrunner.adapters.settings import LOOPLESS_OPTIONS, refuse_options
from hayrunner.adapters.spans import note_conversation
from hayrunner.adapters.structured import ResponseFormat
from hayrunner.errors import StructuredOutputError
from hayrunner_contracts.events import Data

__all__ = ["RunBody", "foreign_body", "loop_body"]

RunBody = Callable[[RunContext], Awaitable[Any]]

_GIVE_THE_FORM = (
    "Now put the outcome of the above into the required form, with nothing but the JSON."
)
_REPLY_AGAIN = "Reply again, with nothing but the JSON."


def loop_body(
    agent: LoopAgent,
    messages: Sequence[ChatMessage],
    *,
    tools: Sequence[Tool | Toolset] | Toolset | None,
    response_format: ResponseFormat | None = None,
) -> RunBody:
    """The one assembly of the loop, streaming or headless. `tools` None means the agent's own,
    an empty sequence none.

    The answer is the last message's text, or the value that satisfies `response_format`.
    """

    async def body(run: RunContext) -> Any:
        note_conversation(run, messages)
        # Before a copy of the generator is made: it is to share the client.
        await agent.warm_up_async()
        run.generator = run_generator(agent.chat_generator, run.settings)
        run.in_loop = True
        if response_format is not None:
            form = _Form(agent, list(messages), run, response_format)
            return await form.answer(_run_tools(tools))
        await agent.run_async(messages=list(messages), tools=_run_tools(tools))
        return _last_text(run)

    return body


def foreign_body(
    adapter: Any, messages: list[ChatMessage], prompt: str | None, form: ResponseFormat | None
) -> RunBody:
    """An author's own adapter is called as it is: its answer is the run's."""

    async def body(run: RunContext) -> Any:
        refuse_options(
            run.settings, LOOPLESS_OPTIONS, "the agent's own run adapter decides that itself"
        )
        given = messages if prompt is None else [ChatMessage.from_system(prompt), *messages]
        note_conversation(run, given)
        wanted = None if form is None else form.model or form.schema
        answer = await adapter.run(messages, system_prompt=prompt, response_format=wanted)
        run.finish_reason = "stop"
        value = answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer
        text = value if isinstance(value, str) else None
        run.new_messages.append(ChatMessage.from_assistant(text or ""))
        return value

    return body


def _run_tools(tools: Sequence[Tool | Toolset] | Toolset | None) -> Any:
    if tools is None or isinstance(tools, Toolset):
        return tools
    # Haystack takes an empty list for a list of names, and refuses it where it knows no tools.
    return list(tools) or Toolset([])


def _last_text(run: RunContext) -> str | None:
    return run.new_messages[-1].text if run.new_messages else None


class _Form:
    """A run whose answer has a form."""

    def __init__(
        self,
        agent: LoopAgent,
        messages: list[ChatMessage],
        run: RunContext,
        wanted: ResponseFormat,
    ) -> None:
        self._agent = agent
        self._messages = messages
        self._run = run
        self._wanted = wanted
        # Before any model call: a generator that cannot be asked for a format is refused here.
        self._request = format_request(run.generator, wanted)

    async def answer(self, tools: Any) -> Any:
        """The value that satisfies the format. The text there is, where a hook stops the run.

        Raises `StructuredOutputError` where the reply is wrong after one repair turn.
        """
        run = self._run
        asked = not self._wanted.after_tools and not (self._request.alone and self._has(tools))
        if asked:
            self._request.apply(run)
        await self._agent.run_async(messages=self._messages, tools=tools)
        if run.finish_reason == "stopped":
            return _last_text(run)
        outcome_only = self._wanted.after_tools
        value, fault = (None, "") if outcome_only else self._wanted.parse(_last_text(run))
        if fault is not None and (not asked or run.finish_reason == "tool"):
            self._request.apply(run)
            value, fault = await self._again(_GIVE_THE_FORM, rejects=not outcome_only)
        if fault is not None:
            value, fault = await self._again(f"{fault}\n{_REPLY_AGAIN}", rejects=True)
        if fault is not None:
            raise StructuredOutputError(
                "the reply does not satisfy the format, after one repair turn",
                raw=_last_text(run) or "",
            )
        return value

    async def _again(self, feedback: str, *, rejects: bool) -> tuple[Any, str | None]:
        """One more turn, without tools: its value, and what is wrong with it."""
        run = self._run
        # Before anything is said: a run that may not go on ends with the reply it has.
        check_limits(run)
        if rejects and _last_text(run):
            # For consumers, who have seen the text: what that step counts is not the answer.
            await run.emit([Data(data_type=REPLY_REJECTED, data={"step": run.normalizer.step})])
        run.new_messages.append(ChatMessage.from_user(feedback))
        # A turn that is no part of the loop: it is made again where its worker dies.
        run.in_loop = False
        history = [*self._messages, *run.new_messages]
        await self._agent.run_async(messages=history, tools=Toolset([]))
        if run.finish_reason == "stopped":
            return _last_text(run), None
        return self._wanted.parse(_last_text(run))

    def _has(self, tools: Any) -> bool:
        """Whether the loop has tools: `tools`, or the agent's own where it is None."""
        return bool(flatten_tools_or_toolsets(self._agent.tools if tools is None else tools))
