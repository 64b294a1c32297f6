"""A model's server that costs next to nothing: chat completions from bytes made beforehand.

A process of its own. The last message says what to answer, see `plan.prompt_of`: chunks at 50 a
second, or all at once, and before that a number of tool calls. The content of a chunk is the moment
it was handed to the socket, by the monotonic clock, which is one for all processes of a machine;
the rest is as long as what OpenAI sends. It speaks as much HTTP/1.1 as the two clients need: a body
with its length, an answer in chunked encoding, connections kept.

Prints its address, ends when its standard input closes.
"""

import asyncio
import gc
import re
import sys
import time
from typing import cast

import uvloop

from plan import PROMPT
from wheel import Wheel

__all__ = ["text_event"]

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_CHUNK = (
    b'{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion.chunk",'
    b'"created":1741569952,"model":"bench-1","service_tier":"default",'
    b'"system_fingerprint":"fp_44709d6fcb","choices":[{"index":0,"delta":%s,"logprobs":null,'
    b'"finish_reason":%s}],"usage":%s}'
)
_USAGE = b'{"prompt_tokens":20,"completion_tokens":500,"total_tokens":520}'
_TOOL_RESULT = re.compile(rb'"role": ?"tool"')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_BURST_CHUNKS = 10
"""Chunks per write in a burst: about what one network packet carries, twice."""


def text_event() -> bytes:
    """One chunk of text as a server-sent event, as the provider sends it."""
    return b"data: %s\n\n" % (_CHUNK % (b'{"content":"t%018d"}' % 0, b"null", b"null"))


def _frame(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


def _data(payload: bytes) -> bytes:
    return _frame(b"data: %s\n\n" % payload)


_OPENER = _data(_CHUNK % (b'{"role":"assistant","content":""}', b"null", b"null"))
_TEXT = _frame(text_event())
_BEFORE, _AFTER = _TEXT.split(b"%018d" % 0)


def _end(reason: bytes) -> bytes:
    return (
        _data(_CHUNK % (b"{}", b'"%s"' % reason, b"null"))
        + _data(b'{"id":"chatcmpl-1","model":"bench-1","choices":[],"usage":%s}' % _USAGE)
        + _data(b"[DONE]")
        + b"0\r\n\r\n"
    )


_END = _end(b"stop")


def _call(number: int) -> bytes:
    """The whole answer that calls the tool."""
    call = b'{"index":0,"id":"call_%d","type":"function",' % number
    call += b'"function":{"name":"order_status","arguments":"{\\"order\\": %d}"}}' % number
    delta = b'{"role":"assistant","content":null,"tool_calls":[%s]}' % call
    return _data(_CHUNK % (delta, b"null", b"null")) + _end(b"tool_calls")


def _text() -> bytes:
    return b"%s%018d%s" % (_BEFORE, time.monotonic_ns(), _AFTER)


class _Connection(asyncio.Protocol):
    """One connection: a request, its stream, and the next request."""

    def __init__(self, wheel: "Wheel[_Connection]") -> None:
        self._wheel = wheel
        self._received = b""
        self._left = 0
        self._paused = False
        self._bursting = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._left = 0
        self._wheel.remove(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or length is None or len(body) < int(length[1]):
            return
        self._received = b""
        asked = PROMPT.search(body)
        if asked is None:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            return
        answered = len(_TOOL_RESULT.findall(body)) if asked[3] else 0
        if answered < int(asked[3] or 0):
            self._transport.write(_HEAD + _call(answered))
            return
        self._left = int(asked[2])
        self._transport.write(_HEAD + _OPENER)
        self._bursting = asked[1] == b"burst"
        if self._bursting:
            self._loop.call_soon(self._burst)
        else:
            self._wheel.add(self)

    def tick(self) -> None:
        """One chunk."""
        self._left -= 1
        self._transport.write(_text())
        if self._left <= 0:
            self._wheel.remove(self)
            self._transport.write(_END)

    def _burst(self) -> None:
        """A few chunks, then the other connections' turn, for as long as the socket takes them."""
        if self._left <= 0 or self._paused:
            return
        count = min(_BURST_CHUNKS, self._left)
        self._left -= count
        self._transport.write(b"".join([_text() for _ in range(count)]))
        if self._left <= 0:
            self._transport.write(_END)
        else:
            self._loop.call_soon(self._burst)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._bursting:
            self._loop.call_soon(self._burst)


async def _main() -> None:
    wheel: Wheel[_Connection] = Wheel()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(wheel), "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    gc.freeze()
    gc.disable()

    async def turn() -> None:
        async for due in wheel.due():
            for connection in due:
                connection.tick()

    turning = asyncio.create_task(turn())
    await loop.run_in_executor(None, sys.stdin.read)
    turning.cancel()


if __name__ == "__main__":
    uvloop.run(_main())
