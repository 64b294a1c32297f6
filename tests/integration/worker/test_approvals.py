"""Decisions and messages that come over NATS, for the agent loop as it is."""

import asyncio
import time
from contextlib import aclosing
from typing import Any

import pytest
from nats.aio.client import Client
from tests.integration.worker.conftest import ServeFiles
from tests.unit.agent.files import Files, deletes
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import encode
from hayrunner_contracts.commands import Say
from hayrunner_contracts.events import (
    Data,
    MessageStart,
    StreamEvent,
    ToolApprovalRequest,
    ToolExecutionCommitted,
    ToolOutput,
)
from hayrunner_contracts.following import Event
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.testing import assert_valid_stream, eventually

TURNS = [deletes("/a"), text_turn("done")]


async def passes(seconds: float) -> None:
    end = time.monotonic() + seconds
    await eventually(lambda: time.monotonic() > end, what="time's passing")


def outputs(events: list[Event]) -> list[tuple[Any, bool]]:
    return [(e.tool_output, e.is_error) for e in events if isinstance(e, ToolOutput)]


async def test_a_run_waits_longer_than_ack_wait_and_runs_once(
    serve_files: ServeFiles, client: RunClient, files: Files, nc: Client
) -> None:
    await serve_files(TURNS, {"ack_wait_s": 1.0})
    run = await client.submit("support", "hi")
    seen: list[Event] = []
    async for event in run.events():
        seen.append(event)
        if isinstance(event, ToolApprovalRequest):
            await passes(2.5)
            queue = await nc.jetstream().consumer_info("AGENT_REQUESTS", "default~support")
            assert (queue.num_ack_pending, queue.num_redelivered) == (1, 0)
            assert files.done == []
            await run.approve(event.tool_call_id)

    result = await run.result()
    assert (result.status, result.answer, result.attempts) == ("completed", "done", 1)
    assert files.done == ["delete /a"]
    assert outputs(seen) == [("deleted /a", False)]
    assert_valid_stream(seen)


async def test_a_decision_from_before_the_run_began_is_found(
    serve_files: ServeFiles, client: RunClient, files: Files, nats_server: EmbeddedServer
) -> None:
    first = await serve_files(TURNS)
    await first.__aexit__(None, None, None)
    run = await client.submit("support", "hi")
    await run.deny("call_0", feedback="Not now.")
    await run.approve("call_0")
    await run.say("And hurry.")

    await serve_files(TURNS, {"worker_id": "second"})
    seen = [event async for event in run.events()]

    assert (await run.result()).answer == "done"
    assert files.done == []
    denied = "This call was not approved, and was not run. Not now."
    assert outputs(seen) == [(denied, True)]
    said = [e.data for e in seen if isinstance(e, Data) and e.data_type == "said"]
    assert said == [{"text": "And hurry."}]


async def test_a_decision_for_a_run_that_changes_its_worker_is_found(
    serve_files: ServeFiles, client: RunClient, files: Files
) -> None:
    first = await serve_files(TURNS)
    run = await client.submit("support", "hi")
    async with aclosing(run.events()) as events:
        async for event in events:
            if isinstance(event, ToolApprovalRequest):
                break
    await first.shutdown()
    await first.__aexit__(None, None, None)
    await run.approve("call_0")

    await serve_files(TURNS, {"worker_id": "second"})

    assert (await run.result()).answer == "done"
    assert files.done == ["delete /a"]
    events = [event async for event in run.events()]
    assert_valid_stream(events)


async def test_a_run_nobody_watches_tells_which_calls_wait(
    serve_files: ServeFiles, client: RunClient, files: Files
) -> None:
    await serve_files(TURNS)
    run = await client.submit("support", "hi", mode="answer", tools=True)
    seen: list[Event] = []
    async for event in run.events():
        seen.append(event)
        if isinstance(event, ToolApprovalRequest):
            await run.modify(event.tool_call_id, {"path": 7})
        elif isinstance(event, Data):
            assert (event.data_type, event.data["command"]) == ("command_refused", "modify")
            await run.modify("call_0", {"path": "/b"})

    assert (await run.result()).answer == "done"
    assert files.done == ["delete /b"]
    assert [type(event).__name__ for event in seen] == [
        "MessageStart",
        "ToolApprovalRequest",
        "Data",
        "MessageEnd",
        "StreamEnd",
    ]
    assert_valid_stream(seen)


async def test_a_direct_stream_takes_decisions_and_messages(
    serve_files: ServeFiles, client: RunClient, files: Files
) -> None:
    await serve_files(TURNS)
    run = client.attached(new_message_id())
    seen: list[Event] = []
    async for event in client.ask_stream("support", "hi", message_id=run.message_id):
        seen.append(event)
        if isinstance(event, MessageStart):
            await run.say("And hurry.")
        elif isinstance(event, ToolApprovalRequest):
            await run.approve(event.tool_call_id)

    assert files.done == ["delete /a"]
    assert [e.data for e in seen if isinstance(e, Data)] == [{"text": "And hurry."}]
    assert [e.tool_input for e in seen if isinstance(e, ToolExecutionCommitted)] == [{"path": "/a"}]


async def test_a_direct_answer_cannot_ask_anybody_and_does_not_wait(
    serve_files: ServeFiles, client: RunClient, files: Files
) -> None:
    await serve_files(TURNS)
    result = await client.ask("support", "hi", tools=True, timeout=5, include_messages=True)
    assert (result.answer, files.done) == ("done", [])
    assert result.messages is not None
    assert b"nobody can be asked in this run" in encode(result.messages[1])


async def test_a_command_with_an_id_is_taken_once_however_often_it_is_sent(
    serve_files: ServeFiles, client: RunClient, nc: Client
) -> None:
    await serve_files(TURNS)
    run = await client.submit("support", "hi")
    subject = f"runs.default.{run.message_id}.commands"
    seen: list[Event] = []
    async for event in run.events():
        seen.append(event)
        if isinstance(event, ToolApprovalRequest):
            for command_id in ("one", "one", "two"):
                headers = {"Nats-Msg-Id": command_id}
                await nc.publish(subject, encode(Say(text="Again.")), headers=headers)
            await run.approve(event.tool_call_id)
    assert len([e for e in seen if isinstance(e, Data) and e.data_type == "said"]) == 2


@pytest.mark.parametrize("code", ["cancelled", "deadline_exceeded"])
async def test_a_run_that_waits_ends_when_it_is_cancelled_or_late(
    serve_files: ServeFiles, client: RunClient, files: Files, code: str
) -> None:
    turns = [call_turn(("delete", {"path": "/a"}), ("read", {"path": "/b"})), text_turn("never")]
    await serve_files(turns)
    limits: dict[str, Any] = {} if code == "cancelled" else {"timeout_s": 1.0}
    run = await client.submit("support", "hi", include_messages=True, **limits)
    seen: list[Event] = []
    async for event in run.events():
        seen.append(event)
        if isinstance(event, ToolApprovalRequest) and code == "cancelled":
            await run.cancel()

    result = await run.result()
    assert result.error is not None
    assert (result.error.code, files.done) == (code, [])
    assert [error for _, error in outputs(seen)] == [True, True]
    assert [message.role for message in result.messages or []] == ["assistant", "tool", "tool"]
    await run.approve("call_0")
    assert_valid_stream(seen)


async def test_many_runs_wait_and_no_decision_reaches_another(
    serve_files: ServeFiles, client: RunClient, files: Files
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        messages = body["messages"]
        if messages[-1]["role"] == "tool":
            return text_turn(messages[-1]["content"])
        return deletes(messages[-1]["content"])

    await serve_files(answer)
    runs = [await client.submit("support", f"/{number}") for number in range(20)]
    asked: dict[int, StreamEvent] = {}

    async def follow(number: int) -> str:
        async for event in runs[number].events():
            if isinstance(event, ToolApprovalRequest):
                assert event.tool_input == {"path": f"/{number}"}
                asked[number] = event
        return (await runs[number].result()).answer

    following = [asyncio.create_task(follow(number)) for number in range(20)]
    await eventually(lambda: len(asked) == 20, what="all requests")
    for number in reversed(range(20)):
        if number % 2:
            await runs[number].approve("call_0")
        else:
            await runs[number].deny("call_0", feedback=f"no {number}")
    answers = await asyncio.gather(*following)

    assert sorted(files.done) == sorted(f"delete /{number}" for number in range(1, 20, 2))
    for number, text in enumerate(answers):
        assert text.endswith(f"deleted /{number}" if number % 2 else f"not run. no {number}")
