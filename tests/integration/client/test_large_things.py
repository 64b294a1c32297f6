"""Messages that refer to their content: the client resolves them, or says why it cannot."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.aio.msg import Msg
from tests.integration.client.conftest import NatsServer, ScriptedWorker

from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.client import NotProvisioned, ReadSettings, RunClient
from hayrunner_contracts.codec import RequestLimits, decode_request, encode
from hayrunner_contracts.errors import ClientTimeout, StorageFailed
from hayrunner_contracts.events import StreamEnd, StreamEvent, TextChunk, ToolOutput
from hayrunner_contracts.following import Event
from hayrunner_contracts.headers import BLOB, BLOB_DIGEST
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.references import (
    BlobReference,
    digest_of,
    event_stub,
    new_blob_name,
    result_stub,
)
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import AGENT_REQUESTS, ask, events, result

LARGE = "x" * 2_000_000


def output(seq: int, message_id: str = "") -> ToolOutput:
    return ToolOutput(seq=seq, tool_call_id=f"c{seq}", tool_output=f"{message_id}{LARGE}")


async def put(worker: ScriptedWorker, message_id: str, content: Any) -> BlobReference:
    name = new_blob_name("default", message_id, "event.1")
    return await BlobStore(worker.connection).put(name, encode(content))


async def publish(
    worker: ScriptedWorker,
    message_id: str,
    event: StreamEvent,
    headers: dict[str, str] | None = None,
    *,
    live: bool = True,
) -> None:
    """An event, by its stub where there are headers."""
    subject = events("default", message_id)
    if not live:
        subject = subject.replace("runs.", "missed.", 1)
    body = encode(event if headers is None else event_stub(event))
    await worker.connection.publish(subject, body, headers=headers)
    await worker.connection.flush()


async def stored_run(worker: ScriptedWorker, large: dict[str, str]) -> str:
    """A run of four events, the second of which has these headers; its id."""
    message_id = new_message_id()
    await publish(worker, message_id, TextChunk(seq=1, content="a"))
    await publish(worker, message_id, output(2), large)
    await publish(worker, message_id, TextChunk(seq=3, content="b"))
    await publish(worker, message_id, StreamEnd(seq=4))
    return message_id


async def test_large_requests_are_sent_as_stubs_with_their_content_stored(
    client: RunClient, worker: ScriptedWorker, tasks: Callable[[Any], "asyncio.Task[Any]"]
) -> None:
    run = await client.submit("support", LARGE, headers={"traceparent": "00-1"})
    tasks(client.run("support", LARGE, timeout=5))
    stream = client.stream("support", LARGE, timeout=5)
    tasks(anext(stream))
    pull = await worker.jetstream.pull_subscribe_bind(
        stream=AGENT_REQUESTS, consumer="default~support"
    )
    messages: list[Msg] = []
    while len(messages) < 3:
        messages += await pull.fetch(1, timeout=10)

    first = messages[0].headers or {}
    assert json.loads(messages[0].data) == {"message_id": run.message_id}
    assert (first["Nats-Msg-Id"], first["traceparent"]) == (run.message_id, "00-1")
    for message in messages:
        headers = message.headers or {}
        data = await BlobStore(worker.connection).get(
            headers[BLOB], digest=headers[BLOB_DIGEST], max_bytes=10_000_000
        )
        found = json.loads(data)
        assert found["prompt"] == LARGE
        assert found["message_id"] == json.loads(message.data)["message_id"]
        assert headers[BLOB].startswith(f"default.{found['message_id']}.request.")


async def test_a_request_that_every_worker_takes_is_sent_whole(
    client: RunClient, worker: ScriptedWorker
) -> None:
    await client.submit("support", "x" * 800_000)
    await client.submit("support", "x" * 950_000)
    first = await worker.jetstream.get_msg(AGENT_REQUESTS, 1)
    second = await worker.jetstream.get_msg(AGENT_REQUESTS, 2)
    assert (len(first.data or b"") > 800_000, len(second.data or b"") < 100) == (True, True)


async def test_the_same_large_request_twice_is_one(
    client: RunClient, worker: ScriptedWorker
) -> None:
    message_id = new_message_id()
    await client.submit("support", LARGE, message_id=message_id)
    await client.submit("support", LARGE, message_id=message_id)
    assert (await worker.jetstream.stream_info(AGENT_REQUESTS)).state.messages == 1


async def test_a_large_event_comes_in_its_turn_however_it_is_missed_and_repeated(
    client: RunClient, worker: ScriptedWorker, tasks: Callable[[Any], "asyncio.Task[Any]"]
) -> None:
    message_id = new_message_id()

    async def read() -> list[Event]:
        return [event async for event in client.attach(message_id, timeout=10)]

    reading = tasks(read())
    large = [output(seq) for seq in (2, 3, 5)]
    refs = {e.seq: (await put(worker, message_id, e)).headers for e in large}
    await publish(worker, message_id, TextChunk(seq=1, content="a"))
    await publish(worker, message_id, large[1], refs[3])
    await publish(worker, message_id, large[2], refs[5])
    await publish(worker, message_id, TextChunk(seq=4, content="b"))
    await publish(worker, message_id, large[0], refs[2], live=False)
    await publish(worker, message_id, large[0], refs[2], live=False)
    await publish(worker, message_id, large[1], refs[3])
    await publish(worker, message_id, StreamEnd(seq=6))

    expected = [
        TextChunk(seq=1, content="a"),
        *large[:2],
        TextChunk(seq=4, content="b"),
        large[2],
        StreamEnd(seq=6),
    ]
    assert await reading == expected
    assert await read() == expected


async def test_a_reader_that_reconnects_again_and_again_reads_the_same(
    server_of: Callable[..., NatsServer],
    worker_on: Callable[..., Awaitable[ScriptedWorker]],
) -> None:
    server = server_of()
    await server.start()
    worker = await worker_on(server)
    await worker.create_streams()
    message_id = new_message_id()
    await publish(worker, message_id, TextChunk(seq=1, content="a"))
    for seq in range(2, 12):
        reference = await put(worker, message_id, output(seq))
        await publish(worker, message_id, output(seq), reference.headers)
    await publish(worker, message_id, StreamEnd(seq=12))

    seen: list[Event] = []
    while len(seen) < 12:
        async with await RunClient.connect(server.url) as client:
            reading = client.attach(message_id, after=len(seen))
            seen += [await anext(reading), await anext(reading)]
            await reading.aclose()
    assert seen[1:-1] == [output(seq) for seq in range(2, 12)]


async def test_content_is_waited_for_while_the_server_is_away(
    server_of: Callable[..., NatsServer],
    worker_on: Callable[..., Awaitable[ScriptedWorker]],
    tasks: Callable[[Any], "asyncio.Task[Any]"],
) -> None:
    server = server_of()
    await server.start()
    worker = await worker_on(server)
    await worker.create_streams()
    reference = await put(worker, "m1", output(2))
    message_id = await stored_run(worker, reference.headers)
    settings = ReadSettings(idle_check_s=0.1)
    async with await RunClient.connect(
        server.url, settings=settings, reconnect_time_wait=0.05
    ) as client:
        reading = client.attach(message_id, timeout=20)
        assert await anext(reading) == TextChunk(seq=1, content="a")
        server.stop()
        whole = tasks(anext(reading))
        await asyncio.wait([whole], timeout=0.5)
        assert not whole.done()
        await server.start()
        assert await whole == output(2)
        await reading.aclose()


async def test_content_that_does_not_come_ends_in_the_callers_timeout(
    client: RunClient, worker: ScriptedWorker, server: NatsServer
) -> None:
    reference = await put(worker, "m1", output(2))
    message_id = await stored_run(worker, reference.headers)
    reading = client.attach(message_id, timeout=0.5)
    await anext(reading)
    server.stop()
    with pytest.raises(ClientTimeout, match="event 2"):
        await asyncio.wait_for(anext(reading), 5)


async def broken(worker: ScriptedWorker, how: str) -> dict[str, str]:
    reference = await put(worker, "m1", output(2))
    text = await put(worker, "m1", TextChunk(seq=2, content="a"))
    nothing = await put(worker, "m1", [1, 2])
    return {
        "name": {**reference.headers, BLOB: "default.>"},
        "namespace": {**reference.headers, BLOB: reference.name.replace("default", "other")},
        "digest": {BLOB: reference.name},
        "missing": {**reference.headers, BLOB: new_blob_name("default", "m1", "event.2")},
        "changed": {**reference.headers, BLOB_DIGEST: digest_of(b"")},
        "other type": text.headers,
        "no event": nothing.headers,
    }[how]


HOWS = ["name", "namespace", "digest", "missing", "changed", "other type"]


async def test_an_event_that_is_told_anew_has_the_number_of_its_message(
    client: RunClient, worker: ScriptedWorker
) -> None:
    reference = await put(worker, "m1", output(7))
    message_id = await stored_run(worker, reference.headers)
    found = [event async for event in client.attach(message_id)]
    assert [event.seq for event in found] == [1, 2, 3, 4]
    assert found[1] == ToolOutput(seq=2, tool_call_id="c7", tool_output=LARGE)


@pytest.mark.parametrize("how", [*HOWS, "no event"])
async def test_a_reference_that_cannot_be_resolved_is_an_error_at_its_turn(
    client: RunClient, worker: ScriptedWorker, how: str
) -> None:
    message_id = await stored_run(worker, await broken(worker, how))
    reading = client.attach(message_id)
    assert await anext(reading) == TextChunk(seq=1, content="a")
    with pytest.raises(StorageFailed, match="event 2") as caught:
        await asyncio.wait_for(anext(reading), 10)
    assert not caught.value.retryable
    rest = [event async for event in client.attach(message_id, after=2)]
    assert rest == [TextChunk(seq=3, content="b"), StreamEnd(seq=4)]


async def test_more_than_a_client_reads_is_not_read(
    connect: Callable[..., Awaitable[RunClient]], worker: ScriptedWorker
) -> None:
    client = await connect(settings=ReadSettings(max_blob_bytes=1_000_000))
    reference = await put(worker, "m1", output(2))
    message_id = await stored_run(worker, reference.headers)
    reading = client.attach(message_id)
    await anext(reading)
    with pytest.raises(StorageFailed, match="at most 1000000"):
        await anext(reading)


@pytest.mark.parametrize("late", [True, False])
async def test_a_large_result_is_resolved_live_and_late(
    client: RunClient,
    worker: ScriptedWorker,
    tasks: Callable[[Any], "asyncio.Task[Any]"],
    late: bool,
) -> None:
    whole = RunResult(
        message_id=new_message_id(), agent="support", status="completed", answer={"rows": LARGE}
    )

    async def store() -> None:
        reference = await put(worker, whole.message_id, whole)
        subject = result("default", whole.message_id)
        await worker.jetstream.publish(
            subject, encode(result_stub(whole)), headers=reference.headers
        )

    if late:
        await store()
        assert await client.result(whole.message_id) == whole
    else:
        reading = tasks(client.result(whole.message_id, timeout=10))
        await asyncio.wait([reading], timeout=0.2)
        await store()
        assert await reading == whole


async def test_a_stream_without_direct_get_has_its_references_too(
    bare_worker: ScriptedWorker, connect: Callable[..., Awaitable[RunClient]]
) -> None:
    await bare_worker.jetstream.create_object_store("RUN_BLOBS")
    await bare_worker.create_events_stream(allow_direct=False)
    client = await connect()
    reference = await put(bare_worker, "m1", output(2))
    message_id = await stored_run(bare_worker, reference.headers)
    found = [event async for event in client.attach(message_id)]
    assert found[1] == output(2)


async def test_a_direct_request_and_what_comes_back_may_be_large(
    client: RunClient, worker: ScriptedWorker
) -> None:
    async def reply(message: Msg) -> None:
        headers = message.headers or {}
        data = await BlobStore(worker.connection).get(headers[BLOB], max_bytes=10_000_000)
        request = decode_request(data, limits=RequestLimits(max_bytes=10_000_000))
        assert request.message_id is not None
        if request.mode == "answer":
            whole = RunResult(
                message_id=request.message_id,
                agent="support",
                status="completed",
                answer=request.prompt,
            )
            reference = await put(worker, request.message_id, whole)
            await worker.connection.publish(
                message.reply, encode(result_stub(whole)), headers=reference.headers
            )
            return
        event = output(1)
        reference = await put(worker, request.message_id, event)
        await worker.connection.publish(
            message.reply, encode(event_stub(event)), headers=reference.headers
        )
        # Not `respond`: it sends the request's headers back.
        await worker.connection.publish(message.reply, encode(StreamEnd(seq=2)))

    await worker.connection.subscribe(ask("default", "support"), cb=reply)
    await worker.connection.flush()
    assert (await client.ask("support", LARGE)).answer == LARGE
    found = [event async for event in client.ask_stream("support", LARGE)]
    assert found == [output(1), StreamEnd(seq=2)]


async def test_without_a_bucket_a_large_request_is_refused_at_once(
    client: RunClient, worker: ScriptedWorker
) -> None:
    await worker.jetstream.delete_object_store("RUN_BLOBS")
    for call in (client.submit("support", LARGE), client.ask("support", LARGE)):
        with pytest.raises(NotProvisioned, match="RUN_BLOBS"):
            await asyncio.wait_for(call, 10)
    assert (await worker.jetstream.stream_info(AGENT_REQUESTS)).state.messages == 0
