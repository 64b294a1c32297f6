"""What a run does between its first event and its last: the loop, and the form of its answer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from haystack.dataclasses import ChatMessage
from haystack.tools import Tool, Toolset

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.loop import LoopAgent
from hayrunner.adapters.parameters import run_generator
from hayrunner.adapters.structured import ResponseFormat, format_parameter
from hayrunner.errors import StructuredOutputError

__all__ = ["RunBody", "loop_body"]

RunBody = Callable[[RunContext], Awaitable[Any]]


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
        # Before a copy of the generator is made: it is to share the client.
        await agent.warm_up_async()
        run.generator = run_generator(agent.chat_generator, run.settings)
        if response_format is not None:
            run.generation_kwargs |= format_parameter(agent.chat_generator, response_format)
        await agent.run_async(messages=list(messages), tools=_run_tools(tools))
        if response_format is None or run.finish_reason == "stopped":
            return _last_text(run)
        return await _structured(agent, messages, run, response_format)

    return body


def _run_tools(tools: Sequence[Tool | Toolset] | Toolset | None) -> Any:
    if tools is None or isinstance(tools, Toolset):
        return tools
    # Haystack takes an empty list for a list of names, and refuses it where it knows no tools.
    return list(tools) or Toolset([])


def _last_text(run: RunContext) -> str | None:
    return run.new_messages[-1].text if run.new_messages else None


async def _structured(
    agent: LoopAgent,
    messages: Sequence[ChatMessage],
    run: RunContext,
    wanted: ResponseFormat,
) -> Any:
    value, fault = wanted.parse(_last_text(run))
    if fault is not None:
        # One repair turn: the model sees its reply and what is wrong with it, and no tools.
        feedback = ChatMessage.from_user(f"{fault}\nReply again, with nothing but the JSON.")
        run.new_messages.append(feedback)
        history = [*messages, *run.new_messages]
        await agent.run_async(messages=history, tools=Toolset([]))
        value, fault = wanted.parse(_last_text(run))
    if fault is not None:
        raise StructuredOutputError(
            "the reply does not satisfy response_format, after one repair turn",
            raw=_last_text(run) or "",
        )
    return value
