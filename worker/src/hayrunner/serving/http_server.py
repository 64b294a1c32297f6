"""The HTTP server beside the worker: uvicorn inside the worker's own loop."""

import contextlib
import socket
from collections.abc import Generator
from typing import Any

import uvicorn

from hayrunner.errors import ConfigurationError

__all__ = ["HttpServer"]


class _Server(uvicorn.Server):
    """Signals belong to the worker, which drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpServer:
    """`port` 0 takes a free one."""

    def __init__(self, app: Any, *, host: str, port: int) -> None:
        self._socket = _listen(host, port)
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # A scraper with an open connection must not hold the process up.
                timeout_graceful_shutdown=1,
            )
        )

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Until `stop`."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Bound here and not by uvicorn, which exits the process where it cannot bind."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"HAYRUNNER_HOST and HAYRUNNER_PORT: cannot listen on {host}:{port} "
            f"({error.strerror}); set another port, 0 for a free one, -1 for none"
        ) from None
    listening.set_inheritable(False)
    return listening
