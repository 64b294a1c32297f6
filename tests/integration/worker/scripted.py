"""An agent whose runs do what a test says: the serving half needs no more of an agent."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from hayrunner.adapters.outcome import EventSink, RunOutcome, StepStore, StopCode
from hayrunner.storage.base import Threads
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import MessageEnd, TextChunk, Usage
from hayrunner_contracts.requests import RunRequest

__all__ = ["ScriptedAgent", "ScriptedRegistry", "Session"]


class Session:
    """One attempt. A script emits by `say` and may wait for anything; being stopped cancels it."""

    def __init__(
        self, agent: "ScriptedAgent", request: RunRequest, message_id: str, sink: EventSink
    ) -> None:
        self.request = request
        self.message_id = message_id
        self.sink = sink
        self._agent = agent
        self.commands: list[RunCommand] = []
        self.told = asyncio.Event()
        self.attended = True
        self._stop: tuple[StopCode, str] | None = None
        self._task: asyncio.Task[str] | None = None

    async def say(self, text: str) -> None:
        await self.sink.emit(TextChunk(content=text, step=1))

    async def run(self) -> RunOutcome:
        self._agent.started.append(self.message_id)
        self._task = asyncio.create_task(self._script())
        if self._stop is not None:
            self._task.cancel()
        try:
            answer = await self._task
        except asyncio.CancelledError:
            self._task.cancel()
            if self._stop is None:
                self._agent.cut.append(self.message_id)
                raise
            return self._stopped()
        await self.sink.emit(MessageEnd(finish_reason="stop", usage=_USAGE))
        self._agent.finished.append(self.message_id)
        return RunOutcome(
            status="completed", answer=answer, finish_reason="stop", usage=_USAGE, model_calls=1
        )

    def stop(self, code: StopCode, message: str) -> None:
        self._stop = self._stop or (code, message)
        if self._task is not None:
            self._task.cancel()

    def command(self, command: RunCommand) -> None:
        self.commands.append(command)
        self.told.set()

    def durable(self, steps: StepStore) -> bool:
        self.steps = steps
        return False

    def unattended(self) -> None:
        self.attended = False

    def _stopped(self) -> RunOutcome:
        assert self._stop is not None
        code, message = self._stop
        cancelled = code == "cancelled"
        return RunOutcome(
            status="cancelled" if cancelled else "failed",
            finish_reason="cancelled" if cancelled else "error",
            error=RunFailure(code=code, message=message),
        )

    async def _script(self) -> str:
        return await self._agent.script(self)


_USAGE = Usage(input_tokens=3, output_tokens=5, total_tokens=8)


async def greet(session: Session) -> str:
    """The default script."""
    for piece in ("Hello", ", ", "world"):
        await session.say(piece)
    return "Hello, world"


@dataclass
class ScriptedAgent:
    """Counts what happened to it: runs started, finished, cut from outside."""

    name: str = "support"
    script: Callable[[Session], Awaitable[str]] = greet
    started: list[str] = field(default_factory=list[str])
    finished: list[str] = field(default_factory=list[str])
    cut: list[str] = field(default_factory=list[str])
    max_concurrent_runs: int | None = None

    async def warm_up(self) -> None:
        return

    async def close(self) -> None:
        return

    def open_session(
        self, request: RunRequest, *, message_id: str, sink: EventSink, agent_name: str
    ) -> Session:
        return Session(self, request, message_id, sink)


class ScriptedRegistry:
    def __init__(self, *agents: ScriptedAgent) -> None:
        self._agents = {agent.name: agent for agent in agents}

    def names(self) -> Sequence[str]:
        return sorted(self._agents)

    def bind(self, *, threads: Threads) -> None:
        return

    def get(self, name: str) -> ScriptedAgent:
        return self._agents[name]
