"""Streams side by side: this worker, hayhooks and bare NATS under the same loads.

    make bench                                  everything, half an hour
    python bench/streams.py --quick             once, short windows: for a look
    python bench/streams.py --only a,d --streams 1,400 --no-burst

Nothing else should be running. What is measured, and how, stands in docs/benchmarks.md.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from contenders import CONTENDERS, Contender, Target
from decode import decode_us
from measuring import Consumption, consumed, percentile_ms
from plan import Plan
from report import Row, add_outputs, finish, goals, machine, results
from wheel import RATE

_STARTS_PER_S = 50
"""How many streams begin per second of the ramp: start-up is not what the window measures."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How many streams, for how long; a burst where `burst_chunks` is set."""

    name: str
    streams: int
    measure_s: float = 10.0
    burst_chunks: int = 0

    def plan(self, target: Target) -> Plan:
        ramp_s, settle_s = self.streams / _STARTS_PER_S, 1.0
        if self.burst_chunks:
            return Plan(
                where=target.where,
                streams=self.streams,
                chunks=self.burst_chunks,
                burst=True,
                grace_s=120.0,
            )
        # The first stream has to last until the window closes.
        lasts_s = ramp_s + settle_s + self.measure_s + 1.0
        return Plan(
            where=target.where,
            streams=self.streams,
            chunks=int(lasts_s * RATE),
            ramp_s=ramp_s,
            settle_s=settle_s,
            measure_s=self.measure_s,
            grace_s=lasts_s + 5.0,
        )


async def measure(contender: Contender, load: Load, number: int) -> Row:
    """One contender under one load, everything started for it and ended after it."""
    async with contender.run() as target:
        return _row(contender, load, number, await consumed(target, load.plan(target)))


def _row(contender: Contender, load: Load, number: int, consumption: Consumption) -> Row:
    measured, spent = consumption.measured, consumption.spent
    chunks, window = measured.chunks, max(measured.window_s, 1e-9)
    latencies, first = sorted(measured.latencies_us), sorted(measured.first_event_us)
    return Row(
        contender=contender.key,
        load=load.name,
        round=number,
        p50_ms=percentile_ms(latencies, 0.50),
        p99_ms=percentile_ms(latencies, 0.99),
        first_p50_ms=percentile_ms(first, 0.50),
        first_p99_ms=percentile_ms(first, 0.99),
        offered_per_s=None if load.burst_chunks else load.streams * RATE,
        chunks_per_s=chunks / window,
        chunks_per_event=chunks / measured.events if measured.events else 0.0,
        cpu_us=spent["it"] / chunks * 1e6 if chunks else None,
        all_cpu_us=sum(spent.values()) / chunks * 1e6 if chunks else None,
        cores=spent["it"] / window,
        foreign_cores=consumption.foreign_cores,
        rss_mb=consumption.rss / 2**20,
        missing=measured.missing,
        unfinished=measured.unfinished,
    )


async def run(loads: Sequence[Load], contenders: Sequence[Contender], rounds: int) -> list[Row]:
    """Every contender under every load, round by round, so that a slow minute of the machine
    does not hit one contender alone."""
    rows: list[Row] = []
    for number in range(1, rounds + 1):
        for load in loads:
            for contender in contenders:
                row = await measure(contender, load, number)
                rows.append(row)
                print(_progress(row), file=sys.stderr, flush=True)
    return rows


def _progress(row: Row) -> str:
    return (
        f"round {row.round}, {row.load}, ({row.contender}): p50 {row.p50_ms} ms, "
        f"p99 {row.p99_ms} ms, {row.chunks_per_s:.0f} chunks/s, CPU {row.cpu_us or 0:.0f} µs/chunk"
        f", {row.foreign_cores:.2f} cores busy with something else"
    )


def main() -> None:
    arguments = _arguments()
    chosen = [one for one in CONTENDERS if one.key in arguments.only.split(",")]
    measure_s = 3.0 if arguments.quick else arguments.seconds
    loads = [
        Load(name=f"{count} stream{'s' if count > 1 else ''}", streams=count, measure_s=measure_s)
        for count in map(int, filter(None, arguments.streams.split(",")))
    ]
    if arguments.burst:
        streams, chunks = map(int, arguments.burst_size.split("x"))
        loads.append(Load(name="burst", streams=streams, burst_chunks=chunks))
    where, decoding = machine(), decode_us()
    rows = asyncio.run(run(loads, chosen, 1 if arguments.quick else arguments.rounds))
    found = goals(rows, decoding)
    text = results(where, decoding, rows, found, {one.key: one.name for one in CONTENDERS})
    finish(arguments, text, "results", machine=where, decode_us=decoding, rows=rows, goals=found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, windows of 3 s")
    parser.add_argument("--only", default="a,b,c,d", help="contenders, such as a,c")
    parser.add_argument("--streams", default="1,50,100,400", help="numbers of streams")
    parser.add_argument("--burst", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--burst-size", default="100x500", help="streams x chunks of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    add_outputs(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
