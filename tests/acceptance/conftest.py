"""Processes as an operator starts them, and what is there of them afterwards."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from tests.acceptance.processes import LIMIT_S, Finished, Run, Running, Serve, Start

from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts.testing import eventually

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
HAYRUNNER = str(Path(sys.executable).parent / "hayrunner")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.acceptance)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the processes of a test put what is temporary."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(temporary: Path) -> dict[str, str]:
    """No settings of whoever runs the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HAYRUNNER_", "OPENAI_", "OTEL_"))
    }
    return {**kept, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
async def start(environment: Mapping[str, str], tmp_path: Path) -> AsyncIterator[Start]:
    """Start a process and go on; it is killed at the end of the test if it still runs."""
    started: list[Running] = []

    async def start(*command: str, **more: str) -> Running:
        errors = tmp_path / f"errors-{len(started)}"
        with errors.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                env={**environment, **more},
            )
        started.append(Running(process, errors))
        return started[-1]

    yield start
    for running in started:
        if running.process.returncode is None:
            running.process.kill()
            await running.process.wait()


@pytest.fixture
def run(environment: Mapping[str, str]) -> Run:
    """Run a process to its end, within half a minute."""

    async def run(*command: str, stdin: str | None = None, **more: str) -> Finished:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, **more},
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                out, err = await process.communicate((stdin or "").encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return Finished(process.returncode or 0, out, err)

    return run


@pytest.fixture
async def nats_server() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer() as server:
        yield server


@pytest.fixture
def hayrunner() -> str:
    """The console script, as it is installed."""
    return HAYRUNNER


@pytest.fixture
def examples() -> Path:
    return EXAMPLES


@pytest.fixture
async def serve(start: Start, nats_server: EmbeddedServer) -> Serve:
    """`hayrunner serve` of a target on the test's server, ready."""

    async def serve(target: str | Path, **environment: str) -> Running:
        worker = await start(
            *(HAYRUNNER, "serve", str(target), "--nats", nats_server.url, "--port", "-1"),
            **environment,
        )
        await worker.said("worker ready")
        return worker

    return serve


@pytest.fixture
def everything_gone(temporary: Path) -> Callable[[], Awaitable[None]]:
    """Wait until nothing is left: no file in the temporary folder, no process that names it."""

    async def gone() -> None:
        await eventually(lambda: not _naming(str(temporary)), what="the end of every process")
        await eventually(lambda: not list(temporary.iterdir()), what="an empty folder")

    return gone


def _naming(text: str) -> list[str]:
    """The command lines of running processes in which `text` stands, this one's aside."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended just now
        if text in line:
            found.append(line)
    return found
