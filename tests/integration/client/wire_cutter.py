"""A TCP proxy in front of a server, whose connections a test cuts."""

import asyncio
import contextlib
from typing import Self

__all__ = ["WireCutter"]

_CHUNK = 4_096


class WireCutter:
    """Passes bytes on; cuts every connection when told to, or after so many bytes of the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._cut_after: list[int] = []
        self._own_port = 0
        self.cuts = 0

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut(stay_away=True)
        for pipe in list(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._own_port}"

    def cut(self, *, stay_away: bool = False) -> None:
        """Cut every connection; `stay_away`: and take no new one until `mend`."""
        if stay_away and self._server is not None:
            self._server.close()
            self._server = None
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def mend(self) -> None:
        """Take connections, again or from the beginning."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._own_port)
        self._own_port = self._server.sockets[0].getsockname()[1]

    def cut_after(self, counts: list[int]) -> None:
        """Cut after the server sent the first so many bytes, then the second so many more, …"""
        self._cut_after = list(counts)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for task in (
            asyncio.create_task(self._pipe(reader, back, counted=False)),
            asyncio.create_task(self._pipe(there, writer, counted=True)),
        ):
            self._pipes.add(task)
            task.add_done_callback(self._pipes.discard)

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        # uvloop has a RuntimeError for a connection that is closed.
        with contextlib.suppress(OSError, RuntimeError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
                if counted and self._cut_after:
                    self._cut_after[0] -= len(data)
                    if self._cut_after[0] <= 0:
                        del self._cut_after[0]
                        self.cut()
        writer.transport.abort()
