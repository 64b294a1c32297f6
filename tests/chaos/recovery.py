"""How long a run stands still when its worker dies: from the kill to the next attempt's first
event."""

from collections import defaultdict
from typing import Any

import msgspec
from tests.chaos.evidence import Evidence

__all__ = ["Recoveries", "percentile", "recoveries"]

_AFTER_OUTAGE_S = 10.0


class Recoveries(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds, sorted. `alone`: nothing else was broken until the run went on; the others are
    in `all` only, where an outage of the server or a second victim adds to it."""

    alone: list[float]
    all: list[float]


def percentile(values: list[float], part: float) -> float | None:
    """Nearest rank; None where there are no values."""
    if not values:
        return None
    return values[min(len(values) - 1, int(part * len(values)))]


def recoveries(evidence: Evidence) -> Recoveries:
    """Of every run that a kill interrupted and that another worker went on with."""
    attempts = _attempts(evidence.workers)
    alone: list[float] = []
    every: list[float] = []
    for fault in evidence.faults:
        if fault["what"] != "fault" or fault["kind"] != "kill_worker":
            continue
        for lines in attempts.values():
            again = _next_begin(lines, fault["worker"], fault["t"])
            if again is None:
                continue
            every.append(again - fault["t"])
            if not _others(evidence.faults, fault, again, evidence.plan.ack_wait_s):
                alone.append(again - fault["t"])
    return Recoveries(alone=sorted(alone), all=sorted(every))


def _attempts(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line["what"] in ("begin", "end", "left"):
            found[line["message_id"]].append(line)
    return found


def _next_begin(lines: list[dict[str, Any]], worker: str, at: float) -> float | None:
    """When the run went on that this worker had when it was killed; None where it had not."""
    before = [line for line in lines if line["t"] <= at]
    if not before or before[-1]["what"] != "begin" or before[-1]["worker"] != worker:
        return None
    return next((line["t"] for line in lines if line["t"] > at and line["what"] == "begin"), None)


def _others(
    faults: list[dict[str, Any]], fault: dict[str, Any], until: float, ack_wait_s: float
) -> bool:
    """Whether something else was broken between the kill and the time the run went on."""
    began: dict[tuple[str, Any], float] = {}
    for line in faults:
        place = (line["kind"], line["worker"])
        if line["what"] == "fault":
            began[place] = line["t"]
            if line["t"] != fault["t"] and fault["t"] <= line["t"] <= until:
                return True
        elif line["kind"] != "kill_worker" and place in began:
            # A pause leaves its mark for as long as what was handed to the paused one; after an
            # outage of the server a silent worker is given more time to answer.
            mark = ack_wait_s if line["worker"] else _AFTER_OUTAGE_S
            if began[place] <= until and line["t"] + mark >= fault["t"]:
                return True
    return False
