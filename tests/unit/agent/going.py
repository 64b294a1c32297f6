"""A run that goes on while its test decides what it asks for."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from tests.unit.agent.runs import MESSAGE_ID, Event, Sink, Told, request

from hayrunner.adapters.outcome import StopCode
from hayrunner.agent import Agent
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.events import Data, ToolApprovalRequest
from hayrunner_contracts.testing import assert_valid_stream, eventually


class Going:
    """One run, begun by entering it; it is cancelled where its block is left before its end."""

    def __init__(self, agent: Agent, options: dict[str, Any] | None = None, **fields: Any) -> None:
        self.sink = Sink()
        self.session = agent.open_session(
            request("hi", options, **fields),
            message_id=MESSAGE_ID,
            sink=self.sink,
            agent_name="support",
        )
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.session.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def of(self, kind: type[Event]) -> Sequence[Event]:
        return [event for event in self.sink.events if isinstance(event, kind)]

    def data(self, data_type: str) -> list[Any]:
        """What `data` events of this type said."""
        return [event.data for event in self.of(Data) if event.data_type == data_type]

    async def asks(self, count: int = 1) -> Sequence[ToolApprovalRequest]:
        """The requests for approval, once there are `count` of them."""
        await eventually(
            lambda: len(self.of(ToolApprovalRequest)) >= count, what=f"{count} requests"
        )
        return self.of(ToolApprovalRequest)

    def send(self, *commands: RunCommand) -> None:
        for command in commands:
            self.session.command(command)

    def stop(self, code: StopCode) -> None:
        self.session.stop(code, code)

    async def told(self) -> Told:
        """How it ended; its events are valid."""
        assert self._task is not None
        outcome = await asyncio.wait_for(self._task, 10)
        events = self.sink.framed()
        assert_valid_stream(events)
        return Told(events, outcome)
