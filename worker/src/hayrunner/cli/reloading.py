"""An embedded server, and a worker that is replaced whenever its files change.

The worker is a process of its own, so that a change is really loaded. It ends with this process,
however that ends: see `leashed`.
"""

import asyncio
import contextlib
import importlib.util
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec
from watchfiles import Change, DefaultFilter, awatch

from hayrunner.cli.exits import ExitCode
from hayrunner.embedded import EmbeddedServer

__all__ = ["WorkerProcess", "develop", "watched_folder"]

# In development nobody wants to wait half a minute for a change: the second signal cuts what
# still runs, and the next worker goes on with it.
_DRAIN_S = 3.0
_STOP_LIMIT_S = 15.0
_SUFFIXES = (".py", ".yaml", ".yml", ".json", ".toml", ".txt", ".md", ".jinja", ".j2")


async def develop(
    target: str, *, nats_port: int, arguments: Sequence[str], as_json: bool
) -> ExitCode:
    """Serve `target` until Ctrl-C or SIGTERM. `arguments` go to `hayrunner serve`."""
    folder = watched_folder(target)
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave.set)
    async with EmbeddedServer(port=_free(nats_port)) as server:
        _print_opening(server.url, folder, as_json=as_json)
        worker = WorkerProcess([target, "--nats", server.url, *arguments])
        await worker.start()
        try:
            async for changed in _changes(folder, leave):
                _tell(f"changed: {changed}; loading again", as_json=as_json)
                await worker.restart()
        finally:
            await worker.stop()
    return ExitCode.DONE


class WorkerProcess:
    """`hayrunner serve` as a child."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start it. Where it ends by itself, because a file cannot be loaded, it has said why."""
        self._process = await asyncio.create_subprocess_exec(
            # -B: compiled files are told apart by the second and the size, and two quick edits
            # may share both.
            *(sys.executable, "-B", "-m", "hayrunner.cli.leashed", "serve", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            # Ctrl-C reaches this process alone, which stops the child in its own time.
            start_new_session=True,
        )

    async def stop(self) -> None:
        """Let it drain for a moment; kill it if it does not end."""
        process, self._process = self._process, None
        if process is None:
            return
        for limit_s in (_DRAIN_S, _STOP_LIMIT_S):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), limit_s)
                return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def restart(self) -> None:
        """Stop it, and start it with what the files hold now."""
        await self.stop()
        await self.start()


def watched_folder(target: str) -> Path:
    """Where the files of a target are. A module that cannot be found is looked for here: it may
    yet be written."""
    path = Path(target)
    if path.suffix in (".py", ".yaml", ".yml"):
        return path.resolve().parent
    if path.is_dir():
        return path.resolve()
    with contextlib.suppress(ImportError, ValueError):
        # The top package alone: looking for what is inside it would import it.
        sys.path.insert(0, str(Path.cwd()))
        spec = importlib.util.find_spec(target.partition(".")[0])
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).resolve().parent
    return Path.cwd()


class _Sources(DefaultFilter):
    """Files that agents are made of; not what editors, caches and tools leave."""

    def __call__(self, change: Change, path: str) -> bool:
        return path.endswith(_SUFFIXES) and super().__call__(change, path)


async def _changes(folder: Path, leave: asyncio.Event) -> AsyncGenerator[str, None]:
    async for changes in awatch(folder, watch_filter=_Sources(), stop_event=leave):
        names = sorted({Path(path).name for _, path in changes})
        yield ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _free(port: int) -> int | None:
    """The port, if nothing listens on it; None, which is any, otherwise."""
    if port == 0:
        return None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
    return port


def _print_opening(url: str, folder: Path, *, as_json: bool) -> None:
    where = "" if url.endswith(":4222") else f" --nats {url}"
    if as_json:
        _write({"nats": url, "watching": str(folder)})
        return
    _tell(f"nats-server on {url}, watching {folder}", as_json=False)
    _tell(f'in another terminal: hayrunner ask AGENT "…"{where}', as_json=False)


def _tell(line: str, *, as_json: bool) -> None:
    if as_json:
        _write({"message": line})
    else:
        print(line, flush=True)


def _write(line: dict[str, str]) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
