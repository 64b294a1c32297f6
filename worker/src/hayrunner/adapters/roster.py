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
    `deadline` is in seconds since the epoch.

    `key` is the same in every attempt at the run that asks: the task is then done once, and a
    later attempt finds it. None where the run starts over, and asks anew. `is_over` says of a
    cancel whether the run that asks ends by it, or goes on elsewhere.
    """

    agent: str
    prompt: str
    path: tuple[str, ...]
    user: str | None = None
    tool_context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    token_budget: int | None = None
    deadline: float | None = None
    record_content_telemetry: bool = False
    key: str | None = None
    is_over: Callable[[], bool] = lambda: True


class RemoteAgents(Protocol):
    """Calls agents over the bus. The worker gives one to its registry."""

    async def run(self, call: RemoteCall, on_event: OnEvent) -> RunResult:
        """Run it to its end; every event is given to `on_event`, in order.

        Raises `RunError` where the call cannot be made or its end is not learnt. Cancelling this
        cancels the run over there, unless the one that asks goes on elsewhere and finds it again.
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
