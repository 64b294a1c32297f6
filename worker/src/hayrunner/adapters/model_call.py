"""One model call of a run: chunks out as they come, the reply repaired afterwards."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from haystack.dataclasses import ChatMessage, ChatRole, StreamingChunk
from haystack.tools import Tool
from msgspec import UNSET, Struct, UnsetType

from hayrunner.adapters.answer_tool import AnswerTool
from hayrunner.adapters.cancellation import is_cancelled, put_off, raise_if_cancelled
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import with_text
from hayrunner.adapters.documents import with_documents
from hayrunner.adapters.hook_chain import MergedPatch
from hayrunner.adapters.metering import count_tokens, metered
from hayrunner.adapters.parameters import (
    answer_choice_parameter,
    check_tool_choice,
    patched_generator,
    tool_choice_parameter,
    usage_parameter,
)
from hayrunner.adapters.provider_failures import provider_failure
from hayrunner.adapters.retries import with_retries
from hayrunner.adapters.spans import model_span, note_reply, span
from hayrunner.errors import BudgetSpent, HayrunnerError, MaxTurnsReached
from hayrunner.generators.openai_compatible import ON_TEXT
from hayrunner.hooks import ModelCall
from hayrunner.telemetry.spans import noting_first
from hayrunner_contracts.events import StreamEvent, TextChunk, ToolCallStart, ToolInputChunk
from hayrunner_contracts.options import NamedTool, ToolChoice

__all__ = [
    "ModelReply",
    "call_model",
    "check_limits",
    "chunk_callback",
    "may_call_model",
    "stoppable",
    "with_preamble",
]

_T = TypeVar("_T")


class ModelReply(Struct, frozen=True, kw_only=True):
    """An assistant message, with the tools and the choice that this one call was made with:
    a hook may have taken tools away."""

    message: ChatMessage
    tools: list[Tool]
    tool_choice: ToolChoice | UnsetType | None


async def call_model(
    run: RunContext, generator: Any, messages: list[ChatMessage], tools: list[Tool]
) -> ModelReply:
    """The next model call, whose events have been emitted.

    Raises `MaxTurnsReached` before a call beyond the limit and `BudgetSpent` before one beyond
    the token budget, `ProviderError` where the call failed and was made again as often as the
    run's policy has it, whatever exception the provider's package uses for that, and
    `HookStopped` where a hook ends the run. Hooks are asked once, however often it is made.
    """
    raise_if_cancelled()
    check_limits(run)
    run.hooks.goes_on(step=run.model_calls + 1, usage=run.usage)
    prepared = await _prepare(run, generator, messages, tools)
    return await with_retries(
        run,
        lambda: _call(run, prepared, messages),
        lambda: may_call_model(run, uncounted=0 if run.normalizer.answered else 1),
    )


async def _call(run: RunContext, prepared: "_Prepared", messages: list[ChatMessage]) -> ModelReply:
    """The call, made once."""
    run.model_calls += 1
    run.hooks.goes_on(step=run.model_calls, usage=run.usage)
    normalizer = run.normalizer
    normalizer.begin_step(_new_ids(run, messages), prepared.answer_tool)
    with model_span(run, prepared.generator, prepared.inputs) as call:
        with span("haystack.agent.step.llm") as traced:
            traced.set_content_tag("haystack.agent.step.llm.input", prepared.inputs)
            result = await _generate(run, prepared.generator, prepared.inputs)
            raise_if_cancelled()
            traced.set_content_tag("haystack.agent.step.llm.output", result)
        replies: list[ChatMessage] = result.get("replies") or []
        shown = normalizer.partial_text
        reply, events = normalizer.close_step(replies[0] if replies else None)
        note_reply(call, run, reply)
    # Before anything is awaited: a run that is cancelled here has this message in its history.
    run.new_messages.append(reply)
    if normalizer.usage is not None:
        run.spend(normalizer.usage)
        count_tokens(run, prepared.generator, prepared.inputs)
    if run.hooks.watches_deltas:
        await _told_late(run, shown, events)
    else:
        await run.emit(events)
    return ModelReply(message=reply, tools=prepared.tools, tool_choice=prepared.tool_choice)


async def _told_late(run: RunContext, shown: str, events: list[StreamEvent]) -> None:
    """Emit what no chunk told: the text of a reply that was not streamed, an answer given by a
    tool. Hooks see it before consumers do, and what they refuse is not in history, either: of
    the message's text there is what was `shown` before."""
    refused: HayrunnerError | None = None
    for event in events:
        if isinstance(event, TextChunk) and refused is None:
            try:
                await run.hooks.delta(event)
            except HayrunnerError as error:
                refused = error
        if not (isinstance(event, TextChunk) and refused is not None):
            await run.emit([event])
    if refused is not None:
        reply = run.new_messages.pop()
        if shown or reply.tool_calls:
            run.new_messages.append(with_text(reply, shown or None))
        raise refused


def _new_ids(run: RunContext, messages: list[ChatMessage]) -> Iterator[str]:
    """The ids of calls in messages that no earlier step has looked at."""
    start = run.looked_at if run.looked_at <= len(messages) else 0
    run.looked_at = len(messages)
    return (call.id for m in messages[start:] for call in m.tool_calls if call.id)


def check_limits(run: RunContext, *, uncounted: int = 0) -> None:
    """Raise `MaxTurnsReached` or `BudgetSpent` where the run may make no further model call.
    `uncounted` of those it made do not count."""
    if run.model_calls - uncounted >= run.settings.max_turns:
        raise MaxTurnsReached(run.settings.max_turns, messages=run.new_messages)
    for spender in run.lineage():
        budget = spender.settings.token_budget
        if budget is not None and spender.usage.total_tokens >= budget:
            raise BudgetSpent(budget, messages=run.new_messages)


def may_call_model(run: RunContext, *, uncounted: int = 0) -> bool:
    """Whether the run's limits allow one more model call; `uncounted` as in `check_limits`."""
    try:
        check_limits(run, uncounted=uncounted)
    except (MaxTurnsReached, BudgetSpent):
        return False
    return True


class _Prepared(Struct, frozen=True, kw_only=True):
    """One call to a generator: its own, or a copy with this call's parameters."""

    generator: Any
    inputs: dict[str, Any]
    tools: list[Tool]
    tool_choice: ToolChoice | UnsetType | None
    answer_tool: AnswerTool | None


async def _prepare(
    run: RunContext, generator: Any, messages: list[ChatMessage], tools: list[Tool]
) -> _Prepared:
    """The call, with the run's documents and what hooks patch into it."""
    documents, choice = run.settings.documents, run.settings.tool_choice
    if run.settings.forces_a_tool and run.tool_choice_honoured:
        # Asking for a tool on every step would never let the model answer.
        choice = choice if run.settings.tool_choice_every_step else "auto"

    patch = await _asked_patch(run, messages, tools)
    if patch is not None:
        documents = [*documents, *patch.documents]
        messages = with_preamble(messages, patch.preamble)
        generator = patched_generator(generator, patch)
        if patch.active_tools is not None:
            tools = [tool for tool in tools if tool.name in patch.active_tools]
        if patch.tool_choice is not UNSET:
            choice = patch.tool_choice
        check_tool_choice(choice, [tool.name for tool in tools])
    offered, parameters, answer_tool = _tools_and_choice(run, generator, tools, choice)
    inputs = _inputs(run, generator, with_documents(messages, documents), offered)
    if parameters:
        inputs.setdefault("generation_kwargs", {}).update(parameters)
    return _Prepared(
        generator=generator,
        inputs=inputs,
        tools=tools,
        tool_choice=choice,
        answer_tool=answer_tool,
    )


def _tools_and_choice(
    run: RunContext, generator: Any, tools: list[Tool], choice: ToolChoice | UnsetType | None
) -> tuple[list[Tool], dict[str, Any], AnswerTool | None]:
    """The tools to offer, the parameter that says which to call, and the tool that is the answer,
    if the model is to answer by one."""
    parameters: dict[str, Any] = {}
    if tools and choice is not None and choice is not UNSET:
        parameters = tool_choice_parameter(generator, choice)
    answer = run.answer_tool
    if answer is None:
        return tools, parameters, None
    first = choice == "required" and not run.tool_choice_honoured
    if tools and (first or isinstance(choice, NamedTool)):
        # A tool of the agent's is what has to be called: no answer, yet.
        return tools, parameters, None
    if choice == "none":
        tools, parameters = [], {}
    answer = answer.beside(tool.name for tool in tools)
    parameters |= answer_choice_parameter(generator, answer.name, alone=not tools)
    return [*tools, answer.tool], parameters, answer


async def _asked_patch(
    run: RunContext, messages: list[ChatMessage], tools: list[Tool]
) -> MergedPatch | None:
    if not run.hooks.watches("on_model_call"):
        return None
    names = [tool.name for tool in tools]
    return await run.hooks.model_call(
        ModelCall(messages=tuple(run.to_wire(messages)), tool_names=tuple(names))
    )


def with_preamble(
    messages: list[ChatMessage], preamble: str | UnsetType | None
) -> list[ChatMessage]:
    """`messages` with another system prompt: absent keeps it, None removes it."""
    if preamble is UNSET:
        return messages
    rest = list(messages)
    while rest and rest[0].is_from(ChatRole.SYSTEM):
        del rest[0]
    return rest if preamble is None else [ChatMessage.from_system(preamble), *rest]


def _inputs(
    run: RunContext, generator: Any, messages: list[ChatMessage], tools: list[Tool]
) -> dict[str, Any]:
    inputs: dict[str, Any] = {"messages": messages}
    if _streams(type(generator)):
        inputs["streaming_callback"] = chunk_callback(run, generator)
    if tools:
        inputs["tools"] = tools
    if kwargs := usage_parameter(generator) | run.generation_kwargs:
        inputs["generation_kwargs"] = kwargs
    return inputs


@lru_cache(maxsize=64)
def _streams(kind: type[Any]) -> bool:
    return "streaming_callback" in inspect.signature(kind.run).parameters


@metered
async def _generate(run: RunContext, generator: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    try:
        if not callable(getattr(generator, "run_async", None)):
            return await asyncio.to_thread(generator.run, **inputs)
        if not run.hooks.watches_deltas:
            return await generator.run_async(**inputs)
        return await stoppable(run, generator.run_async(**inputs)) or {}
    except HayrunnerError:
        raise
    except (TypeError, ValueError):
        # Haystack's joiner fails on arguments that are JSON but no object, after the whole stream
        # was delivered: the chunks say what the reply would have.
        if run.normalizer.finished:
            return {"replies": []}
        raise
    except Exception as error:
        if run.delta_error is not None:
            # A generator wraps what its callback raises.
            raise run.delta_error from None
        # Policy: whatever a provider's package raises ends the run as a provider error, unless
        # it is a mistake of ours or of the author. Its text may hold content and is not kept.
        failure = provider_failure(error, of_generator=True)
        if failure is None:
            raise
        raise failure from error


async def stoppable(run: RunContext, work: Awaitable[_T]) -> _T | None:
    """`work`, which a hook can end in the middle of its stream. A generator that is cancelled
    closes its connection; one whose callback raises may leak it. So the callback notes the error
    and cancels this task, which finds out where it waits for its next chunk."""
    run.streaming = task = asyncio.current_task()
    outcome: _T | None = None
    try:
        outcome = await work
    except (asyncio.CancelledError, Exception):
        # Policy: with an error noted, this is what the cancel was turned into on its way.
        if run.delta_error is None:
            raise
    finally:
        run.streaming = None
    if run.delta_error is None or task is None:
        return outcome
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # takes the cancel where the stream was over before it could
    if task.uncancel():
        raise asyncio.CancelledError  # somebody else's, too
    raise run.delta_error


def chunk_callback(
    run: RunContext, generator: Any, *, of_many: bool = False
) -> Callable[[StreamingChunk], Any]:
    """What a generator, or another streaming component, is to call with its chunks. `of_many`: it
    may be called for several model calls, and finds out for itself which chunk is the first."""
    feed, add_text, emit = run.normalizer.feed, run.normalizer.add_text, run.emit
    if of_many:
        feed, add_text = noting_first(feed), noting_first(add_text)
    if run.hooks.watches_deltas:
        emit = _watched_emit(run)

    # A closure and a coroutine function: Haystack deep-copies bound methods and callable objects
    # on their way through a pipeline, and their chunks are lost.
    async def on_chunk(chunk: StreamingChunk) -> None:
        if run.first_chunk_at is None:
            run.first_chunk_at = time.perf_counter()
        if run.delta_error is not None or is_cancelled():
            return
        try:
            await emit(feed(chunk))
        except asyncio.CancelledError:
            # Some clients keep their connection where a callback raises, and close it where they
            # are cancelled while they read: that is what they do next.
            put_off()

    if not callable(getattr(generator, "run_async", None)):
        return _from_thread(run, on_chunk)
    if (straight := run.straight_emit()) is not None:
        setattr(on_chunk, ON_TEXT, _text_callback(run, add_text, straight))
    return on_chunk


def _text_callback(
    run: RunContext,
    add_text: Callable[[str], StreamEvent | None],
    straight: Callable[[StreamEvent], Awaitable[None]],
) -> Callable[[str], Awaitable[None]]:
    """What the own generator calls with text alone, which is most of what there is."""

    async def on_text(text: str) -> None:
        if run.first_chunk_at is None:
            run.first_chunk_at = time.perf_counter()
        if (event := add_text(text)) is not None:
            await straight(event)

    return on_text


def _watched_emit(run: RunContext) -> Callable[[list[StreamEvent]], Awaitable[None]]:
    names: dict[str, str] = {}

    async def emit(events: list[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, ToolCallStart):
                names[event.tool_call_id] = event.tool_name
            tool_name = ""
            if isinstance(event, ToolInputChunk):
                tool_name = names.get(event.tool_call_id, "")
            try:
                await run.hooks.delta(event, tool_name)
            except HayrunnerError as error:
                run.normalizer.take_back(event)
                run.delta_error = error
                if run.streaming is None:
                    raise
                run.streaming.cancel()
                return
            await run.emit([event])

    return emit


def _from_thread(
    run: RunContext, on_chunk: Callable[[StreamingChunk], Awaitable[None]]
) -> Callable[[StreamingChunk], None]:
    """For generators without async: they run in a thread, which waits for each chunk to be taken.

    When the run is over, the callback raises in that thread: the only way to end it.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    async def deliver(chunk: StreamingChunk) -> None:
        # Asked on the loop: between here and the feeding, nothing else can end the run.
        over = task is None or task.done() or task.cancelling() or run.delta_error is not None
        if over:
            raise RuntimeError("the run this generator streams for has ended")
        await on_chunk(chunk)

    def on_chunk_in_thread(chunk: StreamingChunk) -> None:
        asyncio.run_coroutine_threadsafe(deliver(chunk), loop).result()

    return on_chunk_in_thread
