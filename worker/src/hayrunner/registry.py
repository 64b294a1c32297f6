"""The agents of a worker, by name."""

from collections.abc import Iterable
from typing import Any

from haystack import Pipeline

from hayrunner.adapted import HaystackAgentAdapter, PipelineAgent
from hayrunner.adapters.hook_chain import check_hook
from hayrunner.adapters.pipelines import only_agent
from hayrunner.adapters.roster import RemoteAgents, Roster
from hayrunner.adapters.subagents import check_cycles
from hayrunner.agent import Agent
from hayrunner.errors import ConfigurationError
from hayrunner.hooks import RunHooks
from hayrunner.storage.base import Threads
from hayrunner_contracts import subjects
from hayrunner_contracts.errors import InvalidRequest

__all__ = ["Registry"]


class Registry:
    """Agents by the name that requests use for them."""

    def __init__(self, agents: Iterable[Agent | type[Agent]] = ()) -> None:
        self._agents: dict[str, Agent] = {}
        self._hooks: dict[str, RunHooks] = {}
        self._threads: Threads | None = None
        self._roster = Roster(agents=self._agents)
        for agent in agents:
            self.add_agent(agent)

    def add_agent(self, agent: Agent | type[Agent]) -> Agent:
        """Register an `Agent` under its own name. Raises `ConfigurationError`."""
        name = getattr(agent, "name", None)
        if not isinstance(name, str):
            raise ConfigurationError(
                f"an agent registered without a name is a hayrunner.Agent; this is "
                f"{_kind_of(agent)}: use add(name, agent)"
            )
        return self.add(name, agent)

    def add(self, name: str, agent: Any) -> Agent:
        """Register an `Agent`, a Haystack Agent or a Haystack Pipeline under `name`.

        Raises `ConfigurationError` for a name that is no subject token or is taken, for an
        object that cannot be an agent, and where agents would call each other in a circle.
        """
        try:
            subjects.token("agent name", name)
        except InvalidRequest as error:
            raise ConfigurationError(f"{error}; it is {name!r}") from None
        if name in self._agents:
            raise ConfigurationError(f"two agents are named {name!r}: give one another name")
        self._agents[name] = adapted = self._adapt(name, agent)
        adapted.named_hooks = self._hooks
        if self._threads is not None:
            adapted.threads = self._threads
        adapted.roster = self._roster
        try:
            check_cycles(name, adapted.subagents, self._roster)
        except ConfigurationError:
            del self._agents[name]
            raise
        return adapted

    def add_hook(self, name: str, hook: RunHooks) -> None:
        """Register a hook that requests can name in their `hooks` option, for every agent here.
        Raises `ConfigurationError` for a name that is no token or is taken."""
        try:
            subjects.token("hook name", name)
        except InvalidRequest as error:
            raise ConfigurationError(f"{error}; it is {name!r}") from None
        if name in self._hooks:
            raise ConfigurationError(f"two hooks are named {name!r}: give one another name")
        check_hook(hook)
        self._hooks[name] = hook

    def bind(self, *, threads: Threads) -> None:
        """Give every agent, and those still to come, these threads: a worker does so when it is
        connected. An agent that overrides `get_storage` keeps its own storage, and takes turns
        by these."""
        self._threads = threads
        for agent in self._agents.values():
            agent.threads = threads

    def use_remote_agents(self, remote: RemoteAgents, *, max_depth: int) -> None:
        """For the worker: how subagents that are not registered here are called, and how deep."""
        self._roster.remote, self._roster.max_depth = remote, max_depth

    @staticmethod
    def _adapt(name: str, agent: Any) -> Agent:
        if isinstance(agent, type) and issubclass(agent, Agent):
            return agent()
        if isinstance(agent, Agent):
            return agent
        if (inner := only_agent(agent)) is not None:
            return HaystackAgentAdapter(name, inner)
        if isinstance(agent, Pipeline):
            return PipelineAgent(name, agent)
        raise ConfigurationError(
            f"{name}: an agent is a hayrunner.Agent, a Haystack Agent or a Haystack Pipeline; "
            f"this is {_kind_of(agent)}"
        )

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._agents)

    def get(self, name: str) -> Agent:
        """The agent of that name; `KeyError` if there is none."""
        return self._agents[name]

    def __len__(self) -> int:
        return len(self._agents)


def _kind_of(thing: Any) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
