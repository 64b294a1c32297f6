"""The NATS of a chaos run, and what can be done to it: one server, or a cluster of three."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol, Self

import nats.errors
from tests.chaos.partitions import CuttableCluster
from tests.chaos.plan import Fault

from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts import subjects

__all__ = ["Breaking", "ClusterSite", "OneServer", "Site"]

Breaking = Callable[[Fault], Awaitable[None]]

_NUDGES = 3

# Smaller than the default, so that what is larger than a message is not larger than need be.
_MAX_PAYLOAD = 256 * 1024

_STREAMS = (
    subjects.AGENT_REQUESTS,
    f"KV_{subjects.RUNS_BUCKET}",
    subjects.RUN_EVENTS,
    subjects.RUN_RESULTS,
    subjects.RUN_COMMANDS,
    subjects.THREADS,
)


class Site(Protocol):
    """Where the workers of a plan find NATS."""

    replicas: int

    @property
    def urls(self) -> list[str]: ...

    @property
    def breaking(self) -> Mapping[str, Breaking]:
        """How each kind of fault is carried out that is about servers. Returns once what was
        broken is back."""
        ...

    async def settle(self) -> None:
        """Wait until every copy of everything is up to date."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


class OneServer:
    """One server with its store in files."""

    replicas = 1

    def __init__(self, folder: Path) -> None:
        settings = folder.parent / "nats.conf"
        settings.write_text(f"max_payload: {_MAX_PAYLOAD}\n")
        self._server = EmbeddedServer(store_dir=folder, arguments=("-c", str(settings)))

    @property
    def urls(self) -> list[str]:
        return [self._server.url]

    @property
    def breaking(self) -> Mapping[str, Breaking]:
        return {"kill_nats": self._kill, "stop_nats": self._stop, "restart_nats": self._restart}

    async def settle(self) -> None:
        return

    async def _kill(self, fault: Fault) -> None:
        await self._server.kill()
        await asyncio.sleep(fault.seconds)
        await self._server.start()

    async def _stop(self, fault: Fault) -> None:
        pid = self._server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        os.kill(pid, signal.SIGCONT)

    async def _restart(self, _: Fault) -> None:
        await self._server.stop()
        await self._server.start()

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__(None, None, None)


class ClusterSite:
    """Three servers with every stream on each. A fault's `target` says whose leader it hits."""

    replicas = 3

    def __init__(self, folder: Path) -> None:
        self._cluster = CuttableCluster(folder)

    @property
    def urls(self) -> list[str]:
        return self._cluster.urls

    @property
    def breaking(self) -> Mapping[str, Breaking]:
        return {
            "kill_leader": self._kill,
            "stop_leader": self._stop,
            "isolate_leader": self._isolate,
        }

    async def settle(self) -> None:
        for _ in range(_NUDGES):
            try:
                await self._cluster.settled(*_STREAMS)
                return
            except TimeoutError:
                await self._nudge()
        await self._cluster.settled(*_STREAMS)

    async def _nudge(self) -> None:
        """A replica can refuse what it is sent to catch up with, again and again ("expected first
        catchup entry to be a snapshot"): the server's own trouble, which an operator ends by
        having the leaders step down."""
        nc = await self._cluster.connect()
        try:
            for stream in _STREAMS:
                with contextlib.suppress(nats.errors.Error):
                    await nc.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", timeout=5)
        finally:
            await nc.close()

    async def _leader(self, fault: Fault) -> int:
        return await self._cluster.leader_of(_STREAMS[fault.target % len(_STREAMS)])

    async def _kill(self, fault: Fault) -> None:
        victim = await self._leader(fault)
        await self._cluster.kill(victim)
        await asyncio.sleep(fault.seconds)
        await self._cluster.restart(victim)
        await self.settle()

    async def _stop(self, fault: Fault) -> None:
        victim = await self._leader(fault)
        self._cluster.pause(victim)
        await asyncio.sleep(fault.seconds)
        self._cluster.resume(victim)
        await self.settle()

    async def _isolate(self, fault: Fault) -> None:
        victim = await self._leader(fault)
        self._cluster.isolate(victim)
        await asyncio.sleep(fault.seconds)
        await self._cluster.heal(victim)
        await self.settle()

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.__aexit__(None, None, None)
