"""Child processes, and what they cost."""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ["HERE", "Child", "Usage", "busy_s", "child", "usage_of"]

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


def busy_s() -> float:
    """CPU time that this machine has spent so far, on anything, in seconds."""
    times = _psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guests in `user` already.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle - guests)


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
        if self._process.returncode is None:
            # Not `terminate`: it would look for the end of a process that has just ended by
            # itself, and take it from asyncio, which waits for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
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
