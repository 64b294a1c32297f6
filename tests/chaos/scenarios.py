"""Plans with one thing in mind: a guarantee of its own, or what a broken worker does wrong."""

import random
from typing import Any

from tests.chaos.plan import Call, ConsumerKind, Fault, Plan, PlannedRun, Step, message_id_of
from tests.chaos.seeds import CLUSTER_FAULTS, random_plan

__all__ = [
    "cluster_mix",
    "interrupted_tools",
    "long_runs",
    "lost_events",
    "rolling",
    "short_mix",
    "stale_worker",
]

_CONSUMERS: tuple[ConsumerKind, ...] = ("live", "late", "reconnecting", "result")


def _text_run(rng: random.Random, number: int, at_s: float, length_s: float) -> PlannedRun:
    words = max(2, round(length_s / 0.1))
    return PlannedRun(
        number=number,
        message_id=message_id_of(rng),
        at_s=round(at_s, 3),
        kind="text",
        agent="talker",
        steps=(Step(words=words, pace_s=length_s / words),),
        consumer=_CONSUMERS[number % len(_CONSUMERS)],
    )


def _tool_run(rng: random.Random, number: int, at_s: float, seconds: float) -> PlannedRun:
    call = Call(tool="look_up", seconds=seconds)
    steps = [Step(words=2, calls=(call, Call(tool="compute", seconds=0.1))) for _ in range(3)]
    return PlannedRun(
        number=number,
        message_id=message_id_of(rng),
        at_s=round(at_s, 3),
        kind="sequential",
        steps=(*steps, Step(words=5)),
        consumer=_CONSUMERS[number % len(_CONSUMERS)],
    )


def short_mix(seed: int) -> Plan:
    """A bit of everything within half a minute, every kind of fault at least likely."""
    return random_plan(
        seed, runs=100, workers=2, rate=6.0, fault_every_s=2.5, ack_wait_s=1.5, drop_every=150
    )


def cluster_mix(seed: int, *, runs: int = 120, rate: float = 3.0) -> Plan:
    """A bit of everything on a cluster that loses its leaders and is partitioned."""
    return random_plan(
        seed,
        runs=runs,
        rate=rate,
        fault_every_s=12.0,
        faults=CLUSTER_FAULTS,
        servers=3,
        ack_wait_s=3.0,
    )


def long_runs(seed: int, *, times: float = 11.0, ack_wait_s: float = 1.0) -> Plan:
    """Runs that last many times `ack_wait`, of words and of tools, and nothing breaks."""
    rng = random.Random(seed)
    length = times * ack_wait_s
    runs = [_text_run(rng, n, 0.05 * n, length) for n in range(1, 7)]
    runs += [_tool_run(rng, n, 0.05 * n, length / 3) for n in range(7, 13)]
    return Plan(seed=seed, runs=tuple(runs), ack_wait_s=ack_wait_s, calm=True)


def stale_worker(seed: int) -> Plan:
    """A worker is paused until its runs are over elsewhere, then it wakes up and goes on."""
    rng = random.Random(seed)
    runs = [_text_run(rng, n, 0.02 * n, 3.0) for n in range(1, 13)]
    pause = Fault(at_s=1.5, kind="stop_worker", target=0, seconds=7.0)
    return Plan(seed=seed, runs=tuple(runs), faults=(pause,), ack_wait_s=1.0)


def lost_events(seed: int) -> Plan:
    """Events are lost on their way to the stream, and nothing else happens."""
    rng = random.Random(seed)
    runs = [_text_run(rng, n, 0.05 * n, 1.5) for n in range(1, 9)]
    return Plan(seed=seed, runs=tuple(runs), drop_every=7, calm=True)


def interrupted_tools(seed: int) -> Plan:
    """A worker is killed when its runs have finished a step with tools and are in the next."""
    rng = random.Random(seed)
    runs = [_tool_run(rng, n, 0.03 * n, 0.8) for n in range(1, 13)]
    kill = Fault(at_s=2.2, kind="kill_worker", target=0)
    return Plan(seed=seed, runs=tuple(runs), faults=(kill,), ack_wait_s=1.0)


def rolling(seed: int, *, rate: float, for_s: float, workers: int = 3, **more: Any) -> Plan:
    """Runs at a steady rate while every worker is replaced, one after the other."""
    rng = random.Random(seed)
    count = round(rate * for_s)
    runs = [
        _text_run(rng, n, n / rate, rng.uniform(0.3, 1.2))
        if rng.random() < 0.8
        else _tool_run(rng, n, n / rate, rng.uniform(0.1, 1.0))
        for n in range(1, count + 1)
    ]
    gap = for_s / (workers + 1)
    rolls = [Fault(at_s=gap * (n + 0.5), kind="roll_worker", target=n) for n in range(workers)]
    return Plan(
        seed=seed,
        runs=tuple(runs),
        faults=tuple(rolls),
        workers=workers,
        uncounted=True,
        **more,
    )
