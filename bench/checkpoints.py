"""What keeping its steps costs a run: ten tool steps, kept and not kept.

    make bench                                  everything, after the telemetry
    python bench/checkpoints.py --quick         two short rounds: for a look

Real processes: nats-server, one worker, the provider and the consumer of the streams. A step is
kept twice, once when its calls are known and once when they have settled; "not kept" is a worker
that is patched to do neither. The provider answers at once and the tool does nothing, so that what
is between the two is the keeping. Nothing else should be running.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from contenders import Target, serving
from measuring import consumed, percentile_ms
from plan import Plan
from report import Goal, add_outputs, finish, machine, spread, told

_STEPS = 10
_KEPT, _NOT_KEPT = "kept", "not kept"
_ENVIRONMENT = {_KEPT: {"BENCH_KEEPS": "everything"}, _NOT_KEPT: {"BENCH_KEEPS": "nothing"}}
_MOST_MS = 5.0


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A load: `runs` runs, `per_s` of them a second, each with a question of that size."""

    name: str
    bytes: int
    runs: int
    per_s: float

    def plan(self, target: Target) -> Plan:
        return Plan(
            where=target.where,
            streams=self.runs,
            chunks=1,
            burst=True,
            calls=_STEPS,
            prompt_bytes=self.bytes,
            ramp_s=self.runs / self.per_s,
            grace_s=120.0,
        )


LOADS = (
    Conversation(name="2 KB, one at a time", bytes=2_000, runs=40, per_s=4.0),
    Conversation(name="2 KB, 20 runs a second", bytes=2_000, runs=200, per_s=20.0),
    Conversation(name="200 KB, one at a time", bytes=200_000, runs=20, per_s=2.0),
)


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker under one load, in one round. Times are of runs, CPU is of the step: a tenth of
    what the process spent on a run, begin and end included."""

    steps: str
    load: str
    round: int
    run_p50_ms: float
    run_p99_ms: float
    end_p50_ms: float
    end_p99_ms: float
    cpu_ms: float
    nats_cpu_ms: float
    foreign_cores: float
    unfinished: int


async def measure(steps: str, load: Conversation, number: int) -> StepRow:
    """One worker under one load, everything started for it and ended after it."""
    async with serving("own", env=_ENVIRONMENT[steps]) as target:
        found = await consumed(target, load.plan(target))
    runs, ends = sorted(found.measured.run_us), sorted(found.measured.end_us)
    ended = max(len(runs), 1)
    return StepRow(
        steps=steps,
        load=load.name,
        round=number,
        run_p50_ms=percentile_ms(runs, 0.50) or 0.0,
        run_p99_ms=percentile_ms(runs, 0.99) or 0.0,
        end_p50_ms=percentile_ms(ends, 0.50) or 0.0,
        end_p99_ms=percentile_ms(ends, 0.99) or 0.0,
        cpu_ms=found.spent["it"] / ended / _STEPS * 1000,
        nats_cpu_ms=found.spent["nats"] / ended / _STEPS * 1000,
        foreign_cores=found.foreign_cores,
        unfinished=found.measured.unfinished,
    )


async def run(loads: Sequence[Conversation], rounds: int) -> list[StepRow]:
    """Both under every load, round by round, in turn first."""
    rows: list[StepRow] = []
    for number in range(1, rounds + 1):
        both = (_KEPT, _NOT_KEPT) if number % 2 else (_NOT_KEPT, _KEPT)
        for load in loads:
            for steps in both:
                row = await measure(steps, load, number)
                rows.append(row)
                print(_progress(row), file=sys.stderr, flush=True)
    return rows


def _progress(row: StepRow) -> str:
    return (
        f"round {row.round}, {row.load}, {row.steps}: run {row.run_p50_ms:.1f} ms, its end "
        f"{row.end_p50_ms:.1f} ms, CPU {row.cpu_ms:.2f} ms/step, "
        f"{row.foreign_cores:.2f} cores busy with something else"
    )


# --- what comes of it

Value = Callable[[StepRow], float]
_COLUMNS: tuple[tuple[str, Value, str], ...] = (
    ("run p50 ms", lambda row: row.run_p50_ms, "{:.1f}"),
    ("run p99 ms", lambda row: row.run_p99_ms, "{:.1f}"),
    ("its end p50 ms", lambda row: row.end_p50_ms, "{:.1f}"),
    ("its end p99 ms", lambda row: row.end_p99_ms, "{:.1f}"),
    ("CPU ms/step", lambda row: row.cpu_ms, "{:.2f}"),
    ("nats-server CPU ms/step", lambda row: row.nats_cpu_ms, "{:.2f}"),
    ("foreign cores", lambda row: row.foreign_cores, "{:.2f}"),
)


def _by_round(rows: Sequence[StepRow], load: str, steps: str, value: Value) -> list[float]:
    return [value(row) for row in rows if row.load == load and row.steps == steps]


def between(rows: Sequence[StepRow], load: str, value: Value) -> list[float]:
    """What "kept" has more than "not kept" of the same round."""
    kept, not_kept = (_by_round(rows, load, steps, value) for steps in (_KEPT, _NOT_KEPT))
    return [one - other for one, other in zip(kept, not_kept, strict=True)]


def goals(rows: Sequence[StepRow]) -> list[Goal]:
    """What keeping adds to a step of a run that has the worker to itself."""
    found: list[Goal] = []
    for load in dict.fromkeys(row.load for row in rows):
        late = [ms / _STEPS for ms in between(rows, load, lambda row: row.run_p50_ms)]
        spent = between(rows, load, lambda row: row.cpu_ms)
        kept, not_kept = (
            statistics.median(_by_round(rows, load, steps, lambda row: row.run_p50_ms))
            for steps in (_KEPT, _NOT_KEPT)
        )
        middle = statistics.median(late)
        found.append(
            Goal(
                text=f"{load}: keeping a step, at most {_MOST_MS:.0f} ms",
                value=f"{middle:.2f} ms, of it CPU {statistics.median(spent):.2f} ms; a run takes "
                f"{kept / not_kept:.2f} times as long",
                met=middle <= _MOST_MS,
            )
        )
    return found


def results(where: str, rows: Sequence[StepRow], found: Sequence[Goal]) -> str:
    """Everything that was found, as Markdown."""
    lines = [where, "", f"| load | steps | {' | '.join(title for title, _, _ in _COLUMNS)} |"]
    lines.append("|---|---|" + "---|" * len(_COLUMNS))
    for load in dict.fromkeys(row.load for row in rows):
        for steps in (_KEPT, _NOT_KEPT):
            values = [(_by_round(rows, load, steps, value), form) for _, value, form in _COLUMNS]
            cells = [spread(found, form) for found, form in values]
            lines.append(f"| {load} | {steps} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *told(found)])


def main() -> None:
    arguments = _arguments()
    loads: Sequence[Conversation] = LOADS
    if arguments.quick:
        loads = [replace(load, runs=load.runs // 4) for load in LOADS]
    where = machine()
    rows = asyncio.run(run(loads, 2 if arguments.quick else arguments.rounds))
    found = goals(rows)
    text = results(where, rows, found)
    finish(arguments, text, "checkpoints", machine=where, rows=rows, goals=found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--rounds", type=int, default=5)
    add_outputs(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
