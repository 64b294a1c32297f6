"""Every metric of the worker, once: OpenTelemetry's instruments and Prometheus' series are both
made from these.

A metric's Prometheus name follows from its own: dots become underscores, seconds are added as
`_seconds`, counters end in `_total`. Labels are closed sets: agents that are registered, outcomes
and error codes of the contract, models that an agent's configuration names, known providers;
anything else is `_OTHER`. Never an id, a subject, a user.

The `gen_ai` names, units, attributes and buckets are those of OpenTelemetry's conventions for
generative AI.
"""

from dataclasses import dataclass
from typing import Literal

from hayrunner.telemetry import names

__all__ = [
    "ALL",
    "CALL_DURATION",
    "CALL_FIRST_CHUNK",
    "DEAD_LETTERS",
    "EVENTS_REPAIRED",
    "HEARTBEAT_MISSES",
    "PUBLISH_DURATION",
    "QUEUE_WAIT",
    "REDELIVERIES",
    "RUNS_ACTIVE",
    "RUNS_ENDED",
    "RUNS_STARTED",
    "RUN_DURATION",
    "TOKEN_USAGE",
    "Definition",
]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A metric. `unit` is `s`, or a thing that is counted, in braces. `buckets` are the upper
    bounds of a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    what: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name of its series; histograms add `_bucket`, `_sum` and `_count`."""
        name = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        return f"{name}_total" if self.kind == "counter" else name

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(label.replace(".", "_") for label in self.labels)


RUNS_STARTED = Definition(
    name="hayrunner.runs.started",
    kind="counter",
    unit="{attempt}",
    what="Attempts begun",
    labels=("agent",),
)
RUNS_ENDED = Definition(
    name="hayrunner.runs.ended",
    kind="counter",
    unit="{run}",
    what="Runs ended",
    labels=("agent", "outcome", "error_code"),
)
RUNS_ACTIVE = Definition(
    name="hayrunner.runs.active",
    kind="gauge",
    unit="{run}",
    what="Runs going on now",
    labels=("agent",),
)
QUEUE_WAIT = Definition(
    name="hayrunner.queue.wait",
    kind="histogram",
    unit="s",
    what="From request to the start of the first attempt",
    labels=("agent",),
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800),
)
RUN_DURATION = Definition(
    name="hayrunner.run.duration",
    kind="histogram",
    unit="s",
    what="From start to end of an attempt",
    labels=("agent",),
    buckets=(0.05, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800),
)
PUBLISH_DURATION = Definition(
    name="hayrunner.event.publish.duration",
    kind="histogram",
    unit="s",
    what="From publishing an event to the stream's word that it is stored",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2, 10),
)
REDELIVERIES = Definition(
    name="hayrunner.redeliveries",
    kind="counter",
    unit="{request}",
    what="Requests delivered again",
    labels=("agent",),
)
DEAD_LETTERS = Definition(
    name="hayrunner.dead_letters",
    kind="counter",
    unit="{request}",
    what="Requests given up on",
    labels=("agent", "error_code"),
)
HEARTBEAT_MISSES = Definition(
    name="hayrunner.heartbeat_misses",
    kind="counter",
    unit="{heartbeat}",
    what="Heartbeats that came too late",
)
EVENTS_REPAIRED = Definition(
    name="hayrunner.events_repaired",
    kind="counter",
    unit="{event}",
    what="Events published again because the stream lacked them",
)

_CALL = (
    names.OPERATION_NAME,
    names.PROVIDER_NAME,
    names.REQUEST_MODEL,
    names.AGENT_NAME,
)
_CALL_BUCKETS = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)

CALL_DURATION = Definition(
    name="gen_ai.client.operation.duration",
    kind="histogram",
    unit="s",
    what="A model call, from request to the end of its reply",
    labels=(*_CALL, names.ERROR_TYPE),
    buckets=_CALL_BUCKETS,
)
CALL_FIRST_CHUNK = Definition(
    name="gen_ai.client.operation.time_to_first_chunk",
    kind="histogram",
    unit="s",
    what="A model call, from request to the first chunk of its reply",
    labels=_CALL,
    buckets=_CALL_BUCKETS,
)
TOKEN_USAGE = Definition(
    name="gen_ai.client.token.usage",
    kind="histogram",
    unit="{token}",
    what="Tokens of a model call, by type",
    labels=(*_CALL, "gen_ai.token.type"),
    buckets=tuple(float(4**power) for power in range(14)),
)

ALL = (
    RUNS_STARTED,
    RUNS_ENDED,
    RUNS_ACTIVE,
    QUEUE_WAIT,
    RUN_DURATION,
    PUBLISH_DURATION,
    REDELIVERIES,
    DEAD_LETTERS,
    HEARTBEAT_MISSES,
    EVENTS_REPAIRED,
    CALL_DURATION,
    CALL_FIRST_CHUNK,
    TOKEN_USAGE,
)
