"""What a reader sees is gap-free and in order, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import nats
import pytest
from msgspec.structs import replace

from hayrunner_contracts.client import ReadSettings, RunClient
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import ClientTimeout, InvalidRequest, RunFailure
from hayrunner_contracts.events import Error, MessageStart, StreamEvent, TextChunk, UnknownEvent
from hayrunner_contracts.following import EventsLost
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.replay import Stored, StoredSubject
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import RUN_EVENTS, events
from hayrunner_contracts.testing import eventually

if TYPE_CHECKING:
    from tests.integration.client.conftest import NatsServer, ScriptedWorker

Connect = Callable[..., Awaitable[RunClient]]
Start = Callable[[Any], "asyncio.Task[Any]"]
Script = Callable[..., list[StreamEvent]]

FAST = ReadSettings(idle_check_s=0.1, patience_s=0.3)


async def collect(reading: AsyncIterator[Any], into: list[Any] | None = None) -> list[Any]:
    seen: list[Any] = [] if into is None else into
    async for event in reading:
        seen.append(event)
    return seen


async def started(client: RunClient, worker: ScriptedWorker, tasks: Start) -> Any:
    """A stream that is being read, and the message id it is for."""
    seen: list[Any] = []
    reading = tasks(collect(client.stream("support", "hi"), seen))
    request = await worker.take("support")
    return request.message_id, reading, seen


async def test_events_that_were_missed_are_read_from_the_stream(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    message_id, reading, _ = await started(client, worker, tasks)
    run = script(message_id, 40)
    await worker.publish(message_id, run[:5])
    await worker.publish(message_id, run[5:12], live=False)
    await worker.publish(message_id, run[12:13])
    await worker.publish(message_id, run[13:20], live=False)
    await worker.publish(message_id, run[20:])

    assert await asyncio.wait_for(reading, 5) == run


async def test_a_missed_beginning_is_read_from_the_stream(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    message_id, reading, _ = await started(client, worker, tasks)
    run = script(message_id, 5)
    await worker.publish(message_id, run[:3], live=False)
    await worker.publish(message_id, run[3:])

    assert await asyncio.wait_for(reading, 5) == run


async def test_a_missed_end_is_found_when_the_run_goes_quiet(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    message_id, reading, _ = await started(client, worker, tasks)
    run = script(message_id, 5)
    await worker.publish(message_id, run[:4])
    await worker.publish(message_id, run[4:], live=False)

    assert await asyncio.wait_for(reading, 5) == run


async def test_events_published_twice_and_late_are_put_in_their_place(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    message_id, reading, _ = await started(client, worker, tasks)
    run = script(message_id, 10)
    await worker.publish(message_id, run[:5])
    await worker.publish(message_id, run[7:])
    await worker.publish(message_id, run[5:9], live=False)

    assert await asyncio.wait_for(reading, 5) == run


async def test_an_end_missed_behind_an_event_published_late_is_found(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    message_id, reading, _ = await started(client, worker, tasks)
    run = script(message_id, 10)
    await worker.publish(message_id, run[:5])
    await worker.publish(message_id, run[6:], live=False)
    await worker.publish(message_id, run[5:6])

    assert await asyncio.wait_for(reading, 5) == run


async def test_a_late_reader_joins_a_running_run_without_a_seam(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    message_id = new_message_id()
    run = script(message_id, 5_000)

    async def publish() -> None:
        for start in range(0, len(run), 50):
            await worker.publish(message_id, run[start : start + 50])

    publishing = tasks(publish())
    readers: list[asyncio.Task[Any]] = []
    for stored in (1, 1_000, 2_500):
        await eventually(lambda: _has_stored(worker, message_id, stored))  # noqa: B023
        readers.append(tasks(collect(client.attach(message_id))))
    assert not publishing.done()

    for reader in readers:
        assert await asyncio.wait_for(reader, 20) == run


async def _has_stored(worker: ScriptedWorker, message_id: str, count: int) -> bool:
    return await worker.stored(message_id) >= count


@pytest.mark.parametrize("after", [0, 1, 700, 1_002, 1_003])
async def test_a_finished_run_is_read_from_the_sequence_asked_for(
    client: RunClient, worker: ScriptedWorker, script: Script, after: int
) -> None:
    message_id = new_message_id()
    run = script(message_id, 1_000)
    await worker.publish(message_id, run)

    seen = await asyncio.wait_for(collect(client.attach(message_id, after=after)), 5)
    assert seen == run[after:]


async def test_a_stream_without_direct_get_is_read_as_well(
    bare_worker: ScriptedWorker, connect: Connect, script: Script
) -> None:
    await bare_worker.create_events_stream(allow_direct=False)
    client = await connect()
    message_id = new_message_id()
    run = script(message_id, 20)
    await bare_worker.publish(message_id, run)

    assert await asyncio.wait_for(collect(client.attach(message_id, after=3)), 5) == run[3:]


async def test_a_run_that_is_still_queued_can_be_attached_to(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    run = await client.submit("support", "hi")
    reading = tasks(collect(run.events()))
    request = await worker.take("support")
    await worker.publish(run.message_id, script(request.message_id, 3))

    assert len(await asyncio.wait_for(reading, 5)) == 6


@pytest.mark.parametrize("own_connection", [True, False])
async def test_a_reader_goes_on_after_the_server_was_restarted(
    worker: ScriptedWorker,
    server: NatsServer,
    connect: Connect,
    script: Script,
    tasks: Start,
    own_connection: bool,
) -> None:
    if own_connection:
        client = await connect()
    else:
        client = RunClient(
            await nats.connect(
                server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_quiet
            ),
            settings=FAST,
        )
    message_id, reading, seen = await started(client, worker, tasks)
    run = script(message_id, 400)
    await worker.publish(message_id, run[:200])
    await eventually(lambda: len(seen) == 200)
    await eventually(lambda: _has_stored(worker, message_id, 200))

    server.stop()
    await eventually(lambda: not client.connection.is_connected)
    await server.start()
    await eventually(lambda: worker.connection.is_connected)
    await worker.publish(message_id, run[200:], live=False)

    assert await asyncio.wait_for(reading, 20) == run
    await client.connection.close()


async def _quiet(_: Exception) -> None:
    """The server is stopped on purpose."""


@pytest.mark.parametrize(
    "settings",
    [
        ReadSettings(idle_check_s=0.1, buffer_events=4),
        ReadSettings(idle_check_s=0.1, buffer_bytes=300),
    ],
)
async def test_a_reader_slower_than_its_run_loses_only_time(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start, settings: ReadSettings
) -> None:
    client = await connect(settings=settings)
    seen: list[bytes] = []
    go_on = asyncio.Event()

    async def read_slowly() -> None:
        async for event in client.stream("support", "hi"):
            assert isinstance(event, StreamEvent)
            seen.append(encode(event))
            if len(seen) == 1:
                await go_on.wait()
            if len(seen) % 100 == 0:
                await worker.connection.flush()

    reading = tasks(read_slowly())
    message_id = (await worker.take("support")).message_id or ""
    run = script(message_id, 2_000)
    await worker.publish(message_id, run[:1])
    await eventually(lambda: len(seen) == 1)
    await worker.publish(message_id, run[1:1_000])
    go_on.set()
    await worker.publish(message_id, run[1_000:])

    await asyncio.wait_for(reading, 20)
    assert seen == [encode(event) for event in run]


async def test_many_streams_share_a_client(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    reading = [tasks(collect(client.stream("support", "hi"))) for _ in range(50)]
    requested = [await worker.take("support") for _ in reading]
    await asyncio.gather(
        *(
            worker.publish(request.message_id or "", script(request.message_id, 50))
            for request in requested
        )
    )

    for seen in await asyncio.wait_for(asyncio.gather(*reading), 20):
        assert [event.seq for event in seen] == list(range(1, 54))


async def test_leaving_the_loop_early_unsubscribes_and_does_not_cancel(
    client: RunClient, worker: ScriptedWorker, server: NatsServer, script: Script, tasks: Start
) -> None:
    async def work() -> str:
        message_id = (await worker.take("support")).message_id or ""
        await worker.publish(message_id, script(message_id, 5)[:3])
        return message_id

    working = tasks(work())
    async for event in client.stream("support", "hi"):
        assert isinstance(event, MessageStart)
        break
    subject = events("default", await working)

    await eventually(lambda: _listen(server, subject, 0))
    commands = await worker.jetstream.stream_info("RUN_COMMANDS")
    assert commands.state.messages == 0


async def test_closing_the_generator_unsubscribes_at_once(
    client: RunClient, worker: ScriptedWorker, server: NatsServer, script: Script
) -> None:
    message_id = new_message_id()
    await worker.publish(message_id, script(message_id, 5)[:3])
    async with aclosing(client.attach(message_id)) as reading:
        await anext(reading)
        await eventually(lambda: _listen(server, events("default", message_id), 1))
    await client.connection.flush()

    assert await server.subscribers(events("default", message_id)) == 0


async def _listen(server: NatsServer, subject: str, count: int) -> bool:
    return await server.subscribers(subject) == count


async def test_a_failed_run_does_not_raise_from_its_stream(
    client: RunClient, worker: ScriptedWorker, script: Script
) -> None:
    message_id = new_message_id()
    run = script(message_id, 0)
    failure = Error(seq=2, error_code="provider_error", error_message="status 500")
    run[1:] = [failure, replace(run[1], seq=3), replace(run[2], seq=4)]
    await worker.publish(message_id, run)

    seen = await asyncio.wait_for(collect(client.attach(message_id)), 5)
    assert seen[1] == failure


async def test_an_event_of_an_unknown_type_and_a_stray_message_are_survived(
    client: RunClient, worker: ScriptedWorker, script: Script, tasks: Start
) -> None:
    message_id, reading, _ = await started(client, worker, tasks)
    run = script(message_id, 2)
    subject = events("default", message_id)
    await worker.publish(message_id, run[:1])
    await worker.connection.publish(subject, b"not an event")
    await worker.connection.publish(subject, b'{"type":"mood","seq":2,"mood":"good"}')
    await worker.publish(message_id, run[2:])

    seen = await asyncio.wait_for(reading, 5)
    assert isinstance(seen[1], UnknownEvent)
    assert [event.seq for event in seen] == [1, 2, 3, 4, 5]


async def test_events_that_were_never_stored_are_said_to_be_lost(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start
) -> None:
    client = await connect(settings=FAST)
    message_id, reading, seen = await started(client, worker, tasks)
    run = script(message_id, 10)
    await worker.publish(message_id, [*run[:4], *run[6:]])

    with pytest.raises(EventsLost) as raised:
        await asyncio.wait_for(reading, 5)
    assert (raised.value.first, raised.value.last) == (5, 6)
    assert seen == run[:4]


async def test_a_run_that_has_a_result_and_no_end_is_said_to_have_lost_it(
    worker: ScriptedWorker, connect: Connect, script: Script, tasks: Start
) -> None:
    client = await connect(settings=FAST)
    message_id, reading, seen = await started(client, worker, tasks)
    run = script(message_id, 3)
    await worker.publish(message_id, run[:-1])
    await worker.publish_result(
        RunResult(message_id=message_id, agent="support", status="completed", last_seq=6)
    )

    with pytest.raises(EventsLost) as raised:
        await asyncio.wait_for(reading, 10)
    assert raised.value.first == 6
    assert seen == run[:-1]


async def test_events_older_than_the_stream_keeps_are_said_to_be_lost_at_once(
    client: RunClient, worker: ScriptedWorker, script: Script
) -> None:
    message_id = new_message_id()
    await worker.publish(message_id, script(message_id, 3))
    await worker.publish_result(
        RunResult(message_id=message_id, agent="support", status="completed", last_seq=6)
    )
    await worker.jetstream.purge_stream(RUN_EVENTS)

    with pytest.raises(EventsLost):
        await asyncio.wait_for(anext(client.attach(message_id)), 2)


async def test_events_that_a_replica_does_not_have_yet_are_not_said_to_be_lost(
    worker: ScriptedWorker, connect: Connect, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_id = new_message_id()
    run = script(message_id, 3)
    await worker.publish(message_id, run)
    await worker.publish_result(
        RunResult(message_id=message_id, agent="support", status="completed", last_seq=6)
    )
    looks = 0
    after, last = StoredSubject.after, StoredSubject.last

    async def after_a_while(stored: StoredSubject, sequence: int) -> tuple[list[Stored], bool]:
        nonlocal looks
        looks += 1
        return await after(stored, sequence) if looks > 2 else ([], False)

    async def last_after_a_while(stored: StoredSubject) -> Stored | None:
        found = await last(stored)
        return None if looks <= 2 and found and b"stream_end" in found.data else found

    # A replica of the events that is behind one of the results.
    monkeypatch.setattr(StoredSubject, "after", after_a_while)
    monkeypatch.setattr(StoredSubject, "last", last_after_a_while)
    client = await connect(settings=FAST)

    assert await asyncio.wait_for(collect(client.attach(message_id)), 10) == run


async def test_a_request_that_was_refused_before_its_first_event_raises_the_reason(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    message_id, reading, _ = await started(client, worker, tasks)
    await worker.publish_result(
        RunResult(
            message_id=message_id,
            agent="support",
            status="failed",
            error=RunFailure(code="invalid_request", message="prompt: too strange", field="prompt"),
        )
    )

    with pytest.raises(InvalidRequest) as raised:
        await asyncio.wait_for(reading, 5)
    assert raised.value.field == "prompt"


async def test_a_slow_consumers_own_time_does_not_count_as_silence(
    client: RunClient, worker: ScriptedWorker, script: Script
) -> None:
    message_id = new_message_id()
    run = script(message_id, 3)
    await worker.publish(message_id, run[:2])
    reading = client.attach(message_id, timeout=0.4)
    await anext(reading)
    before = asyncio.get_running_loop().time()
    await eventually(lambda: asyncio.get_running_loop().time() > before + 0.5)

    assert isinstance(await anext(reading), TextChunk)
    with pytest.raises(ClientTimeout):
        await anext(reading)
