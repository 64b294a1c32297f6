"""Child processes, and what they cost."""

import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ["HERE", "Child", "Usage", "child", "usage_of"]

HERE = Path(__file__).parent

_STOP_S = 5.0
_LINE_BYTES = 64 * 1024 * 1024

# By name: psutil is installed where benchmarks are run, not where types are checked.
_psutil: Any = importlib.import_module("psutil")


class Usage:
    """A process's CPU time so far, in seconds, and its memory now, in bytes."""

    def __init__(self, pid: int) -> None:
        process = _psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            self.cpu_s = float(times.user + times.system)
            self.rss = int(process.memory_info().rss)


def usage_of(pids: Mapping[str, int]) -> dict[str, Usage]:
    """The same, of several, by their names."""
    return {name: Usage(pid) for name, pid in pids.items()}


class Child:
    """A process of this benchmark, its output read by the line."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process

    async def line(self, limit_s: float) -> str:
        """The next line; `RuntimeError` where the process ends or says nothing for that long."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except TimeoutError:
            raise RuntimeError(f"{self.name} said nothing for {limit_s:.0f} s") from None
        if not line:
            raise RuntimeError(f"{self.name} ended too early")
        return line.decode().strip()

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def child(
    name: str, *arguments: str, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Child, None]:
    """A Python process with these arguments, ended with the block. Its errors are shown."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
        cwd=HERE,
        limit=_LINE_BYTES,
    )
    started = Child(name, process)
    try:
        yield started
    finally:
        await started.stop()
