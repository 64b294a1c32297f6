"""Requests given up on: the original bytes, headers and the reason, in `DEAD_RUNS`."""

import re

from hayrunner.serving.bus import Bus
from hayrunner.serving.stored import store
from hayrunner.telemetry.logs import get_logger
from hayrunner.telemetry.metrics import Metrics
from hayrunner_contracts import headers, subjects

__all__ = ["DeadLetters"]

_log = get_logger(__name__)

_PATIENCE_S = 10.0
_HEADER_ROOM = 1024


class DeadLetters:
    """Where the worker puts what it cannot run. Nothing leaves the queue before it is here."""

    def __init__(self, bus: Bus, metrics: Metrics) -> None:
        self._bus = bus
        self._metrics = metrics

    async def put(
        self,
        *,
        agent: str,
        subject: str,
        sequence: int,
        data: bytes,
        original_headers: dict[str, str],
        reason: str,
        message_id: str,
    ) -> None:
        """Store a request with the error code it was given up with; once per request.

        `nats.errors.Error` where that is not possible: leave it on the queue then.
        """
        # Headers of the server (message id, expectations) would act again on this stream.
        kept = {
            name: value
            for name, value in original_headers.items()
            if not name.lower().startswith("nats-")
        }
        added = {
            headers.MSG_ID: f"dead.{subjects.AGENT_REQUESTS}.{sequence}",
            headers.DEAD_REASON: reason,
            headers.ORIGINAL_SUBJECT: subject,
            headers.DEAD_SIZE: str(len(data)),
            headers.MESSAGE_ID: message_id,
        }
        # A message whose body and headers are over the server's limit closes the connection.
        room = self._bus.nc.max_payload - _HEADER_ROOM - sum(map(len, added.values()))
        if len(data) + sum(len(name) + len(value) + 4 for name, value in kept.items()) > room:
            kept = {}
        await store(
            self._bus.js,
            subjects.dead(self._bus.namespace, _as_token(agent)),
            data[:room],
            headers=kept | added,
            patience_s=_PATIENCE_S,
        )
        self._metrics.dead_letter(agent, reason)
        _log.warning("a request was given up on", error_code=reason, sequence=sequence)


def _as_token(agent: str) -> str:
    """Anybody can publish to a subject whose agent part is no valid name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", agent)[:128]
