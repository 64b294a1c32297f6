"""Metrics, all names in one place. Labels are closed sets: agents that are registered, outcomes
and error codes of the contract; never an id or a subject."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hayrunner_contracts.errors import ERROR_CODES

__all__ = ["Metrics"]

_OTHER = "_OTHER"
_WAIT_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800)
_RUN_BUCKETS = (0.05, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """One worker's metrics, in a registry of their own."""

    def __init__(self, agents: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._agents = frozenset(agents)
        self._started = self._counter("runs_started", "Attempts begun", "agent")
        self._ended = self._counter("runs_ended", "Runs ended", "agent", "outcome", "error_code")
        self._redelivered = self._counter("redeliveries", "Requests delivered again", "agent")
        self._dead = self._counter("dead_letters", "Requests given up on", "agent", "error_code")
        self._misses = self._counter("heartbeat_misses", "Heartbeats that came too late")
        self._repaired = self._counter(
            "events_repaired", "Events published again because the stream lacked them"
        )
        self._active = Gauge(
            "hayrunner_runs_active", "Runs going on now", ["agent"], registry=self.registry
        )
        self._queue_wait = self._histogram(
            "queue_wait_seconds", "From request to start", _WAIT_BUCKETS
        )
        self._duration = self._histogram(
            "run_duration_seconds", "From start to end of an attempt", _RUN_BUCKETS
        )

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"hayrunner_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"hayrunner_{name}", what, ["agent"], buckets=buckets, registry=self.registry
        )

    def run_started(self, agent: str, *, queue_wait_s: float | None) -> None:
        agent = self._agent(agent)
        self._started.labels(agent).inc()
        self._active.labels(agent).inc()
        if queue_wait_s is not None:
            self._queue_wait.labels(agent).observe(max(0.0, queue_wait_s))

    def run_left(self, agent: str, *, duration_s: float) -> None:
        """The attempt is over here, whether or not the run has ended."""
        agent = self._agent(agent)
        self._active.labels(agent).dec()
        self._duration.labels(agent).observe(duration_s)

    def run_ended(self, agent: str, *, outcome: str, error_code: str | None) -> None:
        self._ended.labels(self._agent(agent), outcome, self._code(error_code)).inc()

    def redelivered(self, agent: str) -> None:
        self._redelivered.labels(self._agent(agent)).inc()

    def dead_letter(self, agent: str, error_code: str) -> None:
        self._dead.labels(self._agent(agent), self._code(error_code)).inc()

    def heartbeat_missed(self) -> None:
        self._misses.inc()

    def events_repaired(self, count: int) -> None:
        self._repaired.inc(count)

    def exposition(self) -> bytes:
        """The Prometheus text form."""
        return generate_latest(self.registry)

    def _agent(self, agent: str) -> str:
        return agent if agent in self._agents else _OTHER

    def _code(self, code: str | None) -> str:
        if code is None:
            return ""
        return code if code in ERROR_CODES else _OTHER
