"""What the serving half needs of an agent, and no more."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hayrunner.adapters.outcome import EventSink, RunOutcome, StepStore, StopCode
from hayrunner.adapters.roster import RemoteAgents
from hayrunner.storage.base import Threads
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.requests import RunRequest

__all__ = ["AgentRegistry", "CallsRemoteAgents", "RunSession", "ServedAgent"]


class RunSession(Protocol):
    """One attempt at one run in this process."""

    async def run(self) -> RunOutcome:
        """Run to the end. Emits everything from after `message_start` up to `message_end`.

        Failures of the model, of tools, of options are outcomes, not exceptions. `RunParked` where
        a durable run waits for a person's decision for too long to keep its place. Being cancelled
        from outside (the worker goes away) raises `CancelledError` with nothing emitted for it:
        the run is not over, another worker will go on with it.
        """
        ...

    def stop(self, code: StopCode, message: str) -> None:
        """End the run early: its provider connection is closed, its tools are cancelled, and
        `run` returns an outcome with this code. Safe to call at any time, and twice."""
        ...

    def command(self, command: RunCommand) -> None:
        """A decision on a tool call, or a further message. Kept until the run can take it,
        ignored where it never can. Safe to call at any time; the same one twice is two."""
        ...

    def durable(self, steps: StepStore) -> bool:
        """Before `run`: where the run's steps are to be kept, and what an earlier attempt kept;
        whether this one goes on from that. A session may ignore it: its run starts over then when
        its worker dies."""
        ...

    def unattended(self) -> None:
        """Before `run`: nobody learns what this run asks about its tool calls, so it does not
        wait for an answer."""
        ...


class ServedAgent(Protocol):
    """An agent in the registry."""

    @property
    def name(self) -> str: ...

    @property
    def max_concurrent_runs(self) -> int | None:
        """How many of its runs one worker takes at once; None: as many as the worker takes."""
        ...

    async def warm_up(self) -> None: ...

    async def close(self) -> None: ...

    def open_session(
        self, request: RunRequest, *, message_id: str, sink: EventSink, agent_name: str
    ) -> RunSession:
        """A session for this request; `RunError` or `HayrunnerError` where it cannot be run."""
        ...


class AgentRegistry(Protocol):
    """The agents of one worker, by name."""

    def names(self) -> Sequence[str]: ...

    def bind(self, *, threads: Threads) -> None:
        """Where the agents keep threads from now on, and who is next on one."""
        ...

    def get(self, name: str) -> ServedAgent:
        """`KeyError` where there is none of that name."""
        ...


@runtime_checkable
class CallsRemoteAgents(Protocol):
    """A registry whose agents may call agents of other workers."""

    def use_remote_agents(self, remote: RemoteAgents, *, max_depth: int) -> None:
        """Called once, after connecting and before agents are warmed up."""
        ...
