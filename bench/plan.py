"""What one measurement does: shared by the process that loads, the one that answers, the report."""

import re

import msgspec

__all__ = ["PROMPT", "Measured", "Plan", "Where", "prompt_of"]

PROMPT = re.compile(rb"answer with (steady|burst) chunks: (\d+)(?:, after (\d+) calls)?")

_WORDS = "and remember what was said before "


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where a load goes. `way` is "nats", with two subjects, or "sse", with a model and a path."""

    way: str
    address: str
    requests: str
    events: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One load: `streams` at once, started evenly over `ramp_s`; after `settle_s` more seconds
    the window of `measure_s` opens. A burst has no window, and with `whole` none has: everything
    counts, from the first request to the last end. Before its text every answer calls the tool
    `calls` times, one call per turn; `prompt_bytes` is how long the question is, about.
    """

    where: Where
    streams: int
    chunks: int
    burst: bool = False
    whole: bool = False
    calls: int = 0
    prompt_bytes: int = 0
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
    said: int = 0
    """Events of any type."""
    run_us: list[int] = []
    """From the request to `stream_end`, of every stream that ended."""
    end_us: list[int] = []
    """From `message_end`, which is published as it comes, to `stream_end`, which is stored."""


def prompt_of(plan: Plan) -> str:
    """The message that makes the provider answer as planned."""
    asked = f"answer with {'burst' if plan.burst else 'steady'} chunks: {plan.chunks}"
    if plan.calls:
        asked += f", after {plan.calls} calls"
    more = max(0, plan.prompt_bytes - len(asked)) // len(_WORDS)
    return f"{asked} {_WORDS * more}".strip()
