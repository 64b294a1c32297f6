"""Four ways to the same run: in this process or over NATS, streamed or headless with tools."""

import asyncio
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client

from hayrunner.adapters.convert import from_wire
from hayrunner.adapters.outcome import EventSink
from hayrunner.adapters.roster import RemoteAgents
from hayrunner.agent import Agent
from hayrunner.serving.drive import Drive, FrameSink, Stopper
from hayrunner.serving.served import RunSession
from hayrunner.storage.base import Threads
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_request, encode
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.events import MessageStart, StreamEnd, StreamEvent, UnknownEvent, Usage
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.testing import assert_valid_stream, eventually

__all__ = ["BusDriver", "Driver", "LocalDriver", "Running", "Stage", "Told", "new_thread", "steps"]

AGENT = "stage"
_TIMEOUT_S = 30.0

Event = TypeVar("Event", bound=StreamEvent)


@dataclass(frozen=True)
class Told:
    """What became of a run. Its events are valid; a headless run has the frame only."""

    events: Sequence[StreamEvent | UnknownEvent]
    result: RunResult

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    @property
    def answer(self) -> Any:
        return self.result.answer

    @property
    def code(self) -> str | None:
        return None if self.result.error is None else self.result.error.code

    @property
    def why(self) -> str:
        assert self.result.error is not None
        return self.result.error.message

    @property
    def field(self) -> str | None:
        return None if self.result.error is None else self.result.error.field

    @property
    def usage(self) -> Usage:
        return self.result.usage or Usage()

    @property
    def messages(self) -> list[ChatMessage]:
        return self.result.messages or []

    @property
    def roles(self) -> list[str]:
        return [message.role for message in self.messages]

    @property
    def tool_results(self) -> list[tuple[str | None, Any, bool]]:
        """Call id, result and whether it is an error, as history has them."""
        return [
            (result.origin.id, result.result, result.error)
            for message in self.messages
            for result in from_wire(message).tool_call_results
        ]

    @property
    def everything(self) -> str:
        """All that anybody is told, as text to look for what must not be there."""
        events = [encode(event).decode() for event in self.events if isinstance(event, StreamEvent)]
        return "\n".join([*events, encode(self.result).decode()])


class Running(ABC):
    """A run that goes on."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.events: list[StreamEvent | UnknownEvent] = []

    async def shows(self, kind: type[StreamEvent], count: int = 1) -> None:
        """Wait until `count` events of a kind were published."""

        def enough() -> bool:
            return sum(isinstance(event, kind) for event in self.events) >= count

        await eventually(enough, _TIMEOUT_S, what=f"{count} {kind.__name__}")

    def of(self, kind: type[Event]) -> list[Event]:
        """What was published by now."""
        return [event for event in self.events if isinstance(event, kind)]

    @abstractmethod
    async def cancel(self) -> None: ...

    @abstractmethod
    async def send(self, *commands: RunCommand) -> None: ...

    @abstractmethod
    async def told(self) -> Told: ...


class Driver(ABC):
    """Runs requests against an agent of the test's."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.streams = mode == "stream"

    def request(self, prompt: str, options: dict[str, Any] | None, **fields: Any) -> RunRequest:
        """The request as it comes off the wire: absent and null are what they are in JSON."""
        given: dict[str, Any] = {"message_id": str(uuid.uuid4()), "mode": self.mode}
        given |= {"tools": True, "include_messages": True}
        if "messages" not in fields:
            given["prompt"] = prompt
        return decode_request(json.dumps(given | {"options": options or {}} | fields).encode())

    async def tell(
        self, agent: Agent, prompt: str = "hi", options: dict[str, Any] | None = None, **fields: Any
    ) -> Told:
        """Run a request to its end."""
        running = await self.start(agent, prompt, options, **fields)
        return await running.told()

    @abstractmethod
    async def start(
        self, agent: Agent, prompt: str = "hi", options: dict[str, Any] | None = None, **fields: Any
    ) -> Running: ...


class LocalDriver(Driver):
    """No bus: the worker's own drive over a session of the agent."""

    async def start(
        self, agent: Agent, prompt: str = "hi", options: dict[str, Any] | None = None, **fields: Any
    ) -> Running:
        return _LocalRunning(agent, self.request(prompt, options, **fields))


class _LocalRunning(Running):
    def __init__(self, agent: Agent, request: RunRequest) -> None:
        assert request.message_id is not None
        super().__init__(request.message_id)
        self._stopper = Stopper()
        self._request = request
        self._drive = Drive(
            agent=agent,
            agent_name=AGENT,
            request=request,
            message_id=request.message_id,
            deadline=None,
        )
        self._task = asyncio.ensure_future(self._run())

    async def emit(self, event: StreamEvent) -> None:
        # A copy, as a consumer would have it.
        self.events.append(msgspec.structs.replace(event, seq=len(self.events) + 1))

    async def _run(self) -> Told:
        await self.emit(MessageStart(message_id=self.message_id, agent=AGENT))
        frame = FrameSink(self, whole=self._request.mode == "stream")
        outcome = await self._drive.run(frame, self._stopper)
        await self.emit(StreamEnd())
        result = RunResult(
            message_id=self.message_id,
            agent=AGENT,
            status=outcome.status,
            answer=outcome.answer,
            finish_reason=outcome.finish_reason,
            usage=outcome.usage,
            model_calls=outcome.model_calls,
            error=outcome.error,
            messages=outcome.messages,
        )
        return Told(self.events, result)

    async def cancel(self) -> None:
        self._stopper.stop("cancelled")

    async def send(self, *commands: RunCommand) -> None:
        for command in commands:
            self._stopper.tell(command)

    async def told(self) -> Told:
        told = await asyncio.wait_for(self._task, _TIMEOUT_S)
        assert_valid_stream(told.events)
        return told


class BusDriver(Driver):
    """A durable run, from a requester that knows NATS and JSON."""

    def __init__(self, mode: str, nc: Client, stage: "Stage") -> None:
        super().__init__(mode)
        self._nc = nc
        self._stage = stage

    def client_of(self, agent: Agent) -> RunClient:
        """A client of a bus where the agent is the one that is served."""
        self._stage.agent = agent
        return RunClient(self._nc)

    async def start(
        self, agent: Agent, prompt: str = "hi", options: dict[str, Any] | None = None, **fields: Any
    ) -> Running:
        request = self.request(prompt, options, **fields)
        assert request.message_id is not None
        running = _BusRunning(request.message_id, self.client_of(agent))
        headers = {"Nats-Msg-Id": request.message_id}
        subject = f"agents.default.{AGENT}.requests"
        await self._nc.jetstream().publish(subject, encode(request), headers=headers)
        return running


class _BusRunning(Running):
    def __init__(self, message_id: str, client: RunClient) -> None:
        super().__init__(message_id)
        self._client = client
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for event in self._client.attach(self.message_id, timeout=_TIMEOUT_S):
            self.events.append(event)

    async def cancel(self) -> None:
        await self._client.cancel(self.message_id)

    async def send(self, *commands: RunCommand) -> None:
        for command in commands:
            await self._client.send_command(self.message_id, command)

    async def told(self) -> Told:
        result = await self._client.result(self.message_id, timeout=_TIMEOUT_S)
        await asyncio.wait_for(self._reader, _TIMEOUT_S)
        assert_valid_stream(self.events)
        return Told(self.events, result)


class Stage:
    """What the worker serves: whichever agent is on it. Also the registry that has it."""

    name = AGENT
    max_concurrent_runs = None

    def __init__(self) -> None:
        self.agent: Agent | None = None
        self._threads: Threads | None = None
        self._remote: RemoteAgents | None = None

    def bind(self, *, threads: Threads) -> None:
        self._threads = threads

    def use_remote_agents(self, remote: RemoteAgents, *, max_depth: int) -> None:
        self._remote = remote

    async def warm_up(self) -> None:
        return

    async def close(self) -> None:
        return

    def open_session(
        self, request: RunRequest, *, message_id: str, sink: EventSink, agent_name: str
    ) -> RunSession:
        assert self.agent is not None
        assert self._threads is not None
        self.agent.threads = self._threads
        self.agent.roster.remote = self._remote
        return self.agent.open_session(
            request, message_id=message_id, sink=sink, agent_name=agent_name
        )

    def names(self) -> list[str]:
        return [AGENT]

    def get(self, name: str) -> "Stage":
        return self


def new_thread() -> str:
    """A thread nobody has written to: a module's tests share one store."""
    return f"t-{uuid.uuid4()}"


def steps(body: dict[str, Any]) -> int:
    """The turn: one for every message with calls, whatever history there is."""
    return sum(bool(message.get("tool_calls")) for message in body["messages"])
