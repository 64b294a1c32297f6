"""Three nats-servers that are one cluster, as processes on this machine."""

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats
import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError

from hayrunner.embedded import find_nats_server

__all__ = ["Cluster"]

_LIMIT_S = 30.0
_POLL_S = 0.05
_MONITOR_TIMEOUT_S = 2.0


class Cluster:
    """`async with Cluster(folder) as cluster: connect(cluster.url)`.

    Servers are numbered from 0 and called `n0`, `n1`, …. What is killed or paused comes back on
    the same ports with the same store. Stores and logs are in `folder`; a temporary one is removed
    at the end.
    """

    def __init__(self, folder: Path | None = None, *, size: int = 3) -> None:
        self.size = size
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="hayrunner-cluster-"))
        self._clients, self._routes, self._monitors = (_free_ports(size) for _ in range(3))
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._paused: set[int] = set()

    @property
    def urls(self) -> list[str]:
        """The address of each server."""
        return [f"nats://127.0.0.1:{port}" for port in self._clients]

    @property
    def url(self) -> str:
        """All addresses, as `HAYRUNNER_NATS_URL` takes them."""
        return ",".join(self.urls)

    @property
    def running(self) -> list[int]:
        """The servers that are neither killed nor paused."""
        return [i for i in range(self.size) if i in self._processes and i not in self._paused]

    # --- what may happen to a server

    async def kill(self, i: int) -> None:
        """End server `i` at once, as a crash would, paused or not."""
        process = self._processes.pop(i)
        self._paused.discard(i)
        process.kill()
        await process.wait()

    async def restart(self, i: int) -> None:
        """Start server `i` again (killing it first, if it runs); returns once it takes
        connections, which may be before it has caught up: see `settled`."""
        if i in self._processes:
            await self.kill(i)
        await self._start(i)
        await self._listening(i)

    def pause(self, i: int) -> None:
        """Stop server `i` where it is: connections stay open, and nothing is answered."""
        self._processes[i].send_signal(signal.SIGSTOP)
        self._paused.add(i)

    def resume(self, i: int) -> None:
        """Let a paused server go on."""
        self._processes[i].send_signal(signal.SIGCONT)
        self._paused.discard(i)

    # --- what may be asked

    async def connect(self, **options: Any) -> Client:
        """A connection that goes to whichever server is there, for ever."""
        given: dict[str, Any] = {
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.05,
            "error_cb": _quiet,
            **options,
        }
        return await nats.connect(self.urls, **given)

    async def leader_of(self, stream: str) -> int:
        """The server that leads a stream; waits until there is one."""
        return await self._until(lambda: self._leader_of(stream), f"a leader of {stream}")

    async def meta_leader(self) -> int:
        """The server that places streams; waits until a running one does."""
        return await self._until(self._meta_leader, "a meta leader")

    async def settled(self, *streams: str) -> None:
        """Wait until there is a meta leader and every copy of these streams is up to date."""
        await self.meta_leader()
        for stream in streams:
            await self._until(lambda stream=stream: self._current(stream), f"{stream} in step")

    async def monitor(self, i: int, path: str) -> dict[str, Any]:
        """What server `i` tells on its monitoring port, such as `/jsz`."""
        async with asyncio.timeout(_MONITOR_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._monitors[i])
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    # --- life

    async def start(self) -> None:
        """Start all, and return once they have a meta leader that knows of every server."""
        for i in range(self.size):
            await self._start(i)
        for i in range(self.size):
            await self._listening(i)
        await self._until(self._complete, "a cluster of all servers")

    async def stop(self) -> None:
        """Kill all and remove what is temporary."""
        for i in list(self._processes):
            await self.kill(i)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _start(self, i: int) -> None:
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in self._routes)
        command = [
            find_nats_server(),
            *("-a", "127.0.0.1", "-p", str(self._clients[i]), "-m", str(self._monitors[i])),
            *("-js", "-sd", str(self.folder / f"n{i}"), "-n", f"n{i}"),
            *("--cluster_name", "hayrunner", "--routes", routes),
            *("--cluster", f"nats://127.0.0.1:{self._routes[i]}"),
            *("-l", str(self.folder / f"n{i}.log")),
        ]
        self._processes[i] = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def _listening(self, i: int) -> None:
        async def listens() -> bool | None:
            if self._processes[i].returncode is not None:
                log = self.folder / f"n{i}.log"
                raise RuntimeError(f"server {i} ended: {log.read_text()[-500:]}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._clients[i])
            except OSError:
                return None
            writer.close()
            return True

        await self._until(listens, f"server {i} to listen")

    async def _complete(self) -> bool | None:
        leader = await self._meta_leader()
        if leader is None:
            return None
        cluster = (await self.monitor(leader, "/jsz")).get("meta_cluster", {})
        replicas = cluster.get("replicas") or []
        current = sum(bool(replica.get("current")) for replica in replicas)
        return True if current >= self.size - 1 else None

    async def _meta_leader(self) -> int | None:
        for i in self.running:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                leader = (await self.monitor(i, "/jsz")).get("meta_cluster", {}).get("leader")
                if leader and (number := int(leader[1:])) in self.running:
                    return number
        return None

    async def _leader_of(self, stream: str) -> int | None:
        info = await self._info(stream)
        if info is None or info.cluster is None or not info.cluster.leader:
            return None
        number = int(info.cluster.leader[1:])
        return number if number in self.running else None

    async def _current(self, stream: str) -> bool | None:
        info = await self._info(stream)
        if info is None or info.cluster is None or not info.cluster.leader:
            return None
        replicas = info.cluster.replicas or []
        if len(replicas) + 1 != (info.config.num_replicas or 1):
            return None
        return True if all(replica.current for replica in replicas) else None

    async def _info(self, stream: str) -> Any:
        """None while it cannot be had; asked of a running server, on a connection of its own."""
        for i in self.running:
            with contextlib.suppress(nats.errors.Error, APIError, OSError, TimeoutError):
                connection = await nats.connect(
                    self.urls[i], allow_reconnect=False, connect_timeout=1, error_cb=_quiet
                )
                try:
                    return await connection.jetstream().stream_info(stream)
                finally:
                    await connection.close()
        return None

    async def _until(self, ask: Any, what: str) -> Any:
        try:
            async with asyncio.timeout(_LIMIT_S):
                while True:
                    if (found := await ask()) is not None:
                        return found
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise TimeoutError(f"waited {_LIMIT_S:g} s for {what}") from None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [int(found.getsockname()[1]) for found in sockets]


async def _quiet(_: Exception) -> None:
    return
