"""What one measurement does: shared by the process that loads, the one that answers, the report."""

import re

import msgspec

__all__ = ["PROMPT", "Measured", "Plan", "Where", "prompt_of"]

PROMPT = re.compile(rb"answer with (steady|burst) chunks: (\d+)")


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where a load goes. `way` is "nats", with two subjects, or "sse", with a model and a path."""

    way: str
    address: str
    requests: str
    events: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One load: `streams` at once, started evenly over `ramp_s`; after `settle_s` more seconds
    the window of `measure_s` opens. A burst has no window: everything counts.
    """

    where: Where
    streams: int
    chunks: int
    burst: bool = False
    ramp_s: float = 0.0
    settle_s: float = 0.0
    measure_s: float = 0.0
    grace_s: float = 5.0
    """How long to wait for streams to end before they are given up."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the consumer saw in the window. Times in seconds.

    `missing` counts chunks that never came, `unfinished` streams whose end never came.
    """

    chunks: int
    events: int
    window_s: float
    latencies_us: list[int]
    first_event_us: list[int]
    missing: int
    unfinished: int
    doubled: int


def prompt_of(plan: Plan) -> str:
    """The message that makes the provider answer as planned."""
    return f"answer with {'burst' if plan.burst else 'steady'} chunks: {plan.chunks}"
