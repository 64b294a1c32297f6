"""What every command does to a run in every state. The table in docs/contract.md says the same."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from nats.aio.client import Client
from tests.integration.worker.conftest import KEY
from tests.unit.agent.runs import agent_over, call_turn, text_turn

from hayrunner import requires_approval
from hayrunner.embedded import EmbeddedServer
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.serving.claims import Claims
from hayrunner.settings import Settings
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import encode
from hayrunner_contracts.commands import Approve, Cancel, Deny, Modify, RunCommand, Say
from hayrunner_contracts.events import Data, TextChunk, ToolApprovalRequest, ToolCallStart
from hayrunner_contracts.following import Event
from hayrunner_contracts.runs import Run
from hayrunner_contracts.testing import assert_valid_stream, eventually

# One kind of server is enough: what is looked at is the worker.
pytestmark = pytest.mark.parametrize("nats_server", ["process"], indirect=True)

PIECES = 3_000
EXTRA = "and more"
COMMANDS: dict[str, list[RunCommand | bytes]] = {
    "cancel": [Cancel(reason="enough")],
    "cancel twice": [Cancel(), Cancel()],
    "approve": [Approve(tool_call_id="call_0")],
    "deny": [Deny(tool_call_id="call_0", feedback="no")],
    "modify": [Modify(tool_call_id="call_0", tool_input={"path": "/b"})],
    "modify wrongly": [Modify(tool_call_id="call_0", tool_input={"nothing": 1})],
    "say": [Say(text=EXTRA)],
    "nonsense": [b'{"type":"dance"}', b"\xff"],
}
STATES = (
    "queued",
    "handed back",
    "waiting for its thread",
    "before the first chunk",
    "in the model call",
    "publishing",
    "in a sync tool",
    "in an async tool",
    "waiting for approval",
    "parked",
    "ended",
    "cancelled",
)
WAITING = ("waiting for approval", "parked")


@dataclass
class Stage:
    """A run that is brought into a state, held there, and let go on."""

    client: RunClient
    url: str
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    thread_gate: threading.Event = field(default_factory=threading.Event)
    ran: list[str] = field(default_factory=list[str])
    workers: list[Worker] = field(default_factory=list[Worker])
    generator: Any = None
    provider: ScriptedProvider | None = None

    def answer(self, body: dict[str, Any]) -> Any:
        """What the model says, by the run's first user message and what came since."""
        messages = body["messages"]
        asked = next(m["content"] for m in messages if m["role"] == "user")
        said = any(m.get("content") == EXTRA for m in messages)
        if (messages[-1]["role"] == "user" and len(messages) > 1) or asked == "at once":
            return text_turn("done", " with more" if said else "")
        if messages[-1]["role"] == "tool":
            return text_turn("done", " with more" if said else "")
        calls = {"in a sync tool": "hold_thread", "in an async tool": "hold", "thread": "hold"}
        if asked in calls:
            return call_turn((calls[asked], {}))
        if asked in WAITING:
            return call_turn(("delete", {"path": "/a"}))
        return self._paced(asked)

    async def _paced(self, asked: str) -> AsyncIterator[Any]:
        first, *rest = text_turn("done")
        if asked == "before the first chunk":
            await self._held()
        yield first
        if asked == "in the model call":
            await self._held()
        if asked == "publishing":
            for piece in text_turn(*(" " for _ in range(PIECES)))[:PIECES]:
                yield piece
            await self._held()
        for piece in rest:
            yield piece

    async def _held(self) -> None:
        self.ran.append("held")
        await self.gate.wait()

    def tools(self) -> list[Callable[..., Any]]:
        async def hold() -> str:
            """Waits."""
            await self._held()
            return "held"

        def hold_thread() -> str:
            """Waits in a thread."""
            self.ran.append("held")
            self.thread_gate.wait(20)
            return "held"

        def delete(path: str) -> str:
            """Deletes."""
            self.ran.append(f"delete {path}")
            return "deleted"

        return [hold, hold_thread, requires_approval(delete)]

    async def serve(self, **settings: Any) -> Worker:
        agent = agent_over(self.generator, tools=self.tools())
        given: dict[str, Any] = {
            "port": -1,
            "drain_timeout_s": 0.0,
            "park_after_s": 30.0,
            **settings,
        }
        worker = Worker(Settings(nats_url=self.url, **given), Registry([agent]))
        await worker.__aenter__()
        self.workers.append(worker)
        return worker

    async def bring(self, state: str) -> Run:
        """A run in that state."""
        if state in ("queued", "handed back"):
            leaving = await self.serve()
            if state == "handed back":
                run = await self.client.submit("support", "in the model call")
                await eventually(lambda: self.ran, what="the model call")
                await leaving.shutdown()
                return run
            await leaving.shutdown()
            return await self.client.submit("support", "at once")
        await self.serve(park_after_s=0.02 if state == "parked" else 30.0)
        if state == "waiting for its thread":
            await self.client.submit("support", "thread", thread_id="t")
            await eventually(lambda: self.ran, what="the thread to be taken")
            run = await self.client.submit("support", "at once", thread_id="t")
            await self._has(run, "MessageStart")
        elif state in ("ended", "cancelled"):
            asked = "at once" if state == "ended" else "in the model call"
            run = await self.client.submit("support", asked)
            if state == "cancelled":
                await eventually(lambda: self.ran, what="the model call")
                await run.cancel()
            await run.result()
        else:
            run = await self.client.submit("support", state)
            if state == "parked":
                await eventually(lambda: self._is_parked(run), what="the run to be parked")
            elif state in WAITING:
                await self._has(run, "ToolApprovalRequest")
            else:
                await eventually(lambda: self.ran, what=f"a run that is {state}")
        return run

    async def _has(self, run: Run, kind: str) -> None:
        async for event in run.events(timeout=20):
            if type(event).__name__ == kind:
                return

    async def _is_parked(self, run: Run) -> bool:
        bucket = await self.client.connection.jetstream().key_value("RUNS")
        found = await Claims(bucket, namespace="default", worker="w").find(run.message_id)
        return found is not None and found[0].parked is not None

    async def send(self, run: Run, command: RunCommand | bytes) -> None:
        data = command if isinstance(command, bytes) else encode(command)
        js = self.client.connection.jetstream()
        await js.publish(f"runs.default.{run.message_id}.commands", data)

    async def go_on(self, state: str) -> None:
        """Take away what holds the run."""
        self.gate.set()
        self.thread_gate.set()
        if state in ("queued", "handed back"):
            await self.serve(worker_id="next")

    async def close(self) -> None:
        self.gate.set()
        self.thread_gate.set()
        for worker in self.workers:
            await worker.shutdown()


@pytest.fixture
async def stage(nats_server: EmbeddedServer, nc: Client) -> AsyncIterator[Stage]:
    stage = Stage(RunClient(nc), nats_server.url)
    async with ScriptedProvider(stage.answer) as provider:
        stage.provider = provider
        stage.generator = OpenAICompatibleChatGenerator(
            model="m", api_key=KEY, api_base_url=provider.base_url
        )
        yield stage
        await stage.close()
        await stage.generator.close_async()


def refused(events: list[Event]) -> int:
    return sum(isinstance(e, Data) and e.data_type == "command_refused" for e in events)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("state", STATES)
async def test_a_command_has_its_effect_in_every_state(
    stage: Stage, state: str, command: str
) -> None:
    run = await stage.bring(state)
    for sent in COMMANDS[command]:
        await stage.send(run, sent)
    cancels = command.startswith("cancel")
    if not cancels or state in ("queued", "handed back"):
        await stage.go_on(state)
    if state in WAITING and command in ("modify wrongly", "say", "nonsense"):
        # The call waits on.
        await stage.send(run, Approve(tool_call_id="call_0"))

    result = await run.result(timeout=20)
    events = [event async for event in stage.client.attach(run.message_id, timeout=20)]
    assert_valid_stream(events)
    was_over = state in ("ended", "cancelled")
    if state == "cancelled" or (cancels and not was_over):
        assert (result.status, result.error and result.error.code) == ("cancelled", "cancelled")
    else:
        assert (result.status, result.error) == ("completed", None)
        more = " with more" if command == "say" and not was_over else ""
        assert result.answer is not None
        assert result.answer.strip() == f"done{more}"
    ran = {
        "approve": ["delete /a"],
        "deny": [],
        "modify": ["delete /b"],
        "modify wrongly": ["delete /a"],
        "say": ["delete /a"],
        "nonsense": ["delete /a"],
    }
    if state in WAITING:
        assert stage.ran == ran.get(command, [])
        assert refused(events) == (1 if command == "modify wrongly" else 0)
        assert sum(isinstance(e, ToolApprovalRequest) for e in events) == 1
    else:
        assert not any(name.startswith("delete") for name in stage.ran)
    if cancels and state in ("queued", "waiting for its thread"):
        assert result.model_calls == 0
        assert not any(isinstance(e, TextChunk | ToolCallStart) for e in events)
