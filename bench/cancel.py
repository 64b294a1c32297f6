"""From the `cancel` command to the closed connection: how long a model goes on for nobody.

    make bench                                   everything, after the streams
    python bench/cancel.py --quick               60 runs at each load: for a look
    python bench/cancel.py --runs 1000 --at-once 50 --generators own

Real processes: nats-server, one worker, the scripted provider, and this client. A run is begun,
and when the provider has begun to answer it, a random moment later, the client publishes `cancel`.
The clock starts right before that publish and ends where the provider's event loop is told that
its client has closed the connection. Nothing else should be running.
"""

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from contenders import answers, free_port
from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.requests import RunMode
from processes import Child, busy_s, child, usage_of
from report import Goal, add_outputs, finish, machine, told

_GOAL_MS = 100.0
_START_S = 60.0
_LIMIT_S = 30.0
_STARTS_PER_S = 50
"""About how many runs begin, and are cancelled, per second: how long one lasts follows from how
many there are at once."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a run does when it is cancelled. The connection that is to close is that of the request
    `held`."""

    name: str
    prompt: str
    mode: RunMode
    held: str


KINDS = (
    Kind(name="text is streaming", prompt="stream", mode="stream", held="stream"),
    Kind(name="no byte has come", prompt="silent", mode="stream", held="silent"),
    Kind(name="headless", prompt="stream", mode="answer", held="stream"),
    Kind(name="in an async tool", prompt="tool", mode="stream", held="held"),
)


class CancelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of run under one load. Latencies in ms."""

    generator: str
    at_once: int
    kind: str
    runs: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    foreign_cores: float


@dataclass
class Provider:
    """What the provider's process says, for whoever waits for it."""

    process: Child
    _began: dict[str, asyncio.Future[float]] = field(
        default_factory=lambda: defaultdict(_new_future)
    )
    _closed: dict[str, asyncio.Future[float]] = field(
        default_factory=lambda: defaultdict(_new_future)
    )

    async def listen(self) -> None:
        """Read its lines until this is cancelled."""
        told = {"began": self._began, "closed": self._closed}
        while True:
            word, kind, number, moment = (await self.process.line(_LIMIT_S)).split()
            future = told[word][f"{kind} {number}"]
            if not future.done():
                future.set_result(float(moment))

    async def began(self, label: str) -> float:
        return await asyncio.wait_for(self._began[label], _LIMIT_S)

    async def closed(self, label: str) -> float:
        return await asyncio.wait_for(self._closed[label], _LIMIT_S)


def _new_future() -> "asyncio.Future[float]":
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Everything that runs for one generator."""

    client: RunClient
    provider: Provider
    pids: dict[str, int]
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def cancel_one(self, kind: Kind, lasts_s: float) -> float:
        """One run from its begin to its cancelled end, `lasts_s` on average: the latency in
        ms."""
        number = next(self.numbers)
        prompt, held = f"{kind.prompt} {number}", f"{kind.held} {number}"
        tools = kind.mode == "answer"
        run = await self.client.submit("waiting", prompt, mode=kind.mode, tools=tools)
        reading = asyncio.create_task(_read(self.client, run.message_id))
        await self.provider.began(held)
        await asyncio.sleep(random.uniform(0.0, 2 * lasts_s))
        asked = time.monotonic()
        await self.client.cancel(run.message_id)
        latency = await self.provider.closed(held) - asked
        result = await run_result(self.client, run.message_id)
        if result != "cancelled":
            raise RuntimeError(f"the run ended as {result}")
        await asyncio.wait_for(reading, _LIMIT_S)
        return latency * 1000


async def _read(client: RunClient, message_id: str) -> None:
    async for _ in client.attach(message_id, timeout=_LIMIT_S):
        pass


async def run_result(client: RunClient, message_id: str) -> str:
    """How the run ended."""
    return (await client.result(message_id, timeout=_LIMIT_S)).status


@asynccontextmanager
async def _staged(generator: str) -> AsyncGenerator[Stage, None]:
    async with AsyncExitStack() as stack:
        told = await stack.enter_async_context(child("provider", "cancel_provider.py"))
        base_url = await told.line(_START_S)
        server = await stack.enter_async_context(EmbeddedServer())
        port = free_port()
        arguments = ("cancel_worker.py", generator, base_url, server.url, str(port))
        worker = await stack.enter_async_context(child("worker", *arguments))
        await answers(port, "/readyz")
        client = await RunClient.connect(server.url, "bench")
        await stack.enter_async_context(client)
        provider = Provider(told)
        listening = asyncio.create_task(provider.listen())
        stack.callback(listening.cancel)
        assert server.pid is not None
        pids = {"worker": worker.pid, "provider": told.pid, "nats": server.pid}
        yield Stage(client=client, provider=provider, pids=pids)


async def measure(stage: Stage, generator: str, at_once: int, runs: int) -> list[CancelRow]:
    """`runs` runs, every kind in turn, `at_once` of them at any time."""
    left = iter([kind for _ in range(runs // len(KINDS)) for kind in KINDS])
    latencies: dict[str, list[float]] = {kind.name: [] for kind in KINDS}

    async def one_after_the_other(place: int) -> None:
        await asyncio.sleep(place / _STARTS_PER_S)
        for kind in left:
            latency = await stage.cancel_one(kind, at_once / _STARTS_PER_S)
            latencies[kind.name].append(latency)

    began, busy, own = time.monotonic(), busy_s(), _own_cpu_s(stage)
    async with asyncio.TaskGroup() as group:
        for place in range(at_once):
            group.create_task(one_after_the_other(place))
    window = time.monotonic() - began
    foreign = max(0.0, busy_s() - busy - (_own_cpu_s(stage) - own)) / window
    everything = [latency for found in latencies.values() for latency in found]
    return [
        _row(generator, at_once, name, found, foreign)
        for name, found in [*latencies.items(), ("all", everything)]
    ]


def _own_cpu_s(stage: Stage) -> float:
    return time.process_time() + sum(usage.cpu_s for usage in usage_of(stage.pids).values())


def _row(
    generator: str, at_once: int, kind: str, found: Sequence[float], foreign: float
) -> CancelRow:
    latencies = sorted(found)
    return CancelRow(
        generator=generator,
        at_once=at_once,
        kind=kind,
        runs=len(latencies),
        p50_ms=_percentile(latencies, 0.50),
        p99_ms=_percentile(latencies, 0.99),
        max_ms=latencies[-1],
        foreign_cores=foreign,
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def run(generators: Sequence[str], loads: Sequence[int], runs: int) -> list[CancelRow]:
    """Every generator under every load, after a few runs that nobody counts."""
    rows: list[CancelRow] = []
    for generator in generators:
        async with _staged(generator) as stage:
            await measure(stage, generator, len(KINDS), 2 * len(KINDS))
            for at_once in loads:
                rows += await measure(stage, generator, at_once, runs)
                print(_progress(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _progress(row: CancelRow) -> str:
    return (
        f"{row.generator}, {row.at_once} at once: p50 {row.p50_ms:.1f} ms, p99 {row.p99_ms:.1f} ms,"
        f" {row.foreign_cores:.2f} cores busy with something else"
    )


def goals(rows: Sequence[CancelRow]) -> list[Goal]:
    """The 99th percentile of every load, all kinds of runs together."""
    return [
        Goal(
            text=f"{row.generator}, {row.at_once} at once: p99 of {row.runs} cancels, "
            f"at most {_GOAL_MS:.0f} ms",
            value=f"{row.p99_ms:.1f} ms",
            met=row.p99_ms <= _GOAL_MS,
        )
        for row in rows
        if row.kind == "all"
    ]


def results(where: str, rows: Sequence[CancelRow], found: Sequence[Goal]) -> str:
    """Everything that was found, as Markdown."""
    lines = [where, ""]
    lines.append("| generator | runs at once | cancelled while | runs | p50 ms | p99 ms | max ms |")
    lines[-1] += " foreign cores |"
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [
        f"| {row.generator} | {row.at_once} | {row.kind} | {row.runs} | {row.p50_ms:.1f} | "
        f"{row.p99_ms:.1f} | {row.max_ms:.1f} | {row.foreign_cores:.2f} |"
        for row in rows
    ]
    return "\n".join([*lines, "", *told(found)])


def main() -> None:
    arguments = _arguments()
    loads = [int(number) for number in arguments.at_once.split(",")]
    runs = 60 if arguments.quick else arguments.runs
    where = machine()
    rows = asyncio.run(run(arguments.generators.split(","), loads, runs))
    found = goals(rows)
    text = results(where, rows, found)
    finish(arguments, text, "cancels", machine=where, rows=rows, goals=found)
    sys.exit(0 if all(goal.met for goal in found) else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="60 runs at each load")
    parser.add_argument("--runs", type=int, default=400, help="runs at each load, of all kinds")
    parser.add_argument("--at-once", default="1,10,50", help="numbers of runs at once")
    parser.add_argument("--generators", default="own,haystack", help="own, haystack or both")
    add_outputs(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
