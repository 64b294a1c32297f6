"""One load on one target: what the consumer saw, and what every process spent on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from contenders import Target
from plan import Measured, Plan
from processes import Child, busy_s, child, usage_of

__all__ = ["Consumption", "consumed", "percentile_ms"]


@dataclass(frozen=True, kw_only=True)
class Consumption:
    """`spent` is CPU time by process, in seconds; `rss` bytes of the target's own one."""

    measured: Measured
    spent: dict[str, float]
    foreign_cores: float
    rss: int


async def consumed(target: Target, plan: Plan) -> Consumption:
    """Put the load on the target."""
    argument = msgspec.json.encode(plan).decode()
    async with child("consumer", "consumer.py", argument) as consumer:
        pids = {**target.pids, "consumer": consumer.pid}
        limit = plan.ramp_s + plan.settle_s + plan.measure_s + 30.0
        await _word(consumer, "opened", limit)
        busy, before = busy_s(), usage_of(pids)
        await _word(consumer, "closed", max(limit, plan.grace_s + 10.0))
        after, busy = usage_of(pids), busy_s() - busy
        measured = msgspec.json.decode(await consumer.line(plan.grace_s + 30.0), type=Measured)
        foreign = busy - sum(after[name].cpu_s - before[name].cpu_s for name in after)
    return Consumption(
        measured=measured,
        spent={name: after[name].cpu_s - before[name].cpu_s for name in after},
        foreign_cores=max(0.0, foreign) / max(measured.window_s, 1e-9),
        rss=after["it"].rss,
    )


async def _word(consumer: Child, expected: str, limit_s: float) -> None:
    said = await consumer.line(limit_s)
    if said != expected:
        raise RuntimeError(f"the consumer said {said!r} where {expected!r} was to come")


def percentile_ms(sorted_us: Sequence[int], share: float) -> float | None:
    """That percentile of times in µs, in ms; None of none."""
    if not sorted_us:
        return None
    return sorted_us[min(len(sorted_us) - 1, int(len(sorted_us) * share))] / 1000
