"""Readers that are slow, cut off, late, stopped or replaced read what the stream holds, byte for
byte."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from nats.aio.msg import Msg
from tests.integration.client.wire_cutter import WireCutter

from hayrunner_contracts.client import ReadSettings, RunClient
from hayrunner_contracts.codec import decode_event, encode
from hayrunner_contracts.errors import ClientTimeout
from hayrunner_contracts.events import StreamEvent, TextChunk
from hayrunner_contracts.following import EventsLost
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import RUN_EVENTS
from hayrunner_contracts.testing import eventually

if TYPE_CHECKING:
    from tests.integration.client.conftest import NatsServer, ScriptedWorker

Connect = Callable[..., Awaitable[RunClient]]
Start = Callable[[Any], "asyncio.Task[Any]"]
Script = Callable[..., list[StreamEvent]]

PATIENT = ReadSettings(idle_check_s=0.1, buffer_events=300)


async def wire(
    client: RunClient, message_id: str, after: int = 0, into: list[bytes] | None = None
) -> list[bytes]:
    seen: list[bytes] = [] if into is None else into
    async for _, data in client.attach_wire(message_id, after, timeout=20):
        seen.append(data)
    return seen


async def in_bursts(worker: ScriptedWorker, message_id: str, run: list[StreamEvent]) -> None:
    for start in range(0, len(run), 50):
        await worker.publish(message_id, run[start : start + 50])


@pytest.mark.parametrize("seed", range(3))
async def test_a_reader_a_tenth_as_fast_as_its_run_reads_the_same_bytes(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start, seed: int
) -> None:
    client = await connect(settings=PATIENT)
    message_id, chance = new_message_id(), random.Random(seed)
    run = script(message_id, 6_000)
    allowed = asyncio.Semaphore(0)
    seen: list[bytes] = []

    async def read_slowly() -> None:
        async for _, data in client.attach_wire(message_id, timeout=20):
            await allowed.acquire()
            seen.append(data)

    reading = tasks(read_slowly())
    start = 0
    while start < len(run):
        end = start + chance.randint(1, 400)
        await worker.publish(message_id, run[start:end])
        for _ in range((end - start) // 10):
            allowed.release()
        start = end
    assert len(seen) <= 700
    for _ in run:
        allowed.release()

    await asyncio.wait_for(reading, 30)
    assert seen == await worker.stored_bytes(message_id)
    assert len(seen) == len(run)


@pytest.mark.parametrize("seed", range(3))
async def test_a_reader_that_was_cut_off_ten_times_reads_the_same_bytes(
    worker: ScriptedWorker,
    cutter: WireCutter,
    connect: Connect,
    script: Script,
    tasks: Start,
    seed: int,
) -> None:
    client = await connect(url=cutter.url, settings=PATIENT)
    message_id = new_message_id()
    run = script(message_id, 5_000)
    cuts = sorted(random.Random(seed).sample(range(1, len(run)), 10))
    seen: list[bytes] = []
    reading = tasks(wire(client, message_id, into=seen))
    for start, end in zip([0, *cuts], [*cuts, len(run)], strict=True):
        await in_bursts(worker, message_id, run[start:end])
        if end < len(run):
            cutter.cut()
            reconnects = client.connection.stats["reconnects"]
            if end % 2:  # half of the time the next cut comes in the middle of the reconnect
                await eventually(lambda: client.connection.stats["reconnects"] > reconnects)  # noqa: B023

    await asyncio.wait_for(reading, 30)
    assert cutter.cuts == 10
    assert seen == [encode(event) for event in run] == await worker.stored_bytes(message_id)


@pytest.mark.parametrize("seed", range(3))
async def test_a_reader_cut_off_in_the_middle_of_stored_events_reads_the_same_bytes(
    worker: ScriptedWorker, cutter: WireCutter, connect: Connect, script: Script, seed: int
) -> None:
    client = await connect(url=cutter.url, settings=PATIENT)
    message_id, chance = new_message_id(), random.Random(seed)
    run = script(message_id, 5_000)
    await in_bursts(worker, message_id, run)
    await eventually(lambda: _stored(worker, message_id, len(run)))

    cutter.cut_after([chance.randint(1_000, 150_000) for _ in range(10)])
    assert await asyncio.wait_for(wire(client, message_id), 60) == [encode(one) for one in run]
    assert cutter.cuts >= 5


async def test_a_batch_that_lost_some_of_its_messages_is_read_on_from_the_loss(
    worker: ScriptedWorker, connect: Connect, script: Script
) -> None:
    message_id, chance = new_message_id(), random.Random(7)
    run = script(message_id, 1_000)
    await worker.publish(message_id, run)
    await eventually(lambda: _stored(worker, message_id, len(run)))

    async def relay(request: Msg) -> None:
        """As the server answers, some of it lost on the way."""
        subject = request.subject.replace("$LOSSY", "$JS", 1)
        inbox = worker.connection.new_inbox()
        answers = await worker.connection.subscribe(inbox)
        await worker.connection.publish(subject, request.data, reply=inbox)
        while True:
            answer = await answers.next_msg(5)
            headers = {str(getattr(k, "value", k)): v for k, v in (answer.headers or {}).items()}
            if chance.random() > 0.02:
                await worker.connection.publish(request.reply, answer.data, headers=headers)
            if "Status" in headers:
                return await answers.unsubscribe()

    await worker.connection.subscribe("$LOSSY.API.DIRECT.GET.>", cb=relay)
    await worker.known_to_the_server()
    client = await connect(settings=ReadSettings(idle_check_s=0.1, api="$LOSSY.API"))

    seen = await asyncio.wait_for(wire(client, message_id), 30)
    assert seen == [encode(event) for event in run]


@pytest.mark.parametrize("seed", range(3))
async def test_ten_clients_one_after_the_other_read_the_same_bytes_as_one(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start, seed: int
) -> None:
    message_id = new_message_id()
    run = script(message_id, 2_000)
    turns = sorted(random.Random(seed).sample(range(1, len(run)), 10))
    publishing = tasks(in_bursts(worker, message_id, run))
    seen: list[bytes] = []
    for end in [*turns, len(run)]:
        client = await connect(settings=PATIENT)
        async with aclosing(client.attach_wire(message_id, after=len(seen))) as reading:
            async for _, data in reading:
                seen.append(data)
                if len(seen) == end:
                    break
        await client.close()

    await publishing
    assert seen == await worker.stored_bytes(message_id)
    assert len(seen) == len(run)


async def test_a_reader_that_joins_at_any_position_reads_the_same_bytes(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start
) -> None:
    client = await connect(settings=PATIENT)
    message_id = new_message_id()
    run = script(message_id, 197)
    whole: list[asyncio.Task[list[bytes]]] = []
    rest: list[asyncio.Task[list[bytes]]] = []
    for position, event in enumerate(run):
        await worker.publish(message_id, [event])
        whole.append(tasks(wire(client, message_id)))
        rest.append(tasks(wire(client, message_id, after=position + 1)))
        await asyncio.sleep(0)

    encoded = [encode(event) for event in run]
    for position, (all_of_it, what_follows) in enumerate(zip(whole, rest, strict=True)):
        assert await asyncio.wait_for(all_of_it, 30) == encoded
        assert await asyncio.wait_for(what_follows, 30) == encoded[position + 1 :]


async def test_a_server_killed_under_a_reader_costs_time_only(
    worker: ScriptedWorker, server: NatsServer, connect: Connect, script: Script, tasks: Start
) -> None:
    client = await connect(settings=PATIENT)
    message_id = new_message_id()
    run = script(message_id, 1_000)
    seen: list[bytes] = []
    reading = tasks(wire(client, message_id, into=seen))
    for start in range(0, len(run), 350):
        await worker.publish(message_id, run[start : start + 350])
        await eventually(lambda: _stored(worker, message_id, min(start + 350, len(run))))  # noqa: B023
        if start + 350 < len(run):
            server.stop()
            await server.start()
            await eventually(lambda: worker.connection.is_connected)

    assert await asyncio.wait_for(reading, 30) == [encode(event) for event in run]


READER = """
import asyncio, sys
from hayrunner_contracts.client import ReadSettings, RunClient

async def main():
    settings = ReadSettings(idle_check_s=0.1, buffer_events=300)
    async with await RunClient.connect(sys.argv[1], settings=settings) as client:
        async for _, data in client.attach_wire(sys.argv[2], timeout=30):
            sys.stdout.buffer.write(data + b"\\n")
            sys.stdout.buffer.flush()

asyncio.run(main())
"""


async def test_a_reader_stopped_until_the_server_threw_it_out_reads_the_same_bytes(
    server_of: Callable[..., NatsServer],
    worker_on: Callable[..., Awaitable[ScriptedWorker]],
    script: Script,
) -> None:
    server = server_of(config='max_pending: 4194304\nwrite_deadline: "200ms"\n')
    await server.start()
    worker = await worker_on(server)
    await worker.create_streams()
    message_id = new_message_id()
    run = [
        TextChunk(seq=event.seq, step=1, content=event.content * 500)
        if isinstance(event, TextChunk)
        else event
        for event in script(message_id, 6_000)
    ]
    reader = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", READER, server.url, message_id), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert reader.stdout is not None
        await worker.publish(message_id, run[:10])
        first = await asyncio.wait_for(reader.stdout.readline(), 20)
        before = await server.connections()
        reader.send_signal(signal.SIGSTOP)
        await in_bursts(worker, message_id, run[10:5_000])
        await eventually(lambda: _fewer(server, before), 20, what="the reader thrown out")
        reader.send_signal(signal.SIGCONT)
        await in_bursts(worker, message_id, run[5_000:])
        rest = await asyncio.wait_for(reader.stdout.read(), 60)
    finally:
        if reader.returncode is None:
            reader.kill()
        await reader.wait()

    assert (first + rest).splitlines() == [encode(event) for event in run]


async def _fewer(server: NatsServer, before: int) -> bool:
    return await server.connections() < before


async def test_what_a_stopped_reader_holds_is_bounded(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start
) -> None:
    settings = ReadSettings(idle_check_s=0.1, buffer_bytes=500_000)
    client = await connect(settings=settings)
    message_id = new_message_id()
    go_on = asyncio.Event()
    numbers: list[int] = []

    async def read() -> None:
        async for event in client.attach(message_id):
            numbers.append(event.seq)
            await go_on.wait()

    reading = tasks(read())
    plain = script(message_id, 2_997)
    await worker.publish(message_id, plain[:1])
    await eventually(lambda: numbers == [1])
    tracemalloc.start()
    try:
        for event in plain[1:]:
            large = isinstance(event, TextChunk)
            one = TextChunk(seq=event.seq, step=1, content="x" * 10_000) if large else event
            await worker.publish(message_id, [one])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    go_on.set()

    await asyncio.wait_for(reading, 30)
    assert numbers == list(range(1, 3_001))
    assert held < 3_000_000, "30 MB went by"


# --- what is no longer there, or never was


async def test_a_run_whose_beginning_is_too_old_says_so_at_once(
    client: RunClient, worker: ScriptedWorker, script: Script
) -> None:
    message_id = new_message_id()
    run = script(message_id, 1_000)
    await worker.publish(message_id, run[:900])
    await eventually(lambda: _stored(worker, message_id, 900))
    await worker.jetstream.purge_stream(RUN_EVENTS, seq=501)

    with pytest.raises(EventsLost, match="older than the stream keeps") as raised:
        await asyncio.wait_for(wire(client, message_id), 5)
    assert (raised.value.first, raised.value.last) == (1, 500)
    reading = asyncio.ensure_future(wire(client, message_id, after=500))
    await worker.publish(message_id, run[900:])
    assert await asyncio.wait_for(reading, 5) == [encode(event) for event in run[500:]]


async def test_unread_events_that_grew_too_old_are_said_to_be_lost(
    worker: ScriptedWorker, connect: Connect, script: Script
) -> None:
    client = await connect(settings=ReadSettings(idle_check_s=0.1, buffer_events=10))
    message_id = new_message_id()
    run = script(message_id, 1_000)
    async with aclosing(client.attach(message_id)) as reading:
        await worker.publish(message_id, run[:1])
        await anext(reading)
        await worker.publish(message_id, run[1:900])
        await eventually(lambda: _stored(worker, message_id, 900))
        await worker.jetstream.purge_stream(RUN_EVENTS, seq=501)
        seen: list[int] = [1]

        async def read_on() -> None:
            async for event in reading:
                seen.append(event.seq)

        with pytest.raises(EventsLost) as raised:
            await read_on()
    assert (raised.value.first, raised.value.last) == (seen[-1] + 1, 500)


async def test_a_hole_larger_than_what_is_held_is_told_once_the_run_has_ended(
    worker: ScriptedWorker, connect: Connect, script: Script
) -> None:
    settings = ReadSettings(idle_check_s=0.1, buffer_events=50, patience_s=0.3)
    client = await connect(settings=settings)
    message_id = new_message_id()
    run = script(message_id, 400)
    await worker.publish(message_id, [*run[:10], *run[20:]])
    await worker.publish_result(
        RunResult(message_id=message_id, agent="support", status="completed", last_seq=403)
    )

    with pytest.raises(EventsLost) as raised:
        await asyncio.wait_for(wire(client, message_id), 10)
    assert (raised.value.first, raised.value.last) == (11, 20)


async def test_a_hole_that_is_filled_behind_more_than_what_is_held_is_read(
    worker: ScriptedWorker, connect: Connect, script: Script
) -> None:
    client = await connect(settings=ReadSettings(idle_check_s=0.1, buffer_events=10))
    message_id = new_message_id()
    run = script(message_id, 100)
    await worker.publish(message_id, [*run[:10], *run[20:80], *run[10:20], *run[80:]])

    seen = await asyncio.wait_for(wire(client, message_id), 10)
    assert seen == [encode(event) for event in run]


async def test_a_run_that_never_was_is_told_after_the_timeout(
    client: RunClient, worker: ScriptedWorker
) -> None:
    with pytest.raises(ClientTimeout, match="or there is no such run"):
        await anext(client.attach(new_message_id(), timeout=0.5))


@pytest.mark.parametrize("beyond", [0, 1, 50])
async def test_a_cursor_at_or_beyond_the_end_of_a_finished_run_yields_nothing(
    client: RunClient, worker: ScriptedWorker, script: Script, beyond: int
) -> None:
    message_id = new_message_id()
    run = script(message_id, 20)
    await worker.publish(message_id, run)

    seen = await asyncio.wait_for(wire(client, message_id, after=len(run) + beyond), 5)
    assert seen == []


async def test_doubles_that_a_repair_left_are_yielded_once(
    client: RunClient, worker: ScriptedWorker, script: Script
) -> None:
    message_id = new_message_id()
    run = script(message_id, 100)
    other = [TextChunk(seq=30, step=1, content="of a stale worker")]
    await worker.publish(message_id, [*run[:40], *run[10:30], *other, *run[35:], *run[90:]])

    seen = [decode_event(data) for data in await asyncio.wait_for(wire(client, message_id), 5)]
    assert seen == run


async def _stored(worker: ScriptedWorker, message_id: str, count: int) -> bool:
    return await worker.stored(message_id) >= count
