"""Runs that hooks, forms and people steer, that go from worker to worker, or are no runs at all."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.sweep.playing import Options, ended, everything, prompt, ran, run, submitted
from tests.sweep.sentinels import mark
from tests.sweep.stage import Stage

from hayrunner_contracts.errors import RunError, StructuredOutputFailed
from hayrunner_contracts.events import MessageStart, TextChunk, ToolApprovalRequest
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.runs import Run

SCHEMA_OF: dict[str, Any] = {
    "type": "object",
    "properties": {"total": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["total"],
}


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
    given: dict[str, Any] = {**options, "response_format": _schema(number)}
    for agent in ("support", "by_openai", "by_anthropic"):
        assert await stage.client.run(agent, prompt("form", number), **given)


@run
async def structured_fails(stage: Stage, number: int, options: Options) -> None:
    more: dict[str, Any] = {"response_format": _schema(number)}
    with pytest.raises(StructuredOutputFailed):
        await stage.client.run("support", prompt("bad_form", number), **options, **more)


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
    headers = {"Order": mark("RequestHeader", number)}
    await stage.nc.jetstream().publish("agents.default.support.requests", broken, headers=headers)
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
    await ran(stage, "nested", "break_nested", number, options)
    await ran(stage, "piped", "refuse", number, options, "provider_error")


@run
async def own_adapter(stage: Stage, number: int, options: Options) -> None:
    assert await stage.client.run("own_adapter", mark("Prompt", number), **options)
    failed = f"own_fails {mark('Prompt', number)}"
    with pytest.raises(RunError):
        await stage.client.run("own_adapter", failed, **options)
    coded = f"own_code {mark('Prompt', number)}"
    with pytest.raises(RunError):
        await stage.client.run("own_adapter", coded, **options)
    with pytest.raises(RunError):
        await stage.client.ask("own_adapter", coded, **options)
