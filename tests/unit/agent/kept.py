"""Attempts at one run, and what they keep for the next one."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, Document
from haystack.hooks import hook
from haystack.tools import tool
from tests.unit.agent.runs import MESSAGE_ID, agent_over, request

from hayrunner.adapters.outcome import Phase, RunOutcome
from hayrunner.agent import Agent
from hayrunner.agent_session import AgentSession
from hayrunner.hooks import HookRun, ModelResponse, Retry, RunHooks
from hayrunner.tool_context import current_tool_call
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.events import (
    MessageStart,
    StreamEnd,
    StreamEvent,
)
from hayrunner_contracts.following import MessageBuilder
from hayrunner_contracts.testing import assert_valid_stream

Turns = list[list[dict[str, Any]]]


@dataclass
class Kept:
    """One checkpoint: its bytes, and how many events had been emitted."""

    data: bytes
    phase: Phase
    step: int
    events: int
    ran: int


@dataclass
class Steps:
    """A `StepStore` in memory, and the sink of its run."""

    found: bytes | None = None
    park_after_s: float | None = None
    ran: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    kept: list[Kept] = field(default_factory=list[Kept])
    events: list[StreamEvent] = field(default_factory=list[StreamEvent])

    async def confirm(self) -> None:
        return

    def parks(self) -> None:
        return

    async def emit(self, event: StreamEvent) -> None:
        self.events.append(event)

    async def keep(self, checkpoint: bytes, *, phase: Phase, step: int) -> None:
        self.kept.append(Kept(checkpoint, phase, step, len(self.events), len(self.ran)))


@dataclass
class Case:
    """A scenario: what the model says, what the agent is, what is sent to the run."""

    turns: Turns
    agent: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    commands: list[RunCommand] = field(default_factory=list[RunCommand])


RAN: list[tuple[Any, ...]] = []


@tool
def look(query: Annotated[str, "what"]) -> str:
    """Look something up."""
    RAN.append(("look", query, current_tool_call().idempotency_key))
    return f"found {query}"


@tool
def fail(query: Annotated[str, "what"]) -> str:
    """Fail."""
    RAN.append(("fail", query, current_tool_call().idempotency_key))
    raise ValueError(query)


@tool
def search(query: Annotated[str, "what"]) -> list[Document]:
    """Find documents."""
    RAN.append(("search", query, current_tool_call().idempotency_key))
    return [Document(id=f"{query}-{n}", content=f"{query} {n}", meta={"n": n}) for n in range(2)]


@tool
def count(state: State, by: Annotated[int, "how many"]) -> str:
    """Count in the agent's State."""
    state.set("total", (state.get("total") or 0) + by)
    RAN.append(("count", by, current_tool_call().idempotency_key))
    return str(state.get("total"))


@hook
def add_context(state: State) -> None:
    """A hook that appends before the run: it must not show twice."""
    state.set("messages", [ChatMessage.from_user("context")])


class OnceMore(RunHooks):
    """Wants the second reply again, once in each attempt that sees it."""

    async def on_model_response(self, run: HookRun, response: ModelResponse) -> Retry | None:
        text = "".join(part.text or "" for part in response.message.content)
        return Retry("Say it better.") if text == "bad" else None


FORM = {
    "title": "Answer",
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def build(generator: Any, case: Case) -> Agent:
    settings: dict[str, Any] = {"tools": [look, fail, search], "approval_timeout_s": 30.0}
    return agent_over(generator, **settings, **case.agent)


async def attempt(agent: Agent, case: Case, steps: Steps) -> RunOutcome:
    """One attempt, which finds what `steps` has."""
    session: AgentSession = agent.open_session(
        request("hi", case.options, **case.fields),
        message_id=MESSAGE_ID,
        sink=steps,
        agent_name="support",
    )
    session.durable(steps)
    # Stored commands are read again by every attempt.
    for command in case.commands:
        session.command(command)
    return await session.run()


def framed(events: list[StreamEvent]) -> list[StreamEvent]:
    whole = [MessageStart(message_id=MESSAGE_ID, agent="support"), *events, StreamEnd()]
    return [msgspec.structs.replace(event, seq=n) for n, event in enumerate(whole, start=1)]


def built(events: list[StreamEvent]) -> tuple[Any, ...]:
    """What a consumer is left with."""
    assert_valid_stream(events)
    message = MessageBuilder()
    for event in events:
        message.add(event)
    return (
        message.text,
        [(call.tool_name, call.tool_input, call.output) for call in message.tool_calls],
        [source.index for source in message.sources],
    )


def told(outcome: RunOutcome) -> tuple[Any, ...]:
    # Without `meta`, which has the time of the model call.
    history = [(m.role, msgspec.to_builtins(m.content)) for m in outcome.messages]
    code = outcome.error.code if outcome.error else None
    return outcome.status, outcome.answer, outcome.finish_reason, outcome.model_calls, history, code


def no_refs(value: Any) -> Any:
    """Failed tools are told as a reference, which is another one each time."""
    return msgspec.json.decode(REF.sub(b"(ref)", msgspec.json.encode(value)))


def with_ids(turns: Turns) -> Turns:
    """Call ids that no two turns share: one that comes twice is replaced by a random one."""
    return [
        msgspec.json.decode(msgspec.json.encode(turn).replace(b'"call_', b'"call_%d_' % number))
        for number, turn in enumerate(turns)
    ]


REF = re.compile(rb"\(ref [0-9a-f]+\)")
