"""A nats-server in a container, with the interface of `EmbeddedServer`."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import nats

from hayrunner.embedded import find_nats_server

# Read by testcontainers when it is imported: no helper container, no guess at where Docker is.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
os.environ.setdefault("TC_HOST", "127.0.0.1")
os.environ.setdefault("TC_POOLING_INTERVAL", "0.05")

__all__ = ["IMAGE", "ContainerServer", "build_image", "docker_runs", "sweep"]

IMAGE = "hayrunner-test:nats"
_LABEL = "hayrunner-test"


def docker_runs() -> bool:
    """Whether there is a Docker daemon to talk to."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def build_image() -> None:
    """The server's binary is static: an image of nothing else, made in a second."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(find_nats_server(), Path(folder) / "nats-server")
        (Path(folder) / "Dockerfile").write_text(
            'FROM scratch\nCOPY nats-server /nats-server\nENTRYPOINT ["/nats-server"]\n'
        )
        subprocess.run(
            ["docker", "build", "--quiet", "--tag", IMAGE, folder], check=True, capture_output=True
        )


def sweep() -> None:
    """Remove containers that interrupted sessions left: those whose process is gone."""
    shown = '{{.ID}} {{.Label "' + _LABEL + '"}}'
    listed = subprocess.run(
        ["docker", "ps", "--all", "--filter", f"label={_LABEL}", "--format", shown],
        capture_output=True,
        text=True,
        check=True,
    )
    owners = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines() if " " in line)
    left = [container for container, owner in owners.items() if not Path(f"/proc/{owner}").exists()]
    if left:
        subprocess.run(["docker", "rm", "--force", *left], capture_output=True, check=True)


class ContainerServer:
    """JetStream in a container on a fixed port, so that it can be killed and started again."""

    def __init__(self, arguments: tuple[str, ...] = ()) -> None:
        self._port = _free_port()
        self._arguments = arguments
        self._container: Any = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    async def start(self) -> None:
        if self._container is None:
            await asyncio.to_thread(self._create)
        else:
            await asyncio.to_thread(self._container.get_wrapped_container().start)
        await self._ready()

    async def stop(self) -> None:
        await asyncio.to_thread(self._container.get_wrapped_container().stop, timeout=5)

    async def kill(self) -> None:
        await asyncio.to_thread(self._container.get_wrapped_container().kill)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._container is not None:
            await asyncio.to_thread(self._container.stop, force=True)

    def _create(self) -> None:
        # The generic container: the one for NATS replaces the command, and monitoring is off.
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(IMAGE).with_bind_ports(4222, self._port)
        container.with_command(["-js", "-sd", "/data", *self._arguments])
        container.with_kwargs(labels={_LABEL: str(os.getpid())})
        for argument in self._arguments:
            # A configuration file of the test's: the server finds it under the same name.
            if Path(argument).is_file():
                container.with_volume_mapping(argument, argument, "ro")
        self._container = container.start()

    async def _ready(self) -> None:
        connection = await nats.connect(
            self.url,
            max_reconnect_attempts=200,
            reconnect_time_wait=0.05,
            error_cb=_quiet,
            allow_reconnect=True,
        )
        await connection.flush()
        await connection.close()


async def _quiet(_: Exception) -> None:
    return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
