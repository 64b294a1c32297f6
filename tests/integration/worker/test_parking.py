"""Runs that wait for a person without a worker: parked, woken, late, cancelled."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client
from tests.integration.worker.conftest import ServeFiles
from tests.unit.agent.files import Files, deletes
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.serving.app import Worker
from hayrunner.serving.claims import Claims
from hayrunner.serving.stored import messages_of
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.events import MessageStart, RunResumed, ToolApprovalRequest
from hayrunner_contracts.following import Event, MessageBuilder
from hayrunner_contracts.runs import Run
from hayrunner_contracts.testing import assert_valid_stream, eventually

# One kind of server is enough: what is looked at is the worker.
pytestmark = pytest.mark.parametrize("nats_server", ["process"], indirect=True)

TURNS = [deletes("/a"), text_turn("done")]
SOON = {"park_after_s": 0.05}


class Parked:
    """Whether a run is parked, as the bucket says."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc

    async def __call__(self, run: Run) -> bool:
        bucket = await self._nc.jetstream().key_value("RUNS")
        found = await Claims(bucket, namespace="default", worker="w").find(run.message_id)
        return found is not None and found[0].parked is not None

    async def wait(self, run: Run) -> None:
        await eventually(lambda: self(run), what="the run to be parked")


@pytest.fixture
def parked(nc: Client) -> Parked:
    return Parked(nc)


async def told(run: Run) -> list[Event]:
    events = [event async for event in run.events(timeout=20)]
    assert_valid_stream(events)
    return events


def text_of(events: list[Event]) -> str:
    message = MessageBuilder()
    for event in events:
        message.add(event)
    return message.text


async def test_a_parked_run_has_no_slot_and_goes_on_when_it_is_decided(
    serve_files: ServeFiles, client: RunClient, files: Files, parked: Parked
) -> None:
    worker = await serve_files(TURNS, {**SOON, "concurrency": 1})
    run = await client.submit("support", "hi", include_messages=True)
    await parked.wait(run)
    await eventually(lambda: worker.running == 0, what="the slot to be free")
    other = await client.submit("support", "hi")
    await parked.wait(other)

    await run.approve("call_0")
    result = await run.result()
    assert (result.status, result.answer, result.attempts) == ("completed", "done", 1)
    assert files.done == ["delete /a"]
    events = await told(run)
    assert len([e for e in events if isinstance(e, ToolApprovalRequest)]) == 1
    assert [e.attempt for e in events if isinstance(e, RunResumed)] == [2]
    assert [m.role for m in result.messages or []] == ["assistant", "tool", "assistant"]
    assert await parked(other)


async def test_a_run_that_nobody_serves_any_more_waits_for_its_decision_and_the_next_worker(
    serve_files: ServeFiles, client: RunClient, files: Files, parked: Parked
) -> None:
    first = await serve_files(TURNS, SOON)
    run = await client.submit("support", "hi")
    await parked.wait(run)
    await first.__aexit__(None, None, None)
    await run.approve("call_0")

    await serve_files(TURNS, {**SOON, "worker_id": "second"})
    assert (await run.result()).answer == "done"
    assert files.done == ["delete /a"]


async def test_what_a_parked_run_needs_of_the_object_store_is_kept_while_it_waits(
    serve_files: ServeFiles, client: RunClient, nc: Client, parked: Parked
) -> None:
    await serve_files(TURNS, {**SOON, "results_max_age_s": 4.0})
    run = await client.submit("support", "x" * 2_000_000)
    await parked.wait(run)
    put_first = (await nc.jetstream().stream_info("OBJ_RUN_BLOBS")).state.last_seq

    async def is_gone() -> bool:
        state = (await nc.jetstream().stream_info("OBJ_RUN_BLOBS")).state
        return state.first_seq > put_first and state.messages > 0

    await eventually(is_gone, 20, what="the age of what was put at first")
    await run.approve("call_0")
    assert (await run.result()).answer == "done"


async def test_what_was_parked_and_is_over_leaves_nothing_in_the_queue(
    serve_files: ServeFiles, client: RunClient, nc: Client, parked: Parked
) -> None:
    await serve_files(TURNS, SOON)
    runs = [await client.submit("support", "hi") for _ in range(10)]
    for run in runs:
        await parked.wait(run)
    for run in runs:
        await run.approve("call_0")
    for run in runs:
        assert (await run.result()).status == "completed"

    async def is_empty() -> bool:
        return (await nc.jetstream().stream_info("AGENT_REQUESTS")).state.messages == 0

    await eventually(is_empty, what="an empty queue")


async def test_an_approval_that_does_not_come_ends_when_its_time_is_up(
    serve_files: ServeFiles, client: RunClient, files: Files, parked: Parked
) -> None:
    await serve_files(TURNS, SOON, approval_timeout_s=1.0)
    began = time.monotonic()
    run = await client.submit("support", "hi")
    await parked.wait(run)
    assert (await run.result()).answer == "done"
    assert time.monotonic() - began < 5
    assert files.done == []


@pytest.mark.parametrize("code", ["cancelled", "deadline_exceeded"])
async def test_a_parked_run_ends_when_it_is_cancelled_or_late(
    serve_files: ServeFiles, client: RunClient, files: Files, parked: Parked, code: str
) -> None:
    turns = [call_turn(("delete", {"path": "/a"}), ("read", {"path": "/b"})), text_turn("never")]
    await serve_files(turns, SOON)
    limits: dict[str, Any] = {} if code == "cancelled" else {"timeout_s": 1.0}
    run = await client.submit("support", "hi", include_messages=True, **limits)
    await parked.wait(run)
    if code == "cancelled":
        await run.cancel()
    result = await run.result()
    assert result.error is not None
    assert (result.error.code, result.model_calls, files.done) == (code, 1, [])
    assert [message.role for message in result.messages or []] == ["assistant", "tool", "tool"]
    await told(run)


async def test_what_is_said_to_a_parked_run_does_not_wake_it_and_is_not_lost(
    serve_files: ServeFiles, client: RunClient, parked: Parked
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        messages = body["messages"]
        if any(message["role"] == "tool" for message in messages):
            return text_turn(messages[-1]["content"])
        return deletes("/a")

    await serve_files(answer, SOON)
    run = await client.submit("support", "hi")
    await parked.wait(run)
    await run.say("and hurry")
    await run.approve("call_0")
    assert (await run.result()).answer == "and hurry"


async def test_the_decision_and_the_parking_may_come_at_the_same_time(
    serve_files: ServeFiles, client: RunClient, files: Files
) -> None:
    await serve_files(TURNS, {"park_after_s": 0.03})
    for number in range(25):
        run = await client.submit("support", "hi")
        async for event in run.events():
            if isinstance(event, ToolApprovalRequest):
                end = time.monotonic() + number * 0.003
                await eventually(lambda end=end: time.monotonic() > end)
                await run.approve(event.tool_call_id)
        assert (await run.result()).answer == "done"
    assert len(files.done) == 25


async def test_a_request_without_an_id_keeps_the_one_it_was_given(
    serve_files: ServeFiles, client: RunClient, nc: Client, files: Files, parked: Parked
) -> None:
    await serve_files(TURNS, SOON)
    ids: list[str] = []

    async def note(message: Any) -> None:
        ids.append(message.subject.split(".")[2])

    await nc.subscribe("runs.*.*.events", cb=note)
    await nc.jetstream().publish("agents.default.support.requests", b'{"prompt": "hi"}')
    await eventually(lambda: ids, what="its first event")
    run = client.attached(ids[0])
    await parked.wait(run)
    await run.approve("call_0")
    assert (await run.result()).answer == "done"
    assert set(ids) == {run.message_id}


async def test_events_that_went_by_age_while_it_was_parked_keep_their_numbers(
    serve_files: ServeFiles, client: RunClient, nc: Client, parked: Parked
) -> None:
    await serve_files(TURNS, SOON)
    run = await client.submit("support", "hi")
    await parked.wait(run)
    subject = f"runs.default.{run.message_id}.events"
    before = [event async for event in _stored(client, run)]
    await nc.jetstream().purge_stream("RUN_EVENTS", subject=subject)
    await run.approve("call_0")
    assert (await run.result()).answer == "done"
    after = [event async for event in _stored(client, run)]
    assert isinstance(after[0], RunResumed)
    assert after[0].seq == before[-1].seq + 1
    assert not any(isinstance(event, MessageStart) for event in after)


async def _stored(client: RunClient, run: Run) -> AsyncIterator[Event]:
    subject = f"runs.default.{run.message_id}.events"
    async for message in messages_of(client.connection, "RUN_EVENTS", subject):
        yield decode_event(message.data)


async def test_a_parked_run_outlives_the_deliveries_that_a_request_may_have(
    serve_files: ServeFiles, client: RunClient, files: Files, parked: Parked
) -> None:
    worker: Worker = await serve_files(TURNS, SOON)
    assert worker._parts is not None  # pyright: ignore[reportPrivateUsage]
    worker._parts.parking.refresh_s = 0.05  # pyright: ignore[reportPrivateUsage]
    run = await client.submit("support", "hi")
    await parked.wait(run)
    js = client.connection.jetstream()

    async def came_often() -> bool:
        info = await js.consumer_info("AGENT_REQUESTS", "default~support")
        return info.delivered is not None and info.delivered.consumer_seq > 50

    await eventually(came_often, 20, what="more deliveries than a request may have")
    await run.approve("call_0")
    result = await run.result()
    assert (result.answer, result.attempts) == ("done", 1)
    assert files.done == ["delete /a"]


async def test_a_run_whose_checkpoint_cannot_be_read_any_more_starts_over_and_says_so(
    serve_files: ServeFiles, client: RunClient, nc: Client, files: Files, parked: Parked
) -> None:
    await serve_files([deletes("/a"), text_turn("done")], SOON)
    run = await client.submit("support", "hi")
    await parked.wait(run)
    bucket = await nc.jetstream().key_value("RUNS")
    entry = await bucket.get(f"default.{run.message_id}")
    record = json.loads(entry.value or b"")
    record["kept"]["data"]["version"] = 0
    await bucket.put(f"default.{run.message_id}", json.dumps(record).encode())

    await run.approve("call_0")
    assert (await run.result()).answer == "done"
    assert files.done == ["delete /a"]
    events = await told(run)
    assert [e.discard_after for e in events if isinstance(e, RunResumed)] == [1]
    assert text_of(events) == "done"
