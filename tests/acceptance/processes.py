"""A process of a test: running, and ended."""

import asyncio
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

from hayrunner_contracts.testing import eventually

__all__ = ["LIMIT_S", "Finished", "Run", "Running", "Serve", "Start"]

LIMIT_S = 30.0
"""How long anything may take here, in seconds."""


class Finished:
    """A process that has ended."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out.decode()
        self.err = err.decode()

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- output\n{self.out}\n--- errors\n{self.err}"


class Running:
    """A process that is running. What it wrote on standard error is in `errors`."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    async def said(self, text: str, limit_s: float = LIMIT_S) -> None:
        """Wait until the text stands in its errors; fail at once where the process ends."""

        def found() -> bool:
            assert self.process.returncode is None, f"it ended: {self.errors}"
            return text in self.errors

        await eventually(found, limit_s, what=f"{text!r} in its log")

    async def read_until(self, text: bytes, limit_s: float = LIMIT_S) -> bytes:
        """Read standard output up to and with `text`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(limit_s):
            return await self.process.stdout.readuntil(text)

    async def ended(self, limit_s: float = LIMIT_S) -> int:
        """Its exit code."""
        async with asyncio.timeout(limit_s):
            return await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Start(Protocol):
    def __call__(self, *command: str, **environment: str) -> Awaitable[Running]: ...


class Run(Protocol):
    def __call__(
        self, *command: str, stdin: str | None = None, **environment: str
    ) -> Awaitable[Finished]: ...


class Serve(Protocol):
    def __call__(self, target: str | Path, **environment: str) -> Awaitable[Running]: ...
