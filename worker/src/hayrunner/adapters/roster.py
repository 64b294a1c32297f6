"""Who an agent can ask: the agents of its worker, and those that are reached over the bus."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hayrunner_contracts.events import StreamEvent, UnknownEvent
from hayrunner_contracts.results import RunResult

__all__ = ["OnEvent", "RemoteAgents", "RemoteCall", "Roster"]

OnEvent = Callable[[StreamEvent | UnknownEvent], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class RemoteCall:
    """A task for an agent elsewhere. `path` names the agents above it, the outermost first;
    `deadline` is in seconds since the epoch."""

    agent: str
    prompt: str
    path: tuple[str, ...]
    user: str | None = None
    tool_context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    token_budget: int | None = None
    deadline: float | None = None
    record_content_telemetry: bool = False


class RemoteAgents(Protocol):
    """Calls agents over the bus. The worker gives one to its registry."""

    async def run(self, call: RemoteCall, on_event: OnEvent) -> RunResult:
        """Run it to its end; every event is given to `on_event`, in order.

        Raises `RunError` where the call cannot be made or its end is not learnt. Cancelling this
        cancels the run over there.
        """
        ...


@dataclass(kw_only=True)
class Roster:
    """The agents by the names they are registered under, and the way to all others.

    `max_depth` is how deep subagents may be nested; None for the setting's value.
    """

    agents: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remote: RemoteAgents | None = None
    max_depth: int | None = None
