"""The load and the consumer: starts streams, and notes when each chunk arrives.

A process of its own, and as lean as Python can be: bytes are read by an `asyncio.Protocol` on
uvloop and searched for the moment that the provider wrote into the chunk; JSON is not decoded.
From NATS it reads all runs on one connection with one wildcard subscription, from an HTTP server
it reads one connection per stream. A chunk has arrived when the read that holds it returned.

Takes a `Plan` as JSON, prints one line when the window opens, one when it closes, and a line
with what was measured.
"""

import asyncio
import gc
import re
import sys
import time
import uuid
from array import array
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from plan import Measured, Plan, prompt_of

_STAMP = re.compile(rb"t(\d{18})")
_TEXT = b'{"type":"text_chunk"'
_OVER = b'{"type":"message_end"'
_END = b'{"type":"stream_end"'


class Tally:
    """What came, of which stream, how late."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._asked: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._latencies = array("q")
        self._first_us: list[int] = []
        self._ended: set[str] = set()
        self._over: dict[str, int] = {}
        self._run_us: list[int] = []
        self._end_us: list[int] = []
        self.said = 0
        self._chunks = 0
        self._events = 0
        self.opened = 0
        self.closed = 0
        self.all_ended = asyncio.Event()

    def ask(self, stream: str) -> None:
        self._asked[stream] = time.monotonic_ns()
        self._counts[stream] = 0

    def take(self, stream: str, stamps: list[bytes], now: int) -> None:
        """One event, with one chunk or, where text was merged, several."""
        before = self._counts.get(stream)
        if before is None or not stamps:
            return
        self._counts[stream] = before + len(stamps)
        if not before:
            self._first_us.append((now - self._asked[stream]) // 1000)
        if self.opened and not self.closed:
            self._chunks += len(stamps)
            self._events += 1
            for stamp in stamps:
                self._latencies.append(now - int(stamp))

    def over(self, stream: str, now: int) -> None:
        """The run has said everything; its end is still to be stored."""
        self._over[stream] = now

    def end(self, stream: str, now: int = 0) -> None:
        if stream in self._counts:
            self._ended.add(stream)
            if stream in self._over:
                self._run_us.append((now - self._asked[stream]) // 1000)
                self._end_us.append((now - self._over[stream]) // 1000)
            if len(self._ended) == self._plan.streams:
                self.all_ended.set()

    def result(self) -> Measured:
        plan = self._plan
        ended = [self._counts[stream] for stream in self._ended]
        return Measured(
            chunks=self._chunks,
            events=self._events,
            window_s=(self.closed - self.opened) / 1e9,
            latencies_us=[latency // 1000 for latency in self._latencies],
            first_event_us=self._first_us,
            missing=sum(max(0, plan.chunks - count) for count in ended),
            unfinished=plan.streams - len(ended),
            doubled=sum(max(0, count - plan.chunks) for count in ended),
            said=self.said,
            run_us=self._run_us,
            end_us=self._end_us,
        )


class NatsReader(asyncio.Protocol):
    """As much of the NATS protocol as it takes: subscribe, publish, read messages."""

    def __init__(self, tally: Tally, plan: Plan) -> None:
        self._tally = tally
        self._plan = plan
        self._rest = b""
        self.ready = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
            b"SUB %s 1\r\nPING\r\n" % self._plan.where.events.encode()
        )

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._rest + data
        position = 0
        while (line_end := data.find(b"\r\n", position)) >= 0:
            words = data[position:line_end].split(b" ")
            position_after = line_end + 2
            if words[0] in (b"MSG", b"HMSG"):
                size = int(words[-1])
                if len(data) < position_after + size + 2:
                    break
                # Headers, which only the acked first and last event have, are searched over.
                headers = int(words[-2]) if words[0] == b"HMSG" else 0
                payload = data[position_after + headers : position_after + size]
                self._message(words[1], payload, now)
                position_after += size + 2
            elif words[0] == b"PING":
                self._transport.write(b"PONG\r\n")
            elif words[0] == b"PONG":
                self.ready.set()
            position = position_after
        self._rest = data[position:]

    def _message(self, subject: bytes, payload: bytes, now: int) -> None:
        stream = subject.split(b".")[-2].decode()
        self._tally.said += 1
        if payload.startswith(_TEXT):
            self._tally.take(stream, _STAMP.findall(payload), now)
        elif payload.startswith(_END):
            self._tally.end(stream, now)
        elif payload.startswith(_OVER):
            self._tally.over(stream, now)

    def ask(self) -> None:
        """Publish one request: plain JSON, as any client would."""
        stream = str(uuid.uuid4())
        body = msgspec.json.encode({"message_id": stream, "prompt": prompt_of(self._plan)})
        self._tally.ask(stream)
        self._transport.write(
            b"PUB %s %d\r\n%s\r\n" % (self._plan.where.requests.encode(), len(body), body)
        )


class SseReader(asyncio.Protocol):
    """One streamed chat completion."""

    def __init__(self, tally: Tally, plan: Plan) -> None:
        self._tally = tally
        self._plan = plan
        self._stream = str(uuid.uuid4())
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        message = {"role": "user", "content": prompt_of(self._plan)}
        body = msgspec.json.encode(
            {"model": self._plan.where.requests, "messages": [message], "stream": True}
        )
        self._tally.ask(self._stream)
        cast("asyncio.Transport", transport).write(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (self._plan.where.events.encode(), len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._rest + data
        stamps: list[bytes] = []
        after = 0
        for found in _STAMP.finditer(data):
            stamps.append(found[1])
            after = found.end()
        # Enough for a stamp that the next read completes.
        self._rest = data[max(after, len(data) - 19) :]
        for stamp in stamps:
            self._tally.take(self._stream, [stamp], now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.end(self._stream)


async def _ask_all(plan: Plan, tally: Tally) -> None:
    """Start the streams, evenly over the ramp."""
    loop = asyncio.get_running_loop()
    url = urlsplit(plan.where.address)
    host, port = url.hostname or "127.0.0.1", url.port or 80
    reader: NatsReader | None = None
    if plan.where.way == "nats":
        _, reader = await loop.create_connection(lambda: NatsReader(tally, plan), host, port)
        await reader.ready.wait()
    if plan.burst or plan.whole:
        _mark(tally, "opened")
    began = time.monotonic()
    for number in range(plan.streams):
        wait = began + plan.ramp_s * number / plan.streams - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if reader is not None:
            reader.ask()
        else:
            await loop.create_connection(lambda: SseReader(tally, plan), host, port)


def _mark(tally: Tally, name: str) -> None:
    setattr(tally, name, time.monotonic_ns())
    print(name, flush=True)


async def _main(plan: Plan) -> None:
    tally = Tally(plan)
    gc.freeze()
    gc.disable()
    await _ask_all(plan, tally)
    if not (plan.burst or plan.whole):
        await asyncio.sleep(plan.settle_s)
        _mark(tally, "opened")
        await asyncio.sleep(plan.measure_s)
        _mark(tally, "closed")
    try:
        await asyncio.wait_for(tally.all_ended.wait(), plan.grace_s)
    except TimeoutError:
        pass  # what did not end is in the result
    if plan.burst or plan.whole:
        _mark(tally, "closed")
    sys.stdout.buffer.write(msgspec.json.encode(tally.result()) + b"\n")
    sys.stdout.buffer.flush()
    # Until it is ended: what it cost is looked up after it said that the window closed.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_main(msgspec.json.decode(sys.argv[1], type=Plan)))
