"""Guarantees with a plan of their own, and printed lines: `python -m tests.chaos --show NAME`."""

from collections.abc import Awaitable, Callable

from tests.chaos.breakage import Breakage
from tests.chaos.harness import Verdict, play
from tests.chaos.plan import Plan
from tests.chaos.report import told
from tests.chaos.scenarios import (
    interrupted_tools,
    long_runs,
    lost_events,
    rolling,
    stale_worker,
)

__all__ = ["BROKEN", "GUARANTEES", "longest_pause_s"]

_SHORT_PATIENCE_S = 5.0

BROKEN: dict[Breakage, tuple[Callable[[], Plan], set[str]]] = {
    "fencing": (lambda: stale_worker(11), {"after_end", "two_ends"}),
    "heartbeat": (lambda: long_runs(12, times=3.0), {"redelivered"}),
    "verification": (lambda: lost_events(13), {"gap"}),
    "checkpoints": (lambda: interrupted_tools(14), {"tool_key", "tool_repeated"}),
}
"""What is taken away from the workers, where it shows, and the rules of which one must say so."""


async def _long_runs() -> bool:
    plan = long_runs(12)
    verdict = await play(plan)
    times = min(run.length_s for run in plan.runs) / plan.ack_wait_s
    lines = [line for line in verdict.evidence.workers if line["what"] == "delivery"]
    again = sum(line["times"] > 1 for line in lines)
    print(
        f"long runs: {len(plan.runs)} runs, each longer than {times:.1f} times ack_wait "
        f"({plan.ack_wait_s:g} s): {len(lines)} deliveries, {again} of them again"
    )
    return _clean(verdict)


async def _rolling() -> bool:
    plan = rolling(15, rate=50.0, for_s=30.0)
    verdict = await play(plan)
    results = verdict.evidence.results.values()
    failed = sum(result.status != "completed" for result in results)
    counted = sum(result.attempts > 1 for result in results)
    moved = sum(claim.attempt > 1 for claim in verdict.evidence.claims.values())
    pause, planned = longest_pause_s(verdict)
    print(
        f"rolling restart: {len(plan.faults)} workers replaced under 50 runs/s: "
        f"{len(results)} of {len(plan.runs)} runs ended, {failed} failed, {counted} counted an "
        f"attempt; {moved} went on elsewhere; the longest pause a consumer saw is {pause:.2f} s, "
        f"where the provider's own is {planned:.2f} s"
    )
    return _clean(verdict)


def longest_pause_s(verdict: Verdict) -> tuple[float, float]:
    """Between two events, as live consumers of runs without tools saw it; and the longest that
    the provider makes there."""
    texts = {run.number: run for run in verdict.evidence.plan.runs if run.agent == "talker"}
    seen = [one for one in verdict.evidence.seen if one.kind == "live" and one.run in texts]
    planned = max((texts[one.run].steps[0].pace_s for one in seen), default=0.0)
    return max((one.longest_pause_s for one in seen), default=0.0), planned


async def _broken() -> bool:
    good = True
    for name, (make, rules) in BROKEN.items():
        verdict = await play(make(), broken=name, patience_s=_SHORT_PATIENCE_S)
        caught = sorted(rules & verdict.rules)
        good = good and bool(caught)
        verb = f"caught by {', '.join(caught)}" if caught else "NOT caught"
        print(f"workers without {name}: {verb} ({len(verdict.violations)} violations)", flush=True)
    return good


def _clean(verdict: Verdict) -> bool:
    if verdict.violations:
        print(f"{len(verdict.violations)} violations; everything is in {verdict.folder}")
        print(told(verdict.violations))
    return not verdict.violations


GUARANTEES: dict[str, Callable[[], Awaitable[bool]]] = {
    "long": _long_runs,
    "rolling": _rolling,
    "broken": _broken,
}
"""Each plays, prints what it saw, and says whether it is as promised."""
