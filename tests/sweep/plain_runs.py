"""Runs by how they are asked for, and by what models, tools and providers do."""

import base64
from typing import Any

import pytest
from tests.sweep.model import instruction
from tests.sweep.playing import Options, ended, everything, prompt, ran, run, submitted
from tests.sweep.sentinels import mark
from tests.sweep.stage import Stage

from hayrunner_contracts.errors import PayloadTooLarge
from hayrunner_contracts.events import TextChunk
from hayrunner_contracts.messages import ChatMessage, ContentPart, FilePart, ImagePart

# --- how a run may be asked for

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@run
async def success(stage: Stage, number: int, options: Options) -> None:
    """Streamed, with everything, on a thread that has something in it already."""
    thread: dict[str, Any] = {"thread_id": f"t-{number}-{len(options)}"}
    seed = f"{instruction('talk', number)} {mark('Memory', number)}"
    assert await stage.client.run("support", seed, **options, **thread)
    given: dict[str, Any] = {**everything(number, options), **thread, "memory": True}
    del given["history"]
    await ran(stage, "support", "look", number, given)


@run
async def thread(stage: Stage, number: int, options: Options) -> None:
    """A thread with a title, whose answer is rated."""
    thread_id, threads = mark("ThreadId", number), stage.client.threads
    await threads.create(thread_id, title=mark("ThreadTitle", number))
    text = prompt("talk", number)
    headers = {"traceparent": PARENT, "tracestate": f"shop={mark('TraceState', number)}"}
    more = {"thread_id": thread_id, "headers": headers}
    run = await submitted(stage, "support", text, options, **more)
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
    given: dict[str, Any] = {**options, "merge_params": {"model": mark("AskedModel", number)}}
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
    result = await stage.client.ask("support", text, **options)
    assert result.status == "completed"
    with pytest.raises(PayloadTooLarge):
        await submitted(stage, "support", text * 2, options)


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
    await ran(stage, "support", "odd_names", number, options)
    await ran(stage, "odd", "talk", number, options)
    await ran(stage, "odd_loop", "talk", number, options)
    coded = f"own_code {mark('Prompt', number)}"
    await ended(await submitted(stage, "odd_loop", coded, options), "internal")


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
