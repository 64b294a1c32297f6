"""What it costs to turn a provider's bytes into Haystack chunks, without sockets or loops."""

import time

from hayrunner.generators.assembly import ReplyAssembler
from hayrunner.generators.sse import SseParser
from provider import text_event

__all__ = ["decode_us"]

_CHUNKS = 2_000
_ROUNDS = 7


def decode_us() -> float:
    """Microseconds from the bytes of one server-sent event to its `StreamingChunk`, one event
    per read as in a steady stream; the best of several rounds."""
    event = text_event()
    best = float("inf")
    for _ in range(_ROUNDS):
        parser, assembler = SseParser(), ReplyAssembler()
        began = time.perf_counter()
        for _ in range(_CHUNKS):
            for payload in parser.feed(event):
                assembler.feed(payload)
        best = min(best, (time.perf_counter() - began) / _CHUNKS)
    return best * 1e6
