"""One model call of a run: chunks out as they come, the reply repaired afterwards."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from haystack import tracing
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import Tool
from msgspec import UNSET

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.normalize import usage_from
from hayrunner.adapters.parameters import tool_choice_parameter, usage_parameter
from hayrunner.adapters.provider_failures import provider_failure
from hayrunner.errors import HayrunnerError, MaxTurnsReached

__all__ = ["call_model", "chunk_callback"]


async def call_model(
    run: RunContext, generator: Any, messages: list[ChatMessage], tools: list[Tool]
) -> ChatMessage:
    """The assistant message of the next model call, whose events have been emitted.

    Raises `MaxTurnsReached` before a call beyond the limit, `ProviderError` where the call
    failed, whatever exception the provider's package uses for that.
    """
    if run.model_calls >= run.settings.max_turns:
        raise MaxTurnsReached(run.settings.max_turns, messages=run.new_messages)
    inputs = _inputs(run, generator, messages, tools)
    run.model_calls += 1
    normalizer = run.normalizer
    normalizer.begin_step(call.id for m in messages for call in m.tool_calls if call.id)
    with tracing.tracer.trace(
        "haystack.agent.step.llm", parent_span=tracing.tracer.current_span()
    ) as span:
        span.set_content_tag("haystack.agent.step.llm.input", inputs)
        result = await _generate(run, generator, inputs)
        span.set_content_tag("haystack.agent.step.llm.output", result)
    replies: list[ChatMessage] = result.get("replies") or []
    reply, events = normalizer.close_step(replies[0] if replies else None)
    # Before anything is awaited: a run that is cancelled here has this message in its history.
    run.new_messages.append(reply)
    if usage := reply.meta.get("usage"):
        run.usage = run.usage + usage_from(usage)
    await run.emit(events)
    return reply


def _inputs(
    run: RunContext, generator: Any, messages: list[ChatMessage], tools: list[Tool]
) -> dict[str, Any]:
    parameters = inspect.signature(generator.run).parameters
    inputs: dict[str, Any] = {"messages": messages}
    if "streaming_callback" in parameters:
        inputs["streaming_callback"] = chunk_callback(run, generator)
    kwargs = usage_parameter(generator) | run.generation_kwargs
    if tools:
        inputs["tools"] = tools
        choice = run.settings.tool_choice
        if choice is not None and choice is not UNSET:
            # Asking for a tool on every step would never let the model answer.
            if run.tool_choice_honoured and run.settings.forces_a_tool:
                choice = "auto"
            kwargs.update(tool_choice_parameter(generator, choice))
    if kwargs:
        inputs["generation_kwargs"] = kwargs
    return inputs


async def _generate(run: RunContext, generator: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    try:
        if callable(getattr(generator, "run_async", None)):
            return await generator.run_async(**inputs)
        return await asyncio.to_thread(generator.run, **inputs)
    except HayrunnerError:
        raise
    except (TypeError, ValueError):
        # Haystack's joiner fails on arguments that are JSON but no object, after the whole stream
        # was delivered: the chunks say what the reply would have.
        if run.normalizer.finished:
            return {"replies": []}
        raise
    except Exception as error:
        # Policy: whatever a provider's package raises ends the run as a provider error, unless
        # it is a mistake of ours or of the author. Its text may hold content and is not kept.
        failure = provider_failure(error)
        if failure is None:
            raise
        raise failure from error


def chunk_callback(run: RunContext, generator: Any) -> Callable[[StreamingChunk], Any]:
    """What a generator, or another streaming component, is to call with its chunks."""
    feed, emit = run.normalizer.feed, run.emit

    # A closure and a coroutine function: Haystack deep-copies bound methods and callable objects
    # on their way through a pipeline, and their chunks are lost.
    async def on_chunk(chunk: StreamingChunk) -> None:
        await emit(feed(chunk))

    if callable(getattr(generator, "run_async", None)):
        return on_chunk
    return _from_thread(on_chunk)


def _from_thread(
    on_chunk: Callable[[StreamingChunk], Awaitable[None]],
) -> Callable[[StreamingChunk], None]:
    """For generators without async: they run in a thread, which waits for each chunk to be taken.

    When the run is over, the callback raises in that thread: the only way to end it.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    async def deliver(chunk: StreamingChunk) -> None:
        # Asked on the loop: between here and the feeding, nothing else can end the run.
        if task is None or task.done() or task.cancelling():
            raise RuntimeError("the run this generator streams for has ended")
        await on_chunk(chunk)

    def on_chunk_in_thread(chunk: StreamingChunk) -> None:
        asyncio.run_coroutine_threadsafe(deliver(chunk), loop).result()

    return on_chunk_in_thread
