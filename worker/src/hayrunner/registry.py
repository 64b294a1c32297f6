"""The agents of a worker, by name."""

from collections.abc import Iterable
from typing import Any, cast

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

    def add(self, name: str, agent: Any, *, max_concurrent_runs: int | None = None) -> Agent:
        """Register an `Agent`, a Haystack Agent or a Haystack Pipeline under `name`.

        `max_concurrent_runs`: how many of its runs one worker takes at once, where that is not
        what the agent, or the metadata of the pipeline, says. Raises `ConfigurationError` for a
        name that is no subject token or is taken, for an object that cannot be an agent, for a
        limit that is none, and where agents would call each other in a circle.
        """
        try:
            subjects.token("agent name", name)
        except InvalidRequest as error:
            raise ConfigurationError(f"{error}; it is {name!r}") from None
        if name in self._agents:
            raise ConfigurationError(f"two agents are named {name!r}: give one another name")
        adapted = self._adapt(name, agent)
        if max_concurrent_runs is not None:
            adapted.max_concurrent_runs = max_concurrent_runs
        _check_limit(name, adapted.max_concurrent_runs)
        self._agents[name] = adapted
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
        adapted: Agent
        if (inner := only_agent(agent)) is not None:
            adapted = HaystackAgentAdapter(name, inner)
        elif isinstance(agent, Pipeline):
            adapted = PipelineAgent(name, agent)
        else:
            raise ConfigurationError(
                f"{name}: an agent is a hayrunner.Agent, a Haystack Agent or a Haystack Pipeline; "
                f"this is {_kind_of(agent)}"
            )
        if isinstance(agent, Pipeline):
            adapted.max_concurrent_runs = _limit_in(name, agent)
        return adapted

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._agents)

    def get(self, name: str) -> Agent:
        """The agent of that name; `KeyError` if there is none."""
        return self._agents[name]

    def __len__(self) -> int:
        return len(self._agents)


def _limit_in(name: str, pipeline: Pipeline) -> int | None:
    """What the pipeline's metadata says: `hayrunner: {max_concurrent_runs: 4}`."""
    said: Any = pipeline.metadata.get("hayrunner") or {}
    if not isinstance(said, dict) or set(cast("dict[Any, Any]", said)) - {"max_concurrent_runs"}:
        raise ConfigurationError(
            f"{name}: the metadata `hayrunner` knows max_concurrent_runs, and nothing else"
        )
    return cast("dict[str, Any]", said).get("max_concurrent_runs")


def _check_limit(name: str, limit: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ConfigurationError(f"{name}: max_concurrent_runs is a number from 1, or None")


def _kind_of(thing: Any) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
