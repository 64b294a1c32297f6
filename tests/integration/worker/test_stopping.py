"""Cancel and deadline, in the queue and while running."""

import asyncio
import time

import pytest
from tests.integration.worker.conftest import Requester, Serve, kinds
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner.serving import drive
from hayrunner_contracts.stream_rules import check_stream
from hayrunner_contracts.testing import eventually


async def wait_for_ever(session: Session) -> str:
    await session.say("first")
    await asyncio.Event().wait()
    return ""


async def test_a_cancel_for_a_queued_run_ends_it_without_a_model_call(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent()
    first = await serve(agent)
    await first.__aexit__(None, None, None)
    message_id = await requester.publish()
    await requester.cancel(message_id)
    await serve(agent, worker_id="second")

    result = await requester.ended(message_id)

    assert (result.status, result.finish_reason) == ("cancelled", "cancelled")
    assert result.error is not None
    assert result.error.message.endswith(": enough")
    assert agent.started == []
    assert kinds(requester.events[message_id]) == [
        "message_start",
        "error",
        "message_end",
        "stream_end",
    ]


async def test_a_cancel_stops_a_running_run_within_100_ms(
    serve: Serve, requester: Requester
) -> None:
    loop = asyncio.get_running_loop()
    stopped: list[float] = []

    async def note(session: Session) -> str:
        try:
            return await wait_for_ever(session)
        finally:
            stopped.append(loop.time())

    await serve(ScriptedAgent(script=note))
    message_id = await requester.publish()
    await eventually(lambda: len(requester.events[message_id]) == 2, what="the first text")

    start = loop.time()
    await requester.cancel(message_id)
    result = await requester.ended(message_id)

    assert stopped[0] - start < 0.1
    assert result.status == "cancelled"
    assert result.error is not None
    assert result.error.code == "cancelled"
    assert check_stream(requester.events[message_id]) == []


async def test_cancelling_twice_is_one_cancel(serve: Serve, requester: Requester) -> None:
    await serve(ScriptedAgent(script=wait_for_ever))
    message_id = await requester.publish()
    await eventually(lambda: len(requester.events[message_id]) == 2, what="the first text")
    await requester.cancel(message_id)
    await requester.cancel(message_id)
    await requester.ended(message_id)
    await requester.cancel(message_id)

    assert kinds(requester.events[message_id]).count("error") == 1
    assert len(requester.results[message_id]) == 1


async def test_a_command_that_cannot_be_read_or_is_not_for_this_run_changes_nothing(
    serve: Serve, requester: Requester
) -> None:
    go = asyncio.Event()

    async def wait(session: Session) -> str:
        await go.wait()
        return "done"

    await serve(ScriptedAgent(script=wait))
    message_id = await requester.publish()
    await eventually(lambda: requester.events[message_id], what="the run")
    subject = f"runs.default.{message_id}.commands"
    for data in (b"", b"{", b'{"type":"explode"}', b'{"type":"approve","tool_call_id":"c1"}'):
        await requester.js.publish(subject, data)
    go.set()

    assert (await requester.ended(message_id)).status == "completed"


async def test_a_run_ends_at_its_deadline(serve: Serve, requester: Requester) -> None:
    await serve(ScriptedAgent(script=wait_for_ever))
    message_id = await requester.publish(timeout_s=1.0)
    result = await requester.ended(message_id)

    assert result.status == "failed"
    assert result.error is not None
    assert result.error.code == "deadline_exceeded"
    assert kinds(requester.events[message_id])[:2] == ["message_start", "text_chunk"]


async def test_a_run_whose_deadline_passed_in_the_queue_does_not_start(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent()
    first = await serve(agent)
    await first.__aexit__(None, None, None)
    message_id = await requester.publish(timeout_s=0.05)
    late = await requester.publish(deadline="2020-01-01T00:00:00Z")
    published = time.time()
    await eventually(lambda: time.time() > published + 0.1, what="the deadline's passing")
    await serve(agent, worker_id="second")

    for queued in (message_id, late):
        result = await requester.ended(queued)
        assert result.error is not None
        assert result.error.code == "deadline_exceeded"
    assert agent.started == []


async def test_a_session_that_ignores_being_stopped_does_not_hold_the_run(
    serve: Serve, requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "_STOP_GRACE_S", 0.2)

    async def stubborn(session: Session) -> str:
        end = asyncio.get_running_loop().time() + 2
        while asyncio.get_running_loop().time() < end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return ""

    await serve(ScriptedAgent(script=stubborn))
    message_id = await requester.publish()
    await eventually(lambda: requester.events[message_id], what="the run")
    await requester.cancel(message_id)

    assert (await requester.ended(message_id, timeout=1.5)).status == "cancelled"
