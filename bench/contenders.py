"""Who is compared: each started afresh for every load, with a NATS server of its own."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from hayrunner.embedded import EmbeddedServer
from processes import HERE, Child, child

__all__ = ["CONTENDERS", "Contender", "Target"]

_START_S = 60.0
# What its console script does.
_HAYHOOKS = ("-c", "from hayhooks.cli import hayhooks_cli; hayhooks_cli()", "run")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A contender that runs: where the load goes, and which processes it consists of.

    `pids["it"]` is the one whose CPU and memory are the contender's.
    """

    way: str
    address: str
    requests: str
    events: str
    pids: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One column of the comparison."""

    key: str
    name: str
    run: Callable[[], AbstractAsyncContextManager[Target]]


@asynccontextmanager
async def _provider() -> AsyncIterator[tuple[Child, str]]:
    async with child("provider", "provider.py") as provider:
        yield provider, await provider.line(_START_S)


@asynccontextmanager
async def _worker(generator: str) -> AsyncIterator[Target]:
    async with _provider() as (provider, base_url), EmbeddedServer() as server:
        async with child("worker", "worker.py", generator, base_url, server.url) as worker:
            await worker.line(_START_S)
            assert server.pid is not None
            yield Target(
                way="nats",
                address=server.url,
                requests="agents.bench.bench.requests",
                events="runs.bench.*.events",
                pids={"it": worker.pid, "provider": provider.pid, "nats": server.pid},
            )


@asynccontextmanager
async def _floor() -> AsyncIterator[Target]:
    async with EmbeddedServer() as server:
        async with child("floor", "floor.py", server.url) as publisher:
            await publisher.line(_START_S)
            assert server.pid is not None
            yield Target(
                way="nats",
                address=server.url,
                requests="floor.requests",
                events="floor.*.events",
                pids={"it": publisher.pid, "nats": server.pid},
            )


@asynccontextmanager
async def _hayhooks() -> AsyncIterator[Target]:
    async with _provider() as (provider, base_url):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
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
            await _answers(port)
            yield Target(
                way="sse",
                address=f"http://127.0.0.1:{port}",
                requests="bench",
                events="/v1/chat/completions",
                pids={"it": server.pid, "provider": provider.pid},
            )


async def _answers(port: int) -> None:
    """Return once the server has its pipelines: it listens only after that."""
    end = time.monotonic() + _START_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > end:
                raise RuntimeError("hayhooks did not start") from None
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


CONTENDERS = (
    Contender(key="a", name="hayrunner, own generator", run=lambda: _worker("own")),
    Contender(key="b", name="hayrunner, Haystack's generator", run=lambda: _worker("haystack")),
    Contender(key="c", name="hayhooks, Haystack's generator", run=_hayhooks),
    Contender(key="d", name="nats-py publish (floor)", run=_floor),
)
