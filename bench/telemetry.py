"""What telemetry costs: the same runs with traces and metrics off, on, and on with content.

    make bench                                     everything, after the streams
    python bench/telemetry.py --quick              two short rounds: for a look
    python bench/telemetry.py --before ../checkout a worker of other sources beside them

Real processes: for each configuration a nats-server, one worker, the provider of the streams and
a collector that throws away what it is sent, all there at once and loaded in turns. Runs are
counted from their request to their stored end, whole, since telemetry costs by the run and not by
the event. "off" is measured twice in every round: what lies between the two is noise, and so is
what is no larger. Nothing else should be running.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from contenders import Target, serving
from measuring import consumed, percentile_ms
from plan import Plan
from processes import Usage, child
from report import Goal, add_outputs, finish, machine, spread, told

_START_S = 60.0
_EXPORT_S = 5.0
"""How often the SDK exports spans, unless told otherwise. Those of the last runs are waited for."""
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OFF, _AGAIN, _ON, _WITH_CONTENT, _BEFORE = "off", "off again", "on", "on, content", "before"
_MOST = {_ON: 0.10, _WITH_CONTENT: 0.20}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A load: `runs` of them, begun evenly over `ramp_s`, 50 chunks of text a second each."""

    name: str
    runs: int
    chunks: int
    ramp_s: float
    calls: int = 0
    prompt_bytes: int = 2_000

    def plan(self, target: Target) -> Plan:
        return Plan(
            where=target.where,
            streams=self.runs,
            chunks=self.chunks,
            calls=self.calls,
            prompt_bytes=self.prompt_bytes,
            whole=True,
            ramp_s=self.ramp_s,
            grace_s=120.0,
        )


LOADS = (
    Runs(name="text: 200 chunks", runs=125, chunks=200, ramp_s=5.0),
    Runs(name="tools: 5 calls, 50 chunks", runs=60, chunks=50, ramp_s=6.0, calls=5),
)


class TelemetryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration under one load, in one round. `cpu_us` is the worker's, by event."""

    telemetry: str
    load: str
    round: int
    events: int
    cpu_us: float
    p50_ms: float
    p99_ms: float
    run_p50_ms: float
    run_p99_ms: float
    foreign_cores: float
    missing: int
    unfinished: int


def _environment(telemetry: str, collector: str, before: str | None) -> Mapping[str, str]:
    if telemetry == _BEFORE:
        assert before is not None
        return {"PYTHONPATH": f"{before}/worker/src:{before}/contracts/src"}
    if telemetry in (_OFF, _AGAIN):
        return {}
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        _CONTENT: "true" if telemetry == _WITH_CONTENT else "false",
    }


@asynccontextmanager
async def _staged(telemetry: str, before: str | None) -> AsyncGenerator[Target, None]:
    async with AsyncExitStack() as stack:
        # There for all of them, so that nothing but the worker differs.
        collector = await stack.enter_async_context(child("receiver", "receiver.py"))
        url = await collector.line(_START_S)
        env = _environment(telemetry, url, before)
        target = await stack.enter_async_context(serving("own", env=env))
        yield Target(where=target.where, pids={**target.pids, "collector": collector.pid})


async def measure(telemetry: str, target: Target, load: Runs, number: int) -> TelemetryRow:
    """One configuration under one load, without what it does when that is over."""
    found = await consumed(target, load.plan(target))
    measured = found.measured
    latencies, runs = sorted(measured.latencies_us), sorted(measured.run_us)
    return TelemetryRow(
        telemetry=telemetry,
        load=load.name,
        round=number,
        events=measured.said,
        cpu_us=found.spent["it"] / max(measured.said, 1) * 1e6,
        p50_ms=percentile_ms(latencies, 0.50) or 0.0,
        p99_ms=percentile_ms(latencies, 0.99) or 0.0,
        run_p50_ms=percentile_ms(runs, 0.50) or 0.0,
        run_p99_ms=percentile_ms(runs, 0.99) or 0.0,
        foreign_cores=found.foreign_cores,
        missing=measured.missing,
        unfinished=measured.unfinished,
    )


async def _exported(target: Target) -> float:
    """CPU seconds of the worker after its load, until what was left is exported."""
    before = Usage(target.pids["it"]).cpu_s
    await asyncio.sleep(_EXPORT_S + 1.0)
    return Usage(target.pids["it"]).cpu_s - before


async def run(
    loads: Sequence[Runs], names: Sequence[str], starts: int, rounds: int, before: str | None
) -> list[TelemetryRow]:
    """Every configuration under every load, `rounds` times after each of `starts`. All of them are
    there all the time and take short turns, as a machine's pace changes by a tenth within
    a minute; they are started anew, as no two processes lie in memory alike."""
    rows: list[TelemetryRow] = []
    for start in range(starts):
        async with AsyncExitStack() as stack:
            targets = {
                name: await stack.enter_async_context(_staged(name, before)) for name in names
            }
            for load in loads:
                # What a worker does for its first runs alone is not what is looked for.
                await _round(targets, load, 0)
                for number in range(start * rounds + 1, (start + 1) * rounds + 1):
                    found = await _round(targets, load, number)
                    rows += found
                    for row in found:
                        print(_progress(row), file=sys.stderr, flush=True)
    return rows


async def _round(targets: Mapping[str, Target], load: Runs, number: int) -> list[TelemetryRow]:
    """Each of them once, in an order that turns with the rounds: none is always the one after
    another."""
    names, turn = list(targets), number % len(targets)
    rows: list[TelemetryRow] = []
    left: list[asyncio.Task[float]] = []
    async with asyncio.TaskGroup() as exports:
        for name in (*names[turn:], *names[:turn]):
            rows.append(await measure(name, targets[name], load, number))
            left.append(exports.create_task(_exported(targets[name])))
    return [
        msgspec.structs.replace(row, cpu_us=row.cpu_us + task.result() / max(row.events, 1) * 1e6)
        for row, task in zip(rows, left, strict=True)
    ]


def _progress(row: TelemetryRow) -> str:
    return (
        f"round {row.round}, {row.load}, {row.telemetry}: CPU {row.cpu_us:.1f} µs/event, "
        f"p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms, run {row.run_p50_ms:.0f} ms, "
        f"{row.foreign_cores:.2f} cores busy with something else"
    )


# --- what comes of it

Value = Callable[[TelemetryRow], float]
_COLUMNS: tuple[tuple[str, Value, str], ...] = (
    ("CPU µs/event", lambda row: row.cpu_us, "{:.1f}"),
    ("latency p50 ms", lambda row: row.p50_ms, "{:.2f}"),
    ("latency p99 ms", lambda row: row.p99_ms, "{:.2f}"),
    ("run p50 ms", lambda row: row.run_p50_ms, "{:.0f}"),
    ("run p99 ms", lambda row: row.run_p99_ms, "{:.0f}"),
)


def _cpu(row: TelemetryRow) -> float:
    return row.cpu_us


def _p99(row: TelemetryRow) -> float:
    return row.p99_ms


def ratios(rows: Sequence[TelemetryRow], load: str, telemetry: str, value: Value) -> list[float]:
    """To what "off" has in the same round, the mean of its two."""
    of = {(row.telemetry, row.round): value(row) for row in rows if row.load == load}
    return [
        found / statistics.mean((of[_OFF, number], of[_AGAIN, number]))
        for (name, number), found in of.items()
        if name == telemetry
    ]


def noise(rows: Sequence[TelemetryRow], load: str, value: Value) -> float:
    """How far the two "off" of a round lie apart, in half of the rounds, as a share of their
    mean."""
    pairs = zip(ratios(rows, load, _OFF, value), ratios(rows, load, _AGAIN, value), strict=True)
    return statistics.median([abs(one - other) for one, other in pairs] or [0.0])


def goals(rows: Sequence[TelemetryRow]) -> list[Goal]:
    """What the project promises of these numbers, by the medians of the rounds' ratios."""
    found: list[Goal] = []
    for load in dict.fromkeys(row.load for row in rows):
        there = {row.telemetry for row in rows if row.load == load}
        for name in (_BEFORE, _ON, _WITH_CONTENT):
            if name in there:
                found += _goals_of(rows, load, name)
    return found


def _goals_of(rows: Sequence[TelemetryRow], load: str, name: str) -> list[Goal]:
    cpu, p99 = noise(rows, load, _cpu), noise(rows, load, _p99)
    spent = statistics.median(ratios(rows, load, name, _cpu)) - 1
    late = statistics.median(ratios(rows, load, name, _p99)) - 1
    if name == _BEFORE:
        # The other way round: what "off" costs over sources without telemetry.
        text = f"{load}, off over before: CPU per event, within noise ({cpu:.1%})"
        return [Goal(text=text, value=f"{1 / (1 + spent) - 1:+.1%}", met=spent >= -cpu)]
    most = _MOST[name]
    return [
        Goal(
            text=f"{load}, {name}: CPU per event over off, at most {most:.0%} (noise {cpu:.1%})",
            value=f"{spent:+.1%}",
            met=spent <= most,
        ),
        Goal(
            text=f"{load}, {name}: latency p99 over off, unchanged within noise ({p99:.1%})",
            value=f"{late:+.1%}",
            met=late <= p99,
        ),
    ]


def results(where: str, rows: Sequence[TelemetryRow], found: Sequence[Goal]) -> str:
    """Everything that was found, as Markdown."""
    titles = [title for title, _, _ in _COLUMNS]
    lines = [where, "", f"| load | telemetry | {' | '.join(titles)} | CPU to off | foreign cores |"]
    lines.append("|---|---|" + "---|" * (len(titles) + 2))
    for load in dict.fromkeys(row.load for row in rows):
        for name in dict.fromkeys(row.telemetry for row in rows):
            of = [row for row in rows if row.load == load and row.telemetry == name]
            cells = [spread([value(row) for row in of], form) for _, value, form in _COLUMNS]
            cells.append(spread(ratios(rows, load, name, _cpu), "{:.3f}"))
            cells.append(spread([row.foreign_cores for row in of], "{:.2f}"))
            lines.append(f"| {load} | {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *told(found)])


def main() -> None:
    arguments = _arguments()
    names = [_OFF, _AGAIN, _ON, _WITH_CONTENT, *([_BEFORE] if arguments.before else [])]
    loads = [load for load in LOADS if load.name.split(":")[0] in arguments.loads.split(",")]
    if arguments.quick:
        loads = [replace(load, runs=load.runs // 4, ramp_s=load.ramp_s / 4) for load in loads]
    before = str(Path(arguments.before).resolve()) if arguments.before else None
    where = machine()
    starts, rounds = (1, 2) if arguments.quick else (arguments.starts, arguments.rounds)
    rows = asyncio.run(run(loads, names, starts, rounds, before))
    found = goals(rows)
    text = results(where, rows, found)
    finish(arguments, text, "telemetry", machine=where, rows=rows, goals=found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--loads", default="text,tools")
    parser.add_argument("--starts", type=int, default=3, help="how often to start everything")
    parser.add_argument("--rounds", type=int, default=4, help="after each of them")
    parser.add_argument(
        "--before", metavar="CHECKOUT", help="sources to compare with, such as a git worktree"
    )
    add_outputs(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
