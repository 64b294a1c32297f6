"""One model call of a run: chunks out as they come, the reply repaired afterwards."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from haystack import tracing
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import Tool

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.normalize import usage_from
from hayrunner.adapters.parameters import tool_choice_parameter
from hayrunner.errors import HayrunnerError, MaxTurnsReached, ProviderError

__all__ = ["call_model"]


async def call_model(
    run: RunContext, generator: Any, messages: list[ChatMessage], tools: list[Tool]
) -> ChatMessage:
    """The assistant message of the next model call, whose events have been emitted.

    Raises `MaxTurnsReached` before a call beyond the limit, `ProviderError` where the call
    failed, whatever exception the provider's package uses for that.
    """
    if run.model_calls >= run.settings.max_turns:
        raise MaxTurnsReached(run.settings.max_turns, messages=run.new_messages)
    run.model_calls += 1
    normalizer = run.normalizer
    normalizer.begin_step(call.id for m in messages for call in m.tool_calls if call.id)
    inputs = _inputs(run, generator, messages, tools)
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
    await run.emit(events)
    if usage := reply.meta.get("usage"):
        run.usage = run.usage + usage_from(usage)
    return reply


def _inputs(
    run: RunContext, generator: Any, messages: list[ChatMessage], tools: list[Tool]
) -> dict[str, Any]:
    parameters = inspect.signature(generator.run).parameters
    inputs: dict[str, Any] = {"messages": messages}
    if "streaming_callback" in parameters:
        inputs["streaming_callback"] = _callback(run, generator)
    kwargs = dict(run.generation_kwargs)
    if tools:
        inputs["tools"] = tools
        choice = run.settings.tool_choice
        if choice is not None:
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
        failure = _provider_failure(error)
        if failure is None:
            raise
        raise failure from error


def _callback(run: RunContext, generator: Any) -> Callable[[StreamingChunk], Any]:
    feed, emit = run.normalizer.feed, run.sink.emit

    # A closure and a coroutine function: Haystack deep-copies bound methods and callable objects
    # on their way through a pipeline, and their chunks are lost.
    async def on_chunk(chunk: StreamingChunk) -> None:
        for event in feed(chunk):
            await emit(event)

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
        await on_chunk(chunk)

    def on_chunk_in_thread(chunk: StreamingChunk) -> None:
        if task is None or task.done() or task.cancelling():
            raise RuntimeError("the run this generator streams for has ended")
        asyncio.run_coroutine_threadsafe(deliver(chunk), loop).result()

    return on_chunk_in_thread


def _provider_failure(error: Exception) -> ProviderError | None:
    """The provider error that an exception of a provider's package stands for."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    for link in chain:
        status = getattr(link, "status_code", None) or getattr(link, "status", None)
        if isinstance(status, int):
            return _from_status(status)
        module = type(link).__module__.partition(".")[0]
        if module in ("httpx", "httpcore", "httpx2", "aiohttp", "openai", "anthropic", "ollama"):
            return ProviderError(f"the model's server could not be used ({type(link).__name__})")
    return None


def _from_status(status: int) -> ProviderError:
    if status == 429:
        return ProviderError(
            "the model's server asked to slow down (HTTP 429)",
            code="provider_rate_limited",
            status=status,
        )
    retryable = status in (408, 409) or status >= 500
    return ProviderError(
        f"the model's server answered HTTP {status}", status=status, retryable=retryable
    )
