"""Lines from standard input, without a thread: a thread in `readline` would hold the process up
after Ctrl-C, and a blocked loop would lose the connection while somebody thinks."""

import asyncio
import os
import sys

__all__ = ["Lines"]

_CHUNK = 65_536


class Lines:
    """Reads one line after the other. `prompt` is shown before each."""

    def __init__(self, prompt: str = "") -> None:
        self._prompt = prompt
        self._number = sys.stdin.fileno()
        self._buffer = b""
        self._ended = False

    async def read(self) -> str | None:
        """The next line without its end, None at the end of input."""
        if self._prompt:
            print(self._prompt, end="", flush=True)
        while b"\n" not in self._buffer and not self._ended:
            chunk = await self._chunk()
            self._ended = not chunk
            self._buffer += chunk
        if self._ended and not self._buffer:
            if self._prompt:
                print(flush=True)
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", errors="replace")

    async def _chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._number, lambda: readable.done() or readable.set_result(None))
        except PermissionError:
            # A file: it is always readable, so there is nothing to wait for.
            return os.read(self._number, _CHUNK)
        try:
            await readable
        finally:
            loop.remove_reader(self._number)
        return os.read(self._number, _CHUNK)
