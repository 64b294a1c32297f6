"""Worker and server die together: what was seen was never stored, and the next worker numbers
from what is. Readers go on with the run that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.client.wire_cutter import WireCutter

from hayrunner_contracts.client import ReadSettings, RunClient
from hayrunner_contracts.codec import decode_event, encode
from hayrunner_contracts.events import MessageEnd, RunResumed, StreamEnd, StreamEvent, TextChunk
from hayrunner_contracts.following import MessageBuilder, followed_events
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.testing import check_stream, eventually

if TYPE_CHECKING:
    from tests.integration.client.conftest import ScriptedWorker

Connect = Callable[..., Awaitable[RunClient]]
Start = Callable[[Any], "asyncio.Task[Any]"]
Script = Callable[..., list[StreamEvent]]

FAST = ReadSettings(idle_check_s=0.1, patience_s=0.5)
SEEN, STORED = 100, 60


def second_attempt(last: int, *, attempt: int = 2, stored: int = STORED) -> list[StreamEvent]:
    """What the next worker publishes, up to `last`."""
    return [
        RunResumed(seq=stored + 1, attempt=attempt, discard_after=1),
        *(
            TextChunk(seq=seq, step=1, content=f"again {seq} ")
            for seq in range(stored + 2, last - 1)
        ),
        MessageEnd(seq=last - 1, finish_reason="stop"),
        StreamEnd(seq=last),
    ]


class Reading:
    """A reader's events and bytes."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.message = MessageBuilder()

    async def attach(self, client: RunClient, message_id: str, *, knows_attempt: bool) -> None:
        attempt = self.message.attempt if knows_attempt else None
        reading = client.attach_wire(message_id, self.message.last_seq, attempt=attempt, timeout=20)
        async for event, data in reading:
            self.seen.append(data)
            self.message.add(event)

    async def agrees(self, worker: ScriptedWorker, message_id: str) -> None:
        """What it made of the run is what the stream holds."""
        assert check_stream([decode_event(data) for data in self.seen]) == []
        truth = MessageBuilder()

        async def is_stored() -> bool:
            nonlocal truth
            truth = MessageBuilder()
            stored = [decode_event(data) for data in await worker.stored_bytes(message_id)]
            for event in followed_events(stored):
                truth.add(event)
            return truth.done

        await eventually(is_stored)
        assert self.message.text == truth.text
        assert self.message.events == truth.events


async def a_run_that_died(
    worker: ScriptedWorker, client: RunClient, script: Script, tasks: Start
) -> tuple[str, Reading, asyncio.Task[None]]:
    """A reader has seen 100 events, of which 60 are stored."""
    message_id, reading = new_message_id(), Reading()
    task = tasks(reading.attach(client, message_id, knows_attempt=False))
    await worker.publish(message_id, script(message_id, SEEN)[:SEEN])
    await eventually(lambda: len(reading.seen) == SEEN)
    await eventually(lambda: _stored(worker, message_id, SEEN))
    await worker.forget(message_id, range(STORED + 1, SEEN + 1))
    return message_id, reading, task


async def _stored(worker: ScriptedWorker, message_id: str, count: int) -> bool:
    return await worker.stored(message_id) >= count


@pytest.mark.parametrize("last", [63, 80, 100, 101, 160])
async def test_a_reader_that_stayed_connected_goes_back_with_the_run(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start, last: int
) -> None:
    client = await connect(settings=FAST)
    message_id, reading, task = await a_run_that_died(worker, client, script, tasks)
    await worker.publish(message_id, second_attempt(last))

    await asyncio.wait_for(task, 10)
    await reading.agrees(worker, message_id)
    assert len(reading.seen) == SEEN + last - STORED


@pytest.mark.parametrize("missed", [1, 20, 60, 99, 100])
async def test_a_reader_that_was_away_when_the_run_was_resumed_mixes_nothing(
    worker: ScriptedWorker,
    cutter: WireCutter,
    connect: Connect,
    script: Script,
    tasks: Start,
    missed: int,
) -> None:
    client = await connect(url=cutter.url, settings=FAST)
    message_id, reading, task = await a_run_that_died(worker, client, script, tasks)
    again = second_attempt(STORED + 100)
    cutter.cut(stay_away=True)
    await eventually(lambda: not client.connection.is_connected)
    await worker.publish(message_id, again[:missed])
    reconnects = client.connection.stats["reconnects"]
    await cutter.mend()
    await eventually(lambda: client.connection.stats["reconnects"] > reconnects)
    await worker.publish(message_id, again[missed:])

    await asyncio.wait_for(task, 10)
    await reading.agrees(worker, message_id)


async def test_a_reader_that_missed_all_of_it_finds_it_when_the_run_is_quiet(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start
) -> None:
    client = await connect(settings=FAST)
    for last in (90, 130):
        message_id, reading, task = await a_run_that_died(worker, client, script, tasks)
        await worker.publish(message_id, second_attempt(last), live=False)

        await asyncio.wait_for(task, 10)
        await reading.agrees(worker, message_id)


async def test_a_reader_of_unread_events_that_were_never_stored_drops_them_after_a_reconnect(
    worker: ScriptedWorker, cutter: WireCutter, connect: Connect, script: Script, tasks: Start
) -> None:
    """They wait unread while the connection goes and comes back with another attempt's."""
    client = await connect(url=cutter.url, settings=FAST)
    message_id, go_on, reading = new_message_id(), asyncio.Event(), Reading()

    async def read() -> None:
        async for event, data in client.attach_wire(message_id, timeout=20):
            reading.seen.append(data)
            reading.message.add(event)
            if event.seq == 30:
                await go_on.wait()

    task = tasks(read())
    await worker.publish(message_id, script(message_id, SEEN)[:SEEN])
    await eventually(lambda: len(reading.seen) == 30)
    await eventually(lambda: _stored(worker, message_id, SEEN))
    await worker.forget(message_id, range(STORED + 1, SEEN + 1))
    again = second_attempt(STORED + 100)
    cutter.cut()
    await worker.publish(message_id, again[:20])
    await eventually(lambda: client.connection.stats["reconnects"] == 1)
    await client.connection.flush()
    received = client.connection.stats["in_msgs"]
    await worker.publish(message_id, again[20:])
    await eventually(lambda: client.connection.stats["in_msgs"] >= received + len(again) - 20)
    go_on.set()

    await asyncio.wait_for(task, 10)
    await reading.agrees(worker, message_id)


@pytest.mark.parametrize("published", [1, 20, 60, 100])
async def test_a_new_client_that_says_what_was_seen_goes_back_too(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start, published: int
) -> None:
    client = await connect(settings=FAST)
    message_id, reading, task = await a_run_that_died(worker, client, script, tasks)
    task.cancel()
    again = second_attempt(STORED + 100)
    await worker.publish(message_id, again[:published])
    await eventually(lambda: _stored(worker, message_id, STORED + published))
    other = await connect(settings=FAST)
    task = tasks(reading.attach(other, message_id, knows_attempt=True))
    await worker.publish(message_id, again[published:])

    await asyncio.wait_for(task, 10)
    await reading.agrees(worker, message_id)


async def test_a_cursor_among_void_events_goes_on_to_the_resumption(
    client: RunClient, worker: ScriptedWorker, script: Script
) -> None:
    message_id = new_message_id()
    run = [*script(message_id, SEEN)[:STORED], *second_attempt(120)]
    await worker.publish(message_id, run)
    for after in (1, 30, 59, 60, 61, 90):
        seen = [data async for _, data in client.attach_wire(message_id, after, timeout=5)]
        assert seen == [encode(event) for event in run[after:]]


async def test_three_attempts_at_the_same_place_leave_the_last(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start
) -> None:
    client = await connect(settings=FAST)
    message_id, reading, task = await a_run_that_died(worker, client, script, tasks)
    await worker.publish(message_id, second_attempt(200)[:70])
    await eventually(lambda: reading.message.last_seq == STORED + 70)
    await eventually(lambda: _stored(worker, message_id, STORED + 70))
    await worker.forget(message_id, range(STORED + 1, STORED + 71))
    await worker.publish(message_id, second_attempt(110, attempt=3))

    await asyncio.wait_for(task, 10)
    await reading.agrees(worker, message_id)
    assert reading.message.attempt == 3
