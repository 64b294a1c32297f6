"""The runs of the sweep, by name. Each is given a stage, its number and the options that say
whether its content is kept, and asserts that it ended as it should: what was not reached leaks
nothing.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from tests.sweep.model import instruction
from tests.sweep.sentinels import mark
from tests.sweep.stage import Stage

from hayrunner_contracts.errors import RunError
from hayrunner_contracts.events import MessageStart, TextChunk, ToolApprovalRequest
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.messages import ChatMessage, ContentPart, FilePart, ImagePart
from hayrunner_contracts.runs import Run

__all__ = ["RUNS", "RunPlay", "play"]

Options = Mapping[str, Any]
RunPlay = Callable[[Stage, int, Options], Awaitable[None]]
RUNS: dict[str, RunPlay] = {}

SCHEMA_OF: dict[str, Any] = {
    "type": "object",
    "properties": {"total": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["total"],
}


async def play(
    stage: Stage, names: Iterable[str], options: Options, *, at_once: int = 8
) -> dict[int, str]:
    """These runs, several at a time; each has a number of its own, which are the result."""
    slots = asyncio.Semaphore(at_once)
    numbered = {stage.number(): name for name in names}

    async def one(number: int, name: str) -> None:
        async with slots:
            try:
                await RUNS[name](stage, number, options)
            except Exception as error:
                error.add_note(f"in the run {name}")
                raise

    playing = (one(number, name) for number, name in numbered.items())
    failures = [e for e in await asyncio.gather(*playing, return_exceptions=True) if e]
    if failures:
        raise BaseExceptionGroup("runs that did not go as they should", failures)
    return numbered


def run(function: RunPlay) -> RunPlay:
    RUNS[function.__name__] = function
    return function


def prompt(script: str, number: int) -> str:
    return f"{instruction(script, number)} {mark('Prompt', number)}"


def everything(number: int, options: Options) -> dict[str, Any]:
    """All that a request can say beside its prompt."""
    return {
        "user": mark("User", number),
        "metadata": {"order": mark("Metadata", number)},
        "preamble": f"Be brief. {mark('Preamble', number)}",
        "history": [
            ChatMessage.user(mark("History", number), name=mark("AuthorName", number)),
            ChatMessage.assistant(mark("History", number)),
        ],
        "documents": [
            {
                "id": "a",
                "content": mark("Document", number),
                "meta": {"k": mark("DocumentMeta", number)},
            }
        ],
        "tool_context": {"tenant": mark("ToolContext", number), "run": number},
        "merge_params": {"metadata": {"who": mark("Parameter", number)}},
        "include_messages": True,
        **options,
    }


async def submitted(stage: Stage, agent: str, text: Any, options: Options, **more: Any) -> Run:
    return await stage.client.submit(agent, text, **{**options, **more})


async def ended(run: Run, code: str | None = None) -> None:
    """Wait for the end; `code` is the error's, None for a completed run."""
    result = await run.result(timeout=30)
    found = None if result.error is None else result.error.code
    assert found == code, (found, code, result.answer)


async def ran(
    stage: Stage,
    agent: str,
    script: str,
    number: int,
    options: Options,
    code: str | None = None,
    **more: Any,
) -> None:
    await ended(await submitted(stage, agent, prompt(script, number), options, **more), code)


# --- how a run may be asked for


@run
async def success(stage: Stage, number: int, options: Options) -> None:
    """Streamed, with everything, on a thread that has something in it already."""
    thread = {"thread_id": f"t-{number}-{len(options)}"}
    seed = f"{instruction('talk', number)} {mark('Memory', number)}"
    assert await stage.client.run("support", seed, **options, **thread)
    given = {**everything(number, options), **thread, "memory": True}
    del given["history"]
    await ran(stage, "support", "look", number, given)


@run
async def thread(stage: Stage, number: int, options: Options) -> None:
    """A thread with a title, whose answer is rated."""
    thread_id, threads = mark("ThreadId", number), stage.client.threads
    await threads.create(thread_id, title=mark("ThreadTitle", number))
    text = prompt("talk", number)
    run = await submitted(stage, "support", text, options, thread_id=thread_id)
    await ended(run)
    comment = mark("RatingComment", number)
    await threads.rate(thread_id, run.message_id, "up", comment=comment)
    assert await threads.list()


@run
async def with_history(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "look", number, everything(number, options))


@run
async def headless(stage: Stage, number: int, options: Options) -> None:
    given = everything(number, options)
    assert await stage.client.run("support", prompt("look", number), tools=True, **given)
    assert await stage.client.run("support", prompt("talk", number), **given)


@run
async def direct(stage: Stage, number: int, options: Options) -> None:
    given = everything(number, options)
    answer = await stage.client.ask("support", prompt("look", number), tools=True, **given)
    assert answer.status == "completed"
    told = stage.client.ask_stream("support", prompt("look", number), **given)
    assert [event async for event in told if isinstance(event, TextChunk)]


@run
async def another_model(stage: Stage, number: int, options: Options) -> None:
    given = {**options, "merge_params": {"model": mark("AskedModel", number)}}
    await ran(stage, "support", "look", number, given)


@run
async def attachments(stage: Stage, number: int, options: Options) -> None:
    """An image and a file, which are named and never copied."""
    data = base64.b64encode(mark("FileData", number).encode() * 9).decode()
    parts = [
        ContentPart(text=prompt("talk", number)),
        ContentPart(image=ImagePart(base64_image=data, mime_type="image/png", validation=False)),
    ]
    message = ChatMessage(role="user", content=parts, meta={"seen": mark("MessageMeta", number)})
    file = FilePart(
        base64_data=data,
        mime_type="application/pdf",
        filename=f"{mark('FileName', number)}.pdf",
        extra={"of": mark("MessageMeta", number)},
        validation=False,
    )
    earlier = ChatMessage(role="user", content=[ContentPart(text="this"), ContentPart(file=file)])
    await ended(await submitted(stage, "support", [earlier, message], options))


@run
async def large(stage: Stage, number: int, options: Options) -> None:
    """Too large for a message: by way of the object store."""
    text = f"{'x' * 1_200_000} {prompt('talk', number)}"
    await ended(await submitted(stage, "support", text, options))
    with suppress(RunError):
        await stage.client.ask("support", text * 20, **options)


# --- what a model and its tools may do


@run
async def tool_error(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "break_tool", number, options)


@run
async def unknown_tool(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "unknown_tool", number, options)


@run
async def invalid_arguments(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "bad_arguments", number, options)


@run
async def odd_names(stage: Stage, number: int, options: Options) -> None:
    for agent in ("support", "by_openai"):
        await ran(stage, agent, "odd_names", number, options)


@run
async def sources(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "sources", number, options)


@run
async def state(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "stateful", "state", number, options)


@run
async def suggestions(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "suggesting", "suggest", number, options)


@run
async def subagent_here(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "parent", "ask_near", number, options)


@run
async def subagent_elsewhere(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "parent", "ask_far", number, options)
    await ran(stage, "parent", "ask_far_broken", number, options)


@run
async def an_agent_in_a_tool(stage: Stage, number: int, options: Options) -> None:
    """Which wants to keep what the run around it may not."""
    await ran(stage, "careful", "consult", number, options)


@run
async def careful_parent(stage: Stage, number: int, options: Options) -> None:
    """Its subagents want to keep what it does not."""
    await ran(stage, "careful", "ask_near", number, options)
    await ran(stage, "careful", "ask_far", number, options)


# --- what a provider may do


@run
async def provider_4xx(stage: Stage, number: int, options: Options) -> None:
    given = everything(number, options)
    for agent in ("by_openai", "by_responses", "by_anthropic"):
        await ran(stage, agent, "refuse", number, given | {"merge_params": None}, "provider_error")


@run
async def provider_4xx_here(stage: Stage, number: int, options: Options) -> None:
    given = everything(number, options)
    await ran(stage, "support", "refuse", number, given, "provider_error")


@run
async def provider_5xx(stage: Stage, number: int, options: Options) -> None:
    for agent in ("support", "by_openai", "by_responses", "by_anthropic"):
        await ran(stage, agent, "fail", number, options, "provider_error")


@run
async def provider_429(stage: Stage, number: int, options: Options) -> None:
    for agent in ("support", "by_openai", "by_anthropic"):
        await ran(stage, agent, "limit", number, options, "provider_rate_limited")


@run
async def provider_aborts(stage: Stage, number: int, options: Options) -> None:
    for agent in ("support", "by_openai", "by_anthropic", "piped"):
        await ran(stage, agent, "abort", number, options, "provider_error")
    await ran(stage, "support", "garble", number, options, "provider_error")


@run
async def retried(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "recover", number, options)


@run
async def other_generators(stage: Stage, number: int, options: Options) -> None:
    for agent in ("by_openai", "by_responses", "by_anthropic"):
        await ran(stage, agent, "look", number, options)
        await ran(stage, agent, "break_tool", number, options)


# --- limits and ends


@run
async def max_turns(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "again", number, options, "max_turns", max_turns=2)


@run
async def budget(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "again", number, options, "budget_exceeded", token_budget=20)


@run
async def cancel(stage: Stage, number: int, options: Options) -> None:
    run = await submitted(stage, "support", prompt("hang", number), options)
    async for event in run.events():
        if isinstance(event, TextChunk):
            await run.cancel(mark("CancelReason", number))
    await ended(run, "cancelled")


@run
async def deadline(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "hang", number, options, "deadline_exceeded", timeout_s=0.5)


# --- hooks


def _hooked(number: int, options: Options, what: str) -> dict[str, Any]:
    return {**options, "tool_context": {"hook": what, "run": number}}


@run
async def hook_stops(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "look", number, _hooked(number, options, "stop"), "stopped")


@run
async def hook_raises(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "look", number, _hooked(number, options, "raise"), "internal")


@run
async def hook_skips(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "look", number, _hooked(number, options, "skip"))


@run
async def reply_rejected(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "look", number, _hooked(number, options, "retry"))


# --- forms


def _schema(number: int) -> dict[str, Any]:
    return {**SCHEMA_OF, "description": mark("Schema", number)}


@run
async def structured(stage: Stage, number: int, options: Options) -> None:
    given = {**options, "response_format": _schema(number)}
    for agent in ("support", "by_openai", "by_anthropic"):
        assert await stage.client.run(agent, prompt("form", number), **given)


@run
async def structured_fails(stage: Stage, number: int, options: Options) -> None:
    more: dict[str, Any] = {"response_format": _schema(number)}
    result = None
    try:
        result = await stage.client.run("support", prompt("bad_form", number), **options, **more)
    except RunError as error:
        assert error.code == "structured_output"
    assert result is None


@run
async def then_form(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "support", "then_form", number, options, then_format=_schema(number))


# --- people


async def _decided(
    stage: Stage, number: int, options: Options, decide: Callable[[Run, str], Awaitable[None]]
) -> None:
    run = await submitted(stage, "support", prompt("delete", number), options)
    async for event in run.events():
        if isinstance(event, ToolApprovalRequest):
            await decide(run, event.tool_call_id)
    await ended(run)


@run
async def approved(stage: Stage, number: int, options: Options) -> None:
    async def decide(run: Run, call: str) -> None:
        await run.approve("call_9", feedback=mark("LateFeedback", number))
        await run.approve(call, feedback=mark("ApproveFeedback", number))

    await _decided(stage, number, options, decide)


@run
async def denied(stage: Stage, number: int, options: Options) -> None:
    async def decide(run: Run, call: str) -> None:
        await run.deny(call, feedback=mark("DenyFeedback", number))

    await _decided(stage, number, options, decide)


@run
async def modified(stage: Stage, number: int, options: Options) -> None:
    async def decide(run: Run, call: str) -> None:
        await run.modify(call, {"wrong": mark("WrongInput", number)})
        await run.modify(call, {"word": mark("ModifiedInput", number)})

    await _decided(stage, number, options, decide)


@run
async def said(stage: Stage, number: int, options: Options) -> None:
    run = await submitted(stage, "support", prompt("look", number), options)
    async for event in run.events():
        if isinstance(event, MessageStart):
            await run.say(mark("Said", number))
    await ended(run)


@run
async def parked(stage: Stage, number: int, options: Options) -> None:
    """Nobody decides until the run has given up its slot; then another attempt goes on."""
    run = await submitted(stage, "support", prompt("delete", number), options)
    async for event in run.events():
        if isinstance(event, ToolApprovalRequest):
            await stage.parked(run.message_id)
            await run.approve(event.tool_call_id, feedback=mark("ApproveFeedback", number))
    await ended(run)


# --- deliveries


@run
async def handed_over(stage: Stage, number: int, options: Options) -> None:
    """Cut in its second model call, and gone on with from its checkpoint elsewhere."""
    given = everything(number, options)
    async with stage.moving() as move:
        run = await submitted(stage, "moving", prompt("move", number), given)
        await move(number)
    await ended(run)


@run
async def bad_requests(stage: Stage, number: int, options: Options) -> None:
    for body in (
        {"prompt": mark("Prompt", number), mark("UnknownField", number): 1},
        {"prompt": {"no": mark("Prompt", number)}},
        {"prompt": "x", "options": {"hooks": [mark("HookName", number)]}},
        {"prompt": "x", "deadline": mark("Deadline", number)},
        {"prompt": "x", "options": {"tool_choice": {"name": mark("ToolChoice", number)}}},
        {"prompt": "x", "options": {"max_turns": mark("OptionValue", number)}},
    ):
        message_id = new_message_id()
        data = json.dumps({"message_id": message_id, **body}).encode()
        await stage.nc.jetstream().publish("agents.default.support.requests", data)
        result = await stage.client.result(message_id, timeout=20)
        assert result.error is not None
        assert result.error.code in ("invalid_request", "unsupported_option"), result.error
    broken = f'{{"prompt": "{mark("Prompt", number)}'.encode()
    await stage.nc.jetstream().publish("agents.default.support.requests", broken)
    await stage.nc.request("agents.default.support.ask", broken, timeout=10)


@run
async def unknown_agent(stage: Stage, number: int, options: Options) -> None:
    for agent in (mark("AgentName", number), f"{mark('AgentText', number)}!"):
        message_id = new_message_id()
        data = json.dumps({"message_id": message_id, "prompt": prompt("talk", number)}).encode()
        await stage.nc.jetstream().publish(f"agents.default.{agent}.requests", data)
        result = await stage.client.result(message_id, timeout=20)
        assert result.error is not None
        assert result.error.code == "unknown_agent"


@run
async def bad_commands(stage: Stage, number: int, options: Options) -> None:
    run = await submitted(stage, "support", prompt("hang", number), options)
    subject = f"runs.default.{run.message_id}.commands"
    async for event in run.events():
        if isinstance(event, TextChunk):
            await stage.nc.publish(subject, f'{{"type":"{mark("Command", number)}"}}'.encode())
            await stage.nc.publish(subject, mark("Command", number).encode())
            await run.cancel()
    await ended(run, "cancelled")


# --- other adapters


@run
async def pipeline(stage: Stage, number: int, options: Options) -> None:
    await ran(stage, "piped", "talk", number, options)
    await ran(stage, "nested", "look", number, options)
    await ran(stage, "nested", "break_tool", number, options)
    await ran(stage, "piped", "refuse", number, options, "provider_error")


@run
async def own_adapter(stage: Stage, number: int, options: Options) -> None:
    assert await stage.client.run("own_adapter", mark("Prompt", number), **options)
    failed = f"own_fails {mark('Prompt', number)}"
    try:
        await stage.client.run("own_adapter", failed, **options)
    except RunError as error:
        assert error.code == "internal"
    else:
        raise AssertionError("it did not fail")
