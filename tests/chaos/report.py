"""What is printed of a chaos run."""

from collections import Counter
from collections.abc import Sequence

from tests.chaos.checker import CATEGORIES, Violation
from tests.chaos.evidence import Evidence
from tests.chaos.recovery import percentile, recoveries

__all__ = ["recovery_limit_s", "summary", "told"]


def recovery_limit_s(evidence: Evidence) -> float:
    """What the 99th percentile of recoveries may be."""
    return evidence.plan.ack_wait_s + 2.0


def told(violations: Sequence[Violation], most: int = 40) -> str:
    """Violations, one a line, each rule's first ones."""
    lines = [f"  {one.rule:<15} run {one.run}: {one.what}" for one in violations[:most]]
    if len(violations) > most:
        lines.append(f"  … and {len(violations) - most} more")
    return "\n".join(lines)


def summary(evidence: Evidence, violations: Sequence[Violation]) -> str:
    """The table."""
    plan = evidence.plan
    kinds = Counter(line["kind"] for line in evidence.faults if line["what"] == "fault")
    statuses = Counter(result.status for result in evidence.results.values())
    resumed = sum(max(0, claim.attempt - 1) for claim in evidence.claims.values())
    rules = Counter(one.rule for one in violations)
    rows: list[tuple[str, str]] = [
        ("seed", str(plan.seed)),
        ("runs accepted", f"{len(evidence.accepted)} of {len(plan.runs)}"),
        ("ended", _counts(statuses)),
        ("further attempts", str(resumed)),
        ("parked", str(sum(line["what"] == "parked" for line in evidence.workers))),
        ("events stored", str(sum(map(len, evidence.events.values())))),
        ("tools executed", str(sum(line["what"] == "tool" for line in evidence.workers))),
        ("faults", _counts(kinds)),
    ]
    for name, members in CATEGORIES.items():
        found = {rule: rules[rule] for rule in members if rules[rule]}
        shown = f"{sum(found.values())}" + (f"  ({_counts(found)})" if found else "")
        rows.append((name, shown))
    rows += _recovery_rows(evidence)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _recovery_rows(evidence: Evidence) -> list[tuple[str, str]]:
    found = recoveries(evidence)
    limit = recovery_limit_s(evidence)
    rows: list[tuple[str, str]] = []
    for name, values in (("kill alone", found.alone), ("all kills", found.all)):
        middle, late = percentile(values, 0.5), percentile(values, 0.99)
        if middle is None or late is None:
            shown = "none interrupted a run"
        else:
            shown = f"p50 {middle:.2f} s, p99 {late:.2f} s, {len(values)} runs (limit {limit:g} s)"
        rows.append((f"recovery, {name}", shown))
    return rows


def _counts(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
