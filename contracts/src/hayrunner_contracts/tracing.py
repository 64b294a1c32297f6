"""What a client needs of whoever traces its requests; `hayrunner_contracts.otel` is one."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

__all__ = ["NoTracing", "RequestTracing"]


class RequestTracing(Protocol):
    """Told of every request that is published, durable ones and direct ones."""

    def sending(
        self, destination: str, message_id: str | None, size: int
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Entered right before a request is published to `destination`, the subject of an agent's
        requests; left when it is known to be stored, sent, or not. Gives the headers that carry
        the trace to the worker. What it raises would fail the request: nothing."""
        ...


class NoTracing:
    """Traces nothing."""

    def sending(
        self, destination: str, message_id: str | None, size: int
    ) -> AbstractContextManager[Mapping[str, str]]:
        return _NOTHING


_NOTHING: AbstractContextManager[Mapping[str, str]] = nullcontext({})
