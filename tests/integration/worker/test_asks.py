"""Direct requests: one reply, or the events on the reply inbox; never a silent wait."""

import asyncio
import json
import uuid
from typing import Any

from nats.aio.client import Client
from tests.contracts.bad_requests import BAD_REQUESTS
from tests.integration.worker.conftest import Requester, Serve, kinds
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner_contracts.codec import decode_event, decode_result
from hayrunner_contracts.events import Error, StreamEnd, StreamEvent, UnknownEvent
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.stream_rules import check_stream
from hayrunner_contracts.testing import eventually

SUBJECT = "agents.default.support.ask"


async def answer(nc: Client, **request: Any) -> RunResult:
    data = json.dumps({"prompt": "hi", "mode": "answer", **request}).encode()
    return decode_result((await nc.request(SUBJECT, data, timeout=10)).data)


async def stream(nc: Client, **request: Any) -> list[StreamEvent | UnknownEvent]:
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(SUBJECT, json.dumps({"prompt": "hi", **request}).encode(), reply=inbox)
    found: list[StreamEvent | UnknownEvent] = []
    while not found or not isinstance(found[-1], StreamEnd):
        found.append(decode_event((await subscription.next_msg(timeout=10)).data))
    await subscription.unsubscribe()
    return found


async def wait_for_ever(session: Session) -> str:
    await session.say("first")
    await asyncio.Event().wait()
    return ""


async def test_an_answer_comes_as_one_result(serve: Serve, nc: Client) -> None:
    await serve(ScriptedAgent())
    result = await answer(nc, metadata={"a": "b"})

    assert (result.status, result.answer, result.last_seq) == ("completed", "Hello, world", 0)
    assert result.metadata == {"a": "b"}


async def test_a_stream_comes_as_events_and_ends_with_stream_end(
    serve: Serve, nc: Client, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    events = await stream(nc)

    assert kinds(events) == ["message_start", *["text_chunk"] * 3, "message_end", "stream_end"]
    assert check_stream(events) == []
    assert await requester.count("RUN_EVENTS") == 0


async def test_beyond_the_slots_the_answer_is_overloaded_at_once(serve: Serve, nc: Client) -> None:
    agent = ScriptedAgent(script=wait_for_ever)
    await serve(agent, concurrency=2)
    tasks = [asyncio.create_task(stream(nc)) for _ in range(2)]
    await eventually(lambda: len(agent.started) == 2, what="two runs")

    start = asyncio.get_running_loop().time()
    result = await answer(nc)

    assert asyncio.get_running_loop().time() - start < 1
    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("overloaded", True)
    for task in tasks:
        task.cancel()


async def test_the_slot_of_an_idle_pull_is_free_for_a_direct_request(
    serve: Serve, nc: Client, requester: Requester
) -> None:
    await serve(ScriptedAgent(), concurrency=1)
    for _ in range(5):
        assert (await answer(nc)).status == "completed"
    # And the queue is still served afterwards.
    assert (await requester.ended(await requester.publish())).status == "completed"


async def test_bad_direct_requests_are_answered_with_their_code(serve: Serve, nc: Client) -> None:
    await serve(ScriptedAgent())
    for bad in BAD_REQUESTS:
        if len(bad.data) > nc.max_payload:
            continue  # the server's to refuse
        reply = await nc.request(SUBJECT, bad.data, timeout=5)
        error = decode_result(reply.data).error
        assert error is not None, bad.name
        assert (bad.name, error.code, error.field) == (bad.name, bad.code, bad.field)


async def test_a_request_without_a_reply_inbox_is_ignored(serve: Serve, nc: Client) -> None:
    agent = ScriptedAgent()
    await serve(agent)
    await nc.publish(SUBJECT, b'{"prompt": "hi"}')
    assert (await answer(nc)).status == "completed"
    assert len(agent.started) == 1


async def test_a_direct_run_can_be_cancelled(serve: Serve, requester: Requester) -> None:
    agent = ScriptedAgent(script=wait_for_ever)
    await serve(agent)
    message_id = str(uuid.uuid4())
    task = asyncio.create_task(stream(requester.nc, message_id=message_id))
    await eventually(lambda: agent.started, what="the run")
    await requester.cancel(message_id)

    events = await asyncio.wait_for(task, 5)
    assert kinds(events)[-3:] == ["error", "message_end", "stream_end"]
    assert any(isinstance(event, Error) and event.error_code == "cancelled" for event in events)


async def test_a_direct_run_ends_at_its_deadline(serve: Serve, nc: Client) -> None:
    await serve(ScriptedAgent(script=wait_for_ever))
    result = await answer(nc, timeout_s=0.2)

    assert result.error is not None
    assert result.error.code == "deadline_exceeded"


async def test_direct_runs_that_are_cut_by_a_shutdown_are_told(serve: Serve, nc: Client) -> None:
    agent = ScriptedAgent(script=wait_for_ever)
    worker = await serve(agent)
    streaming = asyncio.create_task(stream(nc))
    waiting = asyncio.create_task(answer(nc))
    await eventually(lambda: len(agent.started) == 2, what="two runs")

    await worker.shutdown()

    events = await asyncio.wait_for(streaming, 5)
    assert check_stream(events) == []
    assert any(isinstance(event, Error) and event.error_code == "worker_lost" for event in events)
    error = (await asyncio.wait_for(waiting, 5)).error
    assert error is not None
    assert error.code == "worker_lost"
