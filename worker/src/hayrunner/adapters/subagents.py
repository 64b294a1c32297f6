"""Subagents: agents that another agent calls like tools."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self, cast

import msgspec
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool, Toolset

from hayrunner.adapters.context import RunContext, current_run
from hayrunner.adapters.normalize import ChunkNormalizer
from hayrunner.adapters.outcome import EventSink
from hayrunner.adapters.relay import Relay, RemoteRelay
from hayrunner.adapters.roster import RemoteCall, Roster
from hayrunner.adapters.session import LoopSession
from hayrunner.adapters.settings import RunSettings
from hayrunner.adapters.structured import ResponseFormat
from hayrunner.errors import ConfigurationError, ToolError
from hayrunner.settings import load_settings
from hayrunner.telemetry.tracing import inherited_content
from hayrunner.tool_context import current_tool_call
from hayrunner_contracts import subjects
from hayrunner_contracts.errors import InvalidRequest, RunError, RunFailure
from hayrunner_contracts.events import Usage

__all__ = ["Subagent", "SubagentSource", "Team", "check_cycles"]

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "description": "What to do, with all there is to know for it: nothing else of this "
            "conversation is seen.",
        },
        "context": {
            "type": ["string", "null"],
            "description": "Material for the task, if there is any.",
        },
    },
    "required": ["task"],
    "additionalProperties": False,
}


class LocalAgent(Protocol):
    """What an agent in this process is to one that calls it."""

    name: str
    description: str | None
    tools: Sequence[Any]
    subagents: Sequence[Any]
    response_format: Any
    roster: Roster

    def default_settings(self) -> RunSettings: ...

    def new_run(
        self,
        sink: EventSink,
        *,
        message_id: str,
        settings: RunSettings,
        agent_name: str,
        user: str | None,
    ) -> RunContext: ...

    def get_pipeline_adapter(self, thread_id: str | None, user: str | None) -> Any: ...

    async def warm_up(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Subagent:
    """A subagent with a description of its own: the model decides by it when to call. `agent` is
    what may stand in `subagents`: an Agent class, an instance, or a name."""

    agent: Any
    description: str | None = None


SubagentSource = Any
"""An Agent class, an instance, the name of an agent, or a `Subagent`."""


class Team:
    """The subagents of one agent, as tools.

    Agents that are registered are called as they are registered; classes and instances that are
    not belong to this agent, and are warmed up and closed with it. Raises `ConfigurationError`
    for what cannot be a subagent, for a cycle, and for a name that comes twice.
    """

    def __init__(
        self, owner: str, sources: Sequence[SubagentSource], roster: Roster, taken: Sequence[str]
    ) -> None:
        check_cycles(owner, sources, roster)
        self.roster = roster
        self._owner = owner
        self._own: list[LocalAgent] = []
        self._remote: list[str] = []
        self._tools: list[Tool] = []
        names = set(taken)
        for source in sources:
            tool = self._tool(source)
            if tool.name in names:
                raise ConfigurationError(f"{owner}: two of its tools are named {tool.name}")
            names.add(tool.name)
            self._tools.append(tool)

    @classmethod
    def of(cls, agent: LocalAgent) -> Self:
        """The subagents that an agent names."""
        own = (source for source in agent.tools if not isinstance(source, Toolset))
        taken = [tool.name if isinstance(tool, Tool) else tool.__name__ for tool in own]
        return cls(agent.name or type(agent).__name__, agent.subagents, agent.roster, taken)

    @property
    def tools(self) -> list[Tool]:
        """A tool for each subagent, named after it. `ConfigurationError` where one can be
        reached over the bus only and there is none."""
        if self._remote and self.roster.remote is None:
            raise ConfigurationError(
                f"{self._owner}: its subagent {self._remote[0]} is not registered here, and there "
                "is no bus to call it over"
            )
        return self._tools

    async def warm_up(self) -> None:
        """Warm up the agents that are this one's alone."""
        for agent in self._own:
            await agent.warm_up()

    async def close(self) -> None:
        """Close the same."""
        for agent in self._own:
            await agent.close()

    def _tool(self, source: SubagentSource) -> Tool:
        plain, description = _plain(source), getattr(source, "description", None)
        name = plain if isinstance(plain, str) else plain.name
        agent = self._local(plain)
        if agent is None:
            self._remote.append(name)
            ask = partial(_ask_remote, self.roster, name)
        else:
            ask = partial(_ask_local, agent, name)
            description = description or _description(agent)

        async def call(task: str, context: str | None = None) -> str:
            parent = current_run.get()
            _check_nesting(parent, name, self.roster)
            return await ask(parent, f"{task}\n\nContext:\n{context}" if context else task)

        return Tool(
            name=name,
            description=description or f"Asks the agent {name}.",
            parameters=_PARAMETERS,
            async_function=call,
        )

    def _local(self, source: Any) -> LocalAgent | None:
        """The agent here; None for a name that is not registered."""
        if isinstance(source, str):
            return self.roster.agents.get(source)
        registered = self.roster.agents.get(source.name)
        if registered is not None and source in (registered, type(registered)):
            return registered
        agent = cast("LocalAgent", source() if isinstance(source, type) else source)
        if not agent.roster.agents:
            agent.roster = self.roster
        self._own.append(agent)
        return agent


def _plain(source: SubagentSource) -> Any:
    return source.agent if isinstance(source, Subagent) else source


def _description(agent: LocalAgent) -> str | None:
    own = agent.description or vars(type(agent)).get("__doc__")
    return inspect.cleandoc(own) if own else None


def check_cycles(name: str, sources: Sequence[SubagentSource], roster: Roster) -> None:
    """Raise `ConfigurationError` where the agent `name` would come to call itself, as far as it
    can be known here: agents elsewhere are checked when they are called."""
    _walk((name,), sources, roster)


def _walk(path: tuple[str, ...], sources: Sequence[SubagentSource], roster: Roster) -> None:
    for source in sources:
        plain = _plain(source)
        found = roster.agents.get(plain) if isinstance(plain, str) else plain
        name = plain if isinstance(plain, str) else getattr(plain, "name", None)
        try:
            name = subjects.token("a subagent's name", name if isinstance(name, str) else "")
        except InvalidRequest as error:
            raise ConfigurationError(f"{path[-1]}: {error}; it is {name!r}") from None
        if name in path:
            circle = " → ".join([*path[path.index(name) :], name])
            raise ConfigurationError(f"subagents call each other in a circle: {circle}")
        if found is not None:
            _walk((*path, name), _subagents_of(path[-1], found), roster)


def _subagents_of(owner: str, agent: Any) -> Sequence[SubagentSource]:
    subagents = getattr(agent, "subagents", None)
    if subagents is None:
        kind = agent if isinstance(agent, type) else type(agent)
        raise ConfigurationError(
            f"{owner}: a subagent is an Agent class, an Agent or the name of one; this is "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    return subagents


# --- one call --------------------------------------------------------------------------------


def _check_nesting(parent: RunContext, name: str, roster: Roster) -> None:
    """Across workers nobody knows all agents: what the path of this run says is checked."""
    path = (*parent.path, parent.agent)
    if name in path:
        raise ToolError(f"The agent {name} was not asked: this is part of a task of its own.")
    limit = roster.max_depth or load_settings().subagent_depth
    if len(path) > limit:
        raise ToolError(
            f"The agent {name} was not asked: agents may ask agents {limit} levels deep."
        )


async def _ask_local(agent: LocalAgent, name: str, parent: RunContext, prompt: str) -> str:
    child = _child_run(agent, name, parent)
    wanted = agent.response_format
    body = agent.get_pipeline_adapter(None, parent.user).body(
        [ChatMessage.from_user(prompt)],
        response_format=None if wanted is None else ResponseFormat(wanted),
    )
    try:
        outcome = await LoopSession(child, body).run()
    finally:
        parent.subagent_calls += child.all_model_calls
    return _told(name, outcome.answer, outcome.error)


def _child_run(agent: LocalAgent, name: str, parent: RunContext) -> RunContext:
    """A run of its own, with the agent's settings, that is a part of the parent's."""
    settings = replace(
        agent.default_settings(),
        tool_context=parent.settings.tool_context,
        record_content_telemetry=parent.settings.record_content_telemetry,
    )
    child = agent.new_run(
        Relay(parent, name),
        message_id=parent.message_id,
        settings=settings,
        agent_name=name,
        user=parent.user,
    )
    child.parent = parent
    child.path = (*parent.path, parent.agent)
    child.deadline = parent.deadline
    child.citations = parent.citations
    child.inbox = None if parent.inbox is None else parent.inbox.for_subagent()
    child.normalizer = ChunkNormalizer(parent.normalizer.used_ids)
    return child


async def _ask_remote(roster: Roster, name: str, parent: RunContext, prompt: str) -> str:
    if roster.remote is None:
        raise ToolError(f"The agent {name} cannot be reached.")
    left = parent.budget_left
    if left is not None and left <= 0:
        raise ToolError(f"The agent {name} was not asked: the token budget is spent.")
    call = RemoteCall(
        agent=name,
        prompt=prompt,
        path=(*parent.path, parent.agent),
        user=parent.user,
        tool_context=parent.settings.tool_context,
        token_budget=left,
        deadline=parent.deadline,
        record_content_telemetry=inherited_content(parent.settings.record_content_telemetry),
        # Calls of a run that keeps its steps have the same ids in every attempt.
        key=current_tool_call().idempotency_key if parent.in_loop and parent.steps else None,
        is_over=lambda: any(run.stopping for run in parent.lineage()),
    )
    relay = RemoteRelay(parent, name)
    try:
        result = await roster.remote.run(call, relay.take)
    except RunError as error:
        await relay.close("This call has no result: the subagent was lost.")
        return _told(name, None, error.to_wire())
    await relay.close("This call has no result: the subagent's run ended first.")
    parent.spend(result.usage or Usage())
    parent.subagent_calls += result.model_calls
    answer = relay.cited(result.answer) if isinstance(result.answer, str) else result.answer
    return _told(name, answer, result.error)


def _told(name: str, answer: Any, failure: RunFailure | None) -> str:
    """What the parent's model is told. A failure's message holds no content."""
    if failure is not None:
        raise ToolError(f"The agent {name} gave no answer: {failure.message} ({failure.code}).")
    if answer is None or answer == "":
        raise ToolError(f"The agent {name} gave no answer.")
    return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
