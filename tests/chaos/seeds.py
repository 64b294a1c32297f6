"""Plans from a seed: kinds of runs mixed, faults at random moments. Same seed, same plan."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.chaos.plan import (
    Call,
    ConsumerKind,
    Fault,
    FaultKind,
    Plan,
    PlannedRun,
    Step,
    Trouble,
    TroubleKind,
    message_id_of,
)

__all__ = ["ALL_FAULTS", "CLUSTER_FAULTS", "WORKER_FAULTS", "random_plan"]

WORKER_FAULTS: dict[FaultKind, int] = {"kill_worker": 40, "stop_worker": 25, "roll_worker": 15}
SERVER_FAULTS: dict[FaultKind, int] = {"kill_nats": 8, "stop_nats": 6, "restart_nats": 6}
ALL_FAULTS: dict[FaultKind, int] = {**WORKER_FAULTS, **SERVER_FAULTS}
CLUSTER_FAULTS: dict[FaultKind, int] = {"kill_leader": 1, "stop_leader": 1, "isolate_leader": 2}

# A pause is long or short measured by what the server allows: just under, at, just over, far over.
_PAUSES = (0.5, 0.9, 0.98, 1.0, 1.02, 1.1, 1.5, 2.5)

_CONSUMERS: dict[ConsumerKind, int] = {
    "live": 45,
    "late": 15,
    "slow": 4,
    "reconnecting": 8,
    "vanishing": 10,
    "result": 18,
}


def random_plan(
    seed: int,
    *,
    runs: int,
    workers: int = 2,
    rate: float = 8.0,
    fault_every_s: float = 4.0,
    faults: dict[FaultKind, int] | None = None,
    **settings: Any,
) -> Plan:
    """A plan of `runs` runs, `rate` of them a second, with a fault about every so many seconds."""
    rng = random.Random(seed)
    planned: list[PlannedRun] = []
    at_s = 0.0
    threads = _Threads(rng)
    for number in range(1, runs + 1):
        at_s += rng.expovariate(rate)
        planned.append(_run(rng, number, round(at_s, 3), threads))
    plan = Plan(seed=seed, runs=tuple(planned), workers=workers, **settings)
    chosen = _faults(
        rng,
        until_s=at_s + 2.0,
        every_s=fault_every_s,
        workers=workers,
        ack_wait_s=plan.ack_wait_s,
        kinds=ALL_FAULTS if faults is None else faults,
    )
    return msgspec.structs.replace(plan, faults=chosen)


def _faults(
    rng: random.Random,
    *,
    until_s: float,
    every_s: float,
    workers: int,
    ack_wait_s: float,
    kinds: dict[FaultKind, int],
) -> tuple[Fault, ...]:
    """Faults at random times before `until_s`."""
    found: list[Fault] = []
    at_s = rng.uniform(0.5, 1.5)
    while kinds and at_s < until_s:
        kind = _pick(rng, kinds)
        found.append(
            Fault(
                at_s=round(at_s, 3),
                kind=kind,
                target=rng.randrange(6 if kind.endswith("leader") else workers),
                seconds=round(_seconds(rng, kind, ack_wait_s), 3),
            )
        )
        at_s += rng.uniform(0.2, 1.8) * every_s
    return tuple(found)


def _seconds(rng: random.Random, kind: FaultKind, ack_wait_s: float) -> float:
    if kind == "stop_worker":
        return rng.choice(_PAUSES) * ack_wait_s
    if kind == "stop_nats":
        return rng.choice((0.3, 0.9, 1.2, 2.0)) * ack_wait_s
    if kind.endswith("leader"):
        # Longer than an election takes, so that there is a new leader before the old one is back.
        return rng.uniform(6.0, 9.0)
    if kind == "kill_nats":
        return rng.uniform(0.1, 1.5 * ack_wait_s)
    return 0.0


def _pick(rng: random.Random, weights: dict[Any, int]) -> Any:
    return rng.choices(list(weights), weights=list(weights.values()))[0]


class _Threads:
    """Conversations that a few runs share, so that some have to wait for one another."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._open: list[tuple[str, int]] = []

    def some(self) -> str | None:
        if self._rng.random() > 0.25:
            return None
        if self._open and self._rng.random() < 0.5:
            at = self._rng.randrange(len(self._open))
            name, left = self._open.pop(at)
            if left > 1:
                self._open.append((name, left - 1))
            return name
        name = f"t{self._rng.getrandbits(48):012x}"
        self._open.append((name, self._rng.randint(1, 3)))
        return name


def _run(rng: random.Random, number: int, at_s: float, threads: _Threads) -> PlannedRun:
    kind = _pick(rng, {name: weight for name, (weight, _) in _KINDS.items()})
    run = PlannedRun(
        number=number,
        message_id=message_id_of(rng),
        at_s=at_s,
        kind=kind,
        steps=(),
        mode="answer" if rng.random() < 0.2 else "stream",
        consumer=_pick(rng, _CONSUMERS),
        thread_id=threads.some(),
    )
    return _KINDS[kind][1](rng, run)


def _pace(rng: random.Random) -> float:
    return round(rng.uniform(0.03, 0.12), 3)


def _words(rng: random.Random, fewest: int = 3, most: int = 20) -> int:
    return rng.randint(fewest, most)


def _last(rng: random.Random) -> Step:
    return Step(words=_words(rng, 4, 25), pace_s=_pace(rng))


def _some_time(rng: random.Random) -> float:
    return 0.0 if rng.random() < 0.3 else round(rng.uniform(0.05, 1.2), 3)


def _call(rng: random.Random, tools: Sequence[str] = ("look_up", "compute")) -> Call:
    seconds = _some_time(rng)
    return Call(tool=rng.choice(tools), seconds=seconds)


def _step(rng: random.Random, calls: int) -> Step:
    made = tuple(_call(rng) for _ in range(calls))
    return Step(words=_words(rng, 0, 10), pace_s=_pace(rng), calls=made)


def _text(rng: random.Random, run: PlannedRun) -> PlannedRun:
    step = Step(words=_words(rng, 8, 50), pace_s=_pace(rng))
    return msgspec.structs.replace(run, steps=(step,), agent="talker")


def _sequential(rng: random.Random, run: PlannedRun) -> PlannedRun:
    steps = tuple(_step(rng, rng.randint(1, 2)) for _ in range(rng.randint(1, 4)))
    return msgspec.structs.replace(run, steps=(*steps, _last(rng)))


def _parallel(rng: random.Random, run: PlannedRun) -> PlannedRun:
    steps = tuple(_step(rng, rng.randint(2, 5)) for _ in range(rng.randint(1, 2)))
    at_once = rng.randint(2, 4)
    return msgspec.structs.replace(run, steps=(*steps, _last(rng)), tool_concurrency=at_once)


def _approval(rng: random.Random, run: PlannedRun) -> PlannedRun:
    asked: list[Call] = []
    for _ in range(rng.randint(1, 2)):
        late = rng.random() < 0.25
        asked.append(
            Call(
                tool="refund",
                seconds=round(rng.uniform(0, 0.5), 3),
                decision=rng.choice(("approve", "approve", "deny", "modify")),
                decide_after_s=round(rng.uniform(3, 7) if late else rng.uniform(0, 1.5), 3),
            )
        )
    first = (_step(rng, 1),) if rng.random() < 0.5 else ()
    step = Step(words=_words(rng, 0, 5), pace_s=_pace(rng), calls=tuple(asked))
    return msgspec.structs.replace(run, steps=(*first, step, _last(rng)))


def _say(rng: random.Random, run: PlannedRun) -> PlannedRun:
    run = (_sequential if rng.random() < 0.7 else _text)(rng, run)
    return msgspec.structs.replace(run, say_after_s=round(rng.uniform(0, run.length_s), 3))


def _cancel(rng: random.Random, run: PlannedRun) -> PlannedRun:
    make: Callable[[random.Random, PlannedRun], PlannedRun] = rng.choice(
        (_text, _sequential, _parallel, _approval)
    )
    run = make(rng, run)
    after = round(rng.uniform(0, 1.2) * run.length_s, 3)
    return msgspec.structs.replace(run, cancel_after_s=after, cancel_twice=rng.random() < 0.3)


def _large(rng: random.Random, run: PlannedRun) -> PlannedRun:
    """Outputs, checkpoints, results and requests beyond what a message may have, and below."""
    sizes = (20_000, 100_000, 300_000)
    steps = tuple(
        Step(
            words=_words(rng, 1, 5),
            pace_s=_pace(rng),
            calls=(Call(tool="look_up", seconds=_some_time(rng), size=rng.choice(sizes)),),
        )
        for _ in range(rng.randint(1, 2))
    )
    prompt_size = rng.choice((0, 0, 0, 400_000))
    return msgspec.structs.replace(run, steps=(*steps, _last(rng)), prompt_size=prompt_size)


def _troubled(rng: random.Random, run: PlannedRun) -> PlannedRun:
    run = (_sequential if rng.random() < 0.5 else _text)(rng, run)
    kind: TroubleKind = rng.choice(("status", "status", "abort", "close", "hang"))
    status = rng.choice((503, 500, 429))
    at = rng.randrange(len(run.steps))
    trouble = Trouble(kind=kind, status=status, times=rng.randint(1, 2))
    steps = list(run.steps)
    steps[at] = msgspec.structs.replace(steps[at], trouble=trouble)
    run = msgspec.structs.replace(run, steps=tuple(steps))
    if kind != "hang":
        # No more often than a model call is made again.
        return run
    return msgspec.structs.replace(
        run, timeout_s=round(run.length_s + 6, 1), may_fail=("deadline_exceeded",)
    )


_KINDS: dict[str, tuple[int, Callable[[random.Random, PlannedRun], PlannedRun]]] = {
    "text": (22, _text),
    "sequential": (25, _sequential),
    "parallel": (15, _parallel),
    "approval": (12, _approval),
    "say": (6, _say),
    "cancel": (10, _cancel),
    "large": (4, _large),
    "troubled": (6, _troubled),
}
