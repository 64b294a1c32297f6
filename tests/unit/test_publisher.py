"""What an event publisher owes the run that emits to it, where waits are cancelled."""

import asyncio
from typing import cast

import nats.errors
import pytest
from nats.aio.client import Client

from hayrunner.serving.blobs import RunBlobs
from hayrunner.serving.connection import Link
from hayrunner.serving.publisher import EventPublisher
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.errors import PayloadTooLarge, StorageFailed
from hayrunner_contracts.events import Error, TextChunk, ToolCallStart, ToolOutput
from hayrunner_contracts.references import BlobReference
from hayrunner_contracts.testing import eventually


class AwayClient(Client):
    """A client whose connection comes and goes when the test says so: no bytes leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = True
        self.waits: asyncio.Event | None = None
        self.sent: list[bytes] = []
        self.headers: list[dict[str, str] | None] = []

    @property
    def is_connected(self) -> bool:
        return self.up

    @property
    def max_payload(self) -> int:
        return 1_000_000

    async def take(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.sent.append(data)
        self.headers.append(headers)
        if self.waits is not None:
            await self.waits.wait()


def publisher_over(client: AwayClient) -> EventPublisher:
    return EventPublisher(client, Link(), "runs.x.events", send=client.take)


async def test_a_publish_whose_wait_is_cancelled_has_used_its_number() -> None:
    client = AwayClient()
    client.waits = asyncio.Event()
    publisher = publisher_over(client)
    emitting = asyncio.ensure_future(publisher.emit(TextChunk(content="a")))
    await eventually(lambda: client.sent)

    emitting.cancel()
    await asyncio.wait([emitting])
    client.waits = None
    await publisher.emit(TextChunk(content="b"))

    assert [decode_event(data).seq for data in client.sent] == [1, 2]


async def test_an_emit_that_is_cancelled_while_it_waits_for_room_loses_nothing() -> None:
    client = AwayClient()
    client.up = False
    publisher = publisher_over(client)
    count = 0
    emitting = asyncio.ensure_future(asyncio.sleep(0))
    while emitting.done():
        count += 1
        event = ToolCallStart(tool_call_id=f"c{count}", tool_name="add")
        emitting = asyncio.ensure_future(publisher.emit(event))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    emitting.cancel()
    await asyncio.wait([emitting])

    client.up = True
    await publisher.flush()

    assert len(client.sent) == count
    assert [decode_event(data).seq for data in client.sent] == list(range(1, count + 1))


class Shelf:
    """Where content is put: as slowly, and as unreliably, as the test says."""

    def __init__(self) -> None:
        self.max_bytes = 5_000_000
        self.failures = 0
        self.opened = asyncio.Event()
        self.opened.set()
        self.contents: dict[str, bytes] = {}
        self.tries = 0

    async def put(self, what: str, data: bytes) -> BlobReference:
        self.tries += 1
        await self.opened.wait()
        if self.failures:
            self.failures -= 1
            raise nats.errors.TimeoutError
        self.contents[what] = data
        return BlobReference(f"default.m.{what}.0", "SHA-256=")


def publisher_with(client: AwayClient, link: Link, shelf: Shelf) -> EventPublisher:
    return EventPublisher(client, link, "x", send=client.take, blobs=cast(RunBlobs, shelf))


def large(call_id: str) -> ToolOutput:
    return ToolOutput(tool_call_id=call_id, tool_output="x" * 1_500_000)


async def test_events_wait_while_the_content_of_one_is_put_away() -> None:
    client, shelf = AwayClient(), Shelf()
    publisher = publisher_with(client, Link(), shelf)
    shelf.opened.clear()
    await publisher.emit(TextChunk(content="a"))
    await publisher.emit(large("c1"))
    await publisher.emit(TextChunk(content="b"))
    await eventually(lambda: shelf.tries)
    assert len(client.sent) == 1

    shelf.opened.set()
    await publisher.flush()

    sent = [decode_event(data) for data in client.sent]
    assert sent == [
        TextChunk(seq=1, content="a"),
        ToolOutput(seq=2, tool_call_id="c1", tool_output=""),
        TextChunk(seq=3, content="b"),
    ]
    assert client.headers == [None, BlobReference("default.m.event.2.0", "SHA-256=").headers, None]
    whole = decode_event(shelf.contents["event.2"])
    assert isinstance(whole, ToolOutput)
    assert (whole.seq, len(whole.tool_output)) == (2, 1_500_000)


async def test_an_outage_while_content_is_put_away_asks_again_and_loses_nothing() -> None:
    client, shelf, link = AwayClient(), Shelf(), Link()
    asked = 0

    async def may_go_on() -> bool:
        nonlocal asked
        asked += 1
        return True

    publisher = EventPublisher(
        client,
        link,
        "x",
        send=client.take,
        blobs=cast(RunBlobs, shelf),
        may_go_on=may_go_on,
    )
    shelf.opened.clear()
    await publisher.emit(large("c1"))
    await eventually(lambda: shelf.tries)
    await link.on_disconnected()
    shelf.opened.set()
    await publisher.emit(TextChunk(content="b"))
    await publisher.flush()

    assert asked == 1
    assert [decode_event(data).seq for data in client.sent] == [1, 2]


async def test_a_run_that_is_not_ours_any_more_publishes_no_stub() -> None:
    client, shelf, link = AwayClient(), Shelf(), Link()

    async def never() -> bool:
        return False

    publisher = EventPublisher(
        client, link, "x", send=client.take, blobs=cast(RunBlobs, shelf), may_go_on=never
    )
    shelf.opened.clear()
    await publisher.emit(large("c1"))
    await eventually(lambda: shelf.tries)
    await link.on_disconnected()
    shelf.opened.set()
    await publisher.flush()

    assert client.sent == []


async def test_content_that_the_store_does_not_take_fails_the_run_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hayrunner.serving.publisher.PAUSE_S", 0)
    monkeypatch.setattr("hayrunner.serving.publisher.PATIENCE_S", 0.05)
    client, shelf = AwayClient(), Shelf()
    shelf.failures = 1_000_000
    publisher = publisher_with(client, Link(), shelf)
    await publisher.emit(large("c1"))
    with pytest.raises(StorageFailed):
        await publisher.flush()
    assert shelf.tries > 1
    # Told once: what a failed run has to say goes out.
    await publisher.emit(Error(error_code="storage_error", error_message="…"))
    assert [decode_event(data).seq for data in client.sent] == [1]


async def test_a_held_event_that_is_too_large_for_anything_is_told_and_left_out() -> None:
    client, shelf = AwayClient(), Shelf()
    shelf.max_bytes = 1_000_000
    publisher = publisher_with(client, Link(), shelf)
    client.up = False
    await publisher.emit(large("c1"))
    client.up = True
    with pytest.raises(PayloadTooLarge):
        await publisher.flush()
    await publisher.emit(TextChunk(content="b"))
    assert [decode_event(data).seq for data in client.sent] == [1]


async def test_closing_while_content_is_put_away_publishes_nothing() -> None:
    client, shelf = AwayClient(), Shelf()
    publisher = publisher_with(client, Link(), shelf)
    shelf.opened.clear()
    await publisher.emit(large("c1"))
    await eventually(lambda: shelf.tries)
    await publisher.close()
    shelf.opened.set()
    assert client.sent == []
    assert shelf.contents == {}


async def test_large_events_of_a_held_run_count_for_its_bound() -> None:
    client, shelf = AwayClient(), Shelf()
    client.up = False
    publisher = publisher_with(client, Link(), shelf)
    emitting = [asyncio.ensure_future(publisher.emit(large(f"c{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in emitting[1:])
    client.up = True
    await asyncio.gather(*emitting)
    await publisher.flush()
    assert [decode_event(data).seq for data in client.sent] == [1, 2, 3]
