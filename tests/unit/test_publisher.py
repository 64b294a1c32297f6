"""What an event publisher owes the run that emits to it, where waits are cancelled."""

import asyncio

from nats.aio.client import Client

from hayrunner.serving.connection import Link
from hayrunner.serving.publisher import EventPublisher
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.events import TextChunk, ToolCallStart
from hayrunner_contracts.testing import eventually


class AwayClient(Client):
    """A client whose connection comes and goes when the test says so: no bytes leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = True
        self.waits: asyncio.Event | None = None
        self.sent: list[bytes] = []

    @property
    def is_connected(self) -> bool:
        return self.up

    @property
    def max_payload(self) -> int:
        return 1_000_000

    async def take(self, subject: str, data: bytes) -> None:
        self.sent.append(data)
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
