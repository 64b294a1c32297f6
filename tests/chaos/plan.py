"""What happens in one chaos run: the runs, the faults, and when. All of it follows from a seed.

A plan is a value that is written to a file: the provider, the workers and the checker read the
same one. Times are seconds after the load begins.
"""

import random
import uuid
from pathlib import Path
from typing import Literal

import msgspec

__all__ = [
    "Call",
    "ConsumerKind",
    "Fault",
    "FaultKind",
    "Plan",
    "PlannedRun",
    "Step",
    "Trouble",
    "marker",
    "prompt_of",
    "read_plan",
    "words_of",
    "write_plan",
]

DecisionKind = Literal["approve", "deny", "modify"]
ConsumerKind = Literal["live", "late", "slow", "reconnecting", "vanishing", "result"]
FaultKind = Literal[
    "kill_worker",
    "stop_worker",
    "roll_worker",
    "kill_nats",
    "stop_nats",
    "restart_nats",
    "kill_leader",
    "stop_leader",
    "isolate_leader",
]
TroubleKind = Literal["status", "abort", "close", "hang"]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that the model makes. The tool takes `seconds` and answers with about `size`
    bytes. `decision` is what a person says about it, `decide_after_s` after being asked."""

    tool: str
    seconds: float = 0.0
    size: int = 0
    decision: DecisionKind | None = None
    decide_after_s: float = 0.0


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider does instead, the first `times` times it is asked for a step: an HTTP
    error, a reset or an early end in the middle of the stream, silence."""

    kind: TroubleKind
    status: int = 503
    times: int = 1


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One model call: so many words, `pace_s` between two of them, then the calls."""

    words: int
    pace_s: float = 0.05
    calls: tuple[Call, ...] = ()
    trouble: Trouble | None = None


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, who watches it, and what is sent to it. `may_fail` are the error codes that the
    plan itself can lead to."""

    number: int
    message_id: str
    at_s: float
    kind: str
    steps: tuple[Step, ...]
    agent: str = "clerk"
    mode: Literal["stream", "answer"] = "stream"
    consumer: ConsumerKind = "live"
    thread_id: str | None = None
    tool_concurrency: int = 1
    cancel_after_s: float | None = None
    cancel_twice: bool = False
    say_after_s: float | None = None
    timeout_s: float | None = None
    may_fail: tuple[str, ...] = ()
    prompt_size: int = 0
    """How much longer than need be the user's message is."""

    @property
    def length_s(self) -> float:
        """About how long it takes where nothing goes wrong."""
        total = 0.0
        for step in self.steps:
            total += step.words * step.pace_s
            waits = [call.seconds + call.decide_after_s for call in step.calls]
            total += max(waits, default=0) if self.tool_concurrency > 1 else sum(waits)
        return total


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that breaks. `target` is the worker's place, or the number of the stream whose
    leader is hit; `seconds` how long a pause or an outage lasts."""

    at_s: float
    kind: FaultKind
    target: int = 0
    seconds: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. `calm`: nothing breaks, so no request may be delivered twice. `uncounted`:
    workers only leave as they should, so no run may count a second attempt."""

    seed: int
    runs: tuple[PlannedRun, ...]
    faults: tuple[Fault, ...] = ()
    servers: int = 1
    workers: int = 2
    ack_wait_s: float = 2.0
    max_attempts: int = 20
    concurrency: int = 64
    drain_timeout_s: float = 2.0
    park_after_s: float = 2.0
    calm: bool = False
    uncounted: bool = False
    drop_every: int = 0
    """Workers lose every so-many-th event on its way to the server; 0: none."""
    dead_letters: int = 0
    """How many requests the plan itself leads to give up on."""

    @property
    def length_s(self) -> float:
        """When the last run should be over where nothing goes wrong."""
        ends = [run.at_s + run.length_s for run in self.runs]
        return max([*ends, *(fault.at_s + fault.seconds for fault in self.faults)], default=0.0)


def marker(run: int) -> str:
    """What stands in the prompt of a run, and in no other message."""
    return f"[run {run}]"


def prompt_of(run: PlannedRun) -> str:
    """The user's message."""
    return f"{marker(run.number)} {run.kind}{' ' * bool(run.prompt_size)}{'x' * run.prompt_size}"


def words_of(run: int, step: int, count: int, request: str) -> list[str]:
    """The text of one model call, in pieces; step counts from 1. Every piece says where it
    belongs, and which request it answers: models do not say the same twice, and texts of two
    attempts that got mixed are seen."""
    return [f"r{run}s{step}w{word}.{request[:6]} " for word in range(count)]


def write_plan(plan: Plan, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(plan))


def read_plan(path: Path) -> Plan:
    return msgspec.json.decode(path.read_bytes(), type=Plan)


def message_id_of(rng: random.Random) -> str:
    """A UUID that follows from the seed."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
