"""One worker's metrics: what is counted, and that its labels are closed sets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from hayrunner.telemetry import definitions
from hayrunner.telemetry.definitions import Definition
from hayrunner.telemetry.instruments import Instrument, meter_of_the_process
from hayrunner.telemetry.model_meter import CallLabels
from hayrunner.telemetry.providers import PROVIDERS
from hayrunner_contracts.errors import ERROR_CODES

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["Metrics"]

_OTHER = "_OTHER"
# A configuration may make its models' names at run time.
_MODELS_MOST = 100


class Metrics:
    """One worker's metrics, in a registry of their own, so that no other exporter of the process
    shows them a second time. `meter` None: that of the process, if it has one now."""

    def __init__(self, agents: Iterable[str] = (), *, meter: "Meter | None" = None) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._agents = frozenset(agents)
        self._models: set[str] = set()
        meter = meter or meter_of_the_process()

        def made(definition: Definition) -> Instrument:
            return Instrument(definition, self.registry, meter)

        self._started = made(definitions.RUNS_STARTED)
        self._ended = made(definitions.RUNS_ENDED)
        self._active = made(definitions.RUNS_ACTIVE)
        self._queue_wait = made(definitions.QUEUE_WAIT)
        self._duration = made(definitions.RUN_DURATION)
        self._published = made(definitions.PUBLISH_DURATION)
        self._redelivered = made(definitions.REDELIVERIES)
        self._dead = made(definitions.DEAD_LETTERS)
        self._misses = made(definitions.HEARTBEAT_MISSES)
        self._repaired = made(definitions.EVENTS_REPAIRED)
        self._call_duration = made(definitions.CALL_DURATION)
        self._first_chunk = made(definitions.CALL_FIRST_CHUNK)
        self._tokens = made(definitions.TOKEN_USAGE)

    # --- runs and the bus

    def run_started(self, agent: str, *, queue_wait_s: float | None) -> None:
        agent = self._agent(agent)
        self._started.add(1, agent)
        self._active.add(1, agent)
        if queue_wait_s is not None:
            self._queue_wait.record(max(0.0, queue_wait_s), agent)

    def run_left(self, agent: str, *, duration_s: float) -> None:
        """The attempt is over here, whether or not the run has ended."""
        agent = self._agent(agent)
        self._active.add(-1, agent)
        self._duration.record(duration_s, agent)

    def run_ended(self, agent: str, *, outcome: str, error_code: str | None) -> None:
        self._ended.add(1, self._agent(agent), outcome, _code(error_code))

    def event_stored(self, duration_s: float) -> None:
        """An event whose storing is waited for was stored: the first and the last of each run."""
        self._published.record(duration_s)

    def redelivered(self, agent: str) -> None:
        self._redelivered.add(1, self._agent(agent))

    def dead_letter(self, agent: str, error_code: str) -> None:
        self._dead.add(1, self._agent(agent), _code(error_code))

    def heartbeat_missed(self) -> None:
        self._misses.add(1)

    def events_repaired(self, count: int) -> None:
        self._repaired.add(count)

    # --- model calls: a `ModelMeter`

    def model_called(
        self,
        call: CallLabels,
        *,
        duration_s: float,
        first_chunk_s: float | None,
        error_code: str | None,
    ) -> None:
        """See `ModelMeter`."""
        labels = self._call(call)
        self._call_duration.record(duration_s, *labels, _code(error_code))
        if first_chunk_s is not None:
            self._first_chunk.record(first_chunk_s, *labels)

    def tokens_used(self, call: CallLabels, *, input_tokens: int, output_tokens: int) -> None:
        """See `ModelMeter`."""
        labels = self._call(call)
        self._tokens.record(input_tokens, *labels, "input")
        self._tokens.record(output_tokens, *labels, "output")

    def exposition(self) -> bytes:
        """The Prometheus text form."""
        return generate_latest(self.registry)

    def _call(self, call: CallLabels) -> tuple[str, str, str, str]:
        provider = call.provider if call.provider in PROVIDERS else _OTHER
        return "chat", provider, self._model(call.model), self._agent(call.agent)

    def _agent(self, agent: str) -> str:
        return agent if agent in self._agents else _OTHER

    def _model(self, model: str | None) -> str:
        if model is None or model in self._models:
            return model or _OTHER
        if len(self._models) >= _MODELS_MOST:
            return _OTHER
        self._models.add(model)
        return model


def _code(code: str | None) -> str:
    if code is None:
        return ""
    return code if code in ERROR_CODES else _OTHER
