"""Who is compared: each started afresh for every load, with a NATS server of its own."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from hayrunner.embedded import EmbeddedServer
from plan import Where
from processes import HERE, Child, child

__all__ = ["CONTENDERS", "Contender", "Target", "answers", "free_port", "serving"]

_START_S = 60.0
# What its console script does.
_HAYHOOKS = ("-c", "from hayhooks.cli import hayhooks_cli; hayhooks_cli()", "run")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A contender that runs: where the load goes, and which processes it consists of.

    `pids["it"]` is the one whose CPU and memory are the contender's.
    """

    where: Where
    pids: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One column of the comparison."""

    key: str
    name: str
    run: Callable[[], AbstractAsyncContextManager[Target]]


@asynccontextmanager
async def _provider() -> AsyncGenerator[tuple[Child, str], None]:
    async with child("provider", "provider.py") as provider:
        yield provider, await provider.line(_START_S)


@asynccontextmanager
async def serving(
    generator: str, *, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Target, None]:
    """This project's worker with that generator, and more in its environment."""
    async with _provider() as (provider, base_url), EmbeddedServer() as server:
        port = free_port()
        arguments = ("worker.py", generator, base_url, server.url, str(port))
        async with child("worker", *arguments, env=env) as worker:
            await answers(port, "/readyz")
            assert server.pid is not None
            yield Target(
                where=Where(
                    way="nats",
                    address=server.url,
                    requests="agents.bench.bench.requests",
                    events="runs.bench.*.events",
                ),
                pids={"it": worker.pid, "provider": provider.pid, "nats": server.pid},
            )


@asynccontextmanager
async def _floor() -> AsyncGenerator[Target, None]:
    async with EmbeddedServer() as server:
        async with child("floor", "floor.py", server.url) as publisher:
            await publisher.line(_START_S)
            assert server.pid is not None
            yield Target(
                where=Where(
                    way="nats",
                    address=server.url,
                    requests="floor.requests",
                    events="floor.*.events",
                ),
                pids={"it": publisher.pid, "nats": server.pid},
            )


@asynccontextmanager
async def _hayhooks() -> AsyncGenerator[Target, None]:
    async with _provider() as (provider, base_url):
        port = free_port()
        # Everything that costs it something and is not asked for is off.
        env = {
            "BENCH_PROVIDER": base_url,
            "LOG": "WARNING",
            "HAYSTACK_TELEMETRY_ENABLED": "false",
        }
        arguments = ["--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--without-monitoring", "--without-tracing"]
        arguments += ["--pipelines-dir", str(HERE / "pipelines")]
        async with child("hayhooks", *_HAYHOOKS, *arguments, env=env) as server:
            await answers(port, "/status")
            yield Target(
                where=Where(
                    way="sse",
                    address=f"http://127.0.0.1:{port}",
                    requests="bench",
                    events="/v1/chat/completions",
                ),
                pids={"it": server.pid, "provider": provider.pid},
            )


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def answers(port: int, path: str) -> None:
    """Return once a GET of that path is answered by 200."""
    end = time.monotonic() + _START_S
    while not await _is_ok(port, path):
        if time.monotonic() > end:
            raise RuntimeError(f"port {port} does not answer {path}")
        await asyncio.sleep(0.1)


async def _is_ok(port: int, path: str) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


CONTENDERS = (
    Contender(key="a", name="hayrunner, own generator", run=lambda: serving("own")),
    Contender(key="b", name="hayrunner, Haystack's generator", run=lambda: serving("haystack")),
    Contender(key="c", name="hayhooks, Haystack's generator", run=_hayhooks),
    Contender(key="d", name="nats-py publish (floor)", run=_floor),
)
