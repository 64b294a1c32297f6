"""The floor: nats-py publishing to a subscriber, with nothing before it.

A process of its own. A request on `floor.requests` starts a stream on `floor.{id}.events`: the
same events at the same rate as a run has, stamped right before `publish`, outside every
JetStream stream. Takes the server's address, prints a line when it listens.
"""

import asyncio
import sys
import time

import msgspec
import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from hayrunner_contracts.codec import encode
from hayrunner_contracts.events import StreamEnd, TextChunk
from plan import PROMPT
from wheel import Wheel

# As the worker's publisher does it: a loop of publishes never yields by itself.
_BEFORE_YIELD = 32


class _Request(msgspec.Struct):
    message_id: str
    prompt: str


class _Stream:
    def __init__(self, nc: Client, subject: str, chunks: int) -> None:
        self._nc = nc
        self._subject = subject
        self._chunks = chunks
        self._seq = 0

    async def publish(self) -> bool:
        """One event; whether more are to come."""
        self._seq += 1
        event = TextChunk(seq=self._seq, step=1, content=f"t{time.monotonic_ns():018d}")
        await self._nc.publish(self._subject, encode(event))
        if self._seq < self._chunks:
            return True
        await self._nc.publish(self._subject, encode(StreamEnd(seq=self._seq + 1)))
        return False


async def _turn(wheel: "Wheel[_Stream]") -> None:
    async for due in wheel.due():
        for stream in due:
            if not await stream.publish():
                wheel.remove(stream)


async def _burst(stream: _Stream) -> None:
    published = 1
    while await stream.publish():
        published += 1
        if published % _BEFORE_YIELD == 0:
            await asyncio.sleep(0)


async def _main(address: str) -> None:
    nc = await nats.connect(address, pending_size=8 * 1024 * 1024)
    wheel: Wheel[_Stream] = Wheel()
    bursts: set[asyncio.Task[None]] = set()

    async def start(message: Msg) -> None:
        request = msgspec.json.decode(message.data, type=_Request)
        asked = PROMPT.search(request.prompt.encode())
        assert asked is not None
        stream = _Stream(nc, f"floor.{request.message_id}.events", int(asked[2]))
        if asked[1] == b"burst":
            bursts.add(asyncio.create_task(_burst(stream)))
        else:
            wheel.add(stream)

    await nc.subscribe("floor.requests", cb=start)
    await nc.flush()
    print("ready", flush=True)
    await _turn(wheel)


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1]))
