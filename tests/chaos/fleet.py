"""The processes of a chaos run: a server, the provider, and workers in their places."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from tests.chaos.breakage import Breakage

from hayrunner_contracts.testing import eventually

__all__ = ["ROOT", "Fleet", "ProviderProcess", "WorkerProcess"]

ROOT = Path(__file__).parents[2]
_START_LIMIT_S = 60.0
_END_LIMIT_S = 40.0


class ProviderProcess:
    """The provider, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def start(self) -> None:
        with (self._folder / "provider.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.provider", str(self._folder)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_LIMIT_S):
            self.url = (await self._process.stdout.readline()).decode().strip()
        if not self.url:
            raise RuntimeError(f"the provider did not start: {self._folder / 'provider.log'}")

    async def stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class WorkerProcess:
    """One worker. `name` is its worker id."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.stopped = False
        self._log = folder / f"worker-{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *arguments: str) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.worker", *arguments, "--id", self.name),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )

    async def ready(self) -> None:
        """Wait until it takes requests."""

        def said() -> bool:
            if not self.alive:
                raise RuntimeError(f"a worker ended before it was ready: {self._log}")
            return b"worker ready" in self._log.read_bytes()

        await eventually(said, _START_LIMIT_S, what=f"worker {self.name} to be ready")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still runs."""
        if self._process is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def ended(self, limit_s: float = _END_LIMIT_S) -> int:
        """Its exit code; it is killed where it does not end in time."""
        assert self._process is not None
        try:
            async with asyncio.timeout(limit_s):
                return await self._process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._process.wait()
            return -signal.SIGKILL


class Fleet:
    """Workers in numbered places: where one ends, the next one of that place is started."""

    def __init__(
        self,
        folder: Path,
        *,
        places: int,
        nats: str,
        provider: str,
        broken: Breakage | None = None,
        replicas: int = 1,
    ) -> None:
        self._folder = folder
        self._arguments = [str(folder), "--nats", nats, "--provider", provider]
        self._arguments += ["--replicas", str(replicas)]
        if broken is not None:
            self._arguments += ["--broken", broken]
        self._generations = [0] * places
        self.workers: list[WorkerProcess] = []
        self._ended: list[WorkerProcess] = []
        self.exit_codes: dict[str, int] = {}
        """Of workers that were told to end."""

    async def start(self) -> None:
        """All of them, ready. The first alone: it provisions."""
        for place in range(len(self._generations)):
            self.workers.append(await self._next(place))
            if place == 0:
                await self.workers[0].ready()
        await asyncio.gather(*(worker.ready() for worker in self.workers))

    async def replace(self, place: int) -> None:
        """A new worker in a place, without waiting for it."""
        self._ended.append(self.workers[place])
        self.workers[place] = await self._next(place)

    async def stop(self) -> None:
        """End all, as an operator would; those that cannot, are killed."""
        for worker in self.workers:
            worker.send(signal.SIGCONT)
            worker.send(signal.SIGTERM)
        for worker in self.workers:
            self.exit_codes[worker.name] = await worker.ended()
        for worker in self._ended:
            worker.send(signal.SIGKILL)
            await worker.ended()

    async def _next(self, place: int) -> WorkerProcess:
        self._generations[place] += 1
        worker = WorkerProcess(f"w{place}-{self._generations[place]}", self._folder)
        await worker.start(*self._arguments)
        return worker
