"""Workers in this process on a real nats-server, and a requester that knows only NATS and JSON."""

import json
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog
from haystack.utils import Secret
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.integration.worker.scripted import ScriptedAgent, ScriptedRegistry
from tests.unit.agent.files import Files
from tests.unit.agent.runs import agent_over

from hayrunner.agent import Agent
from hayrunner.embedded import EmbeddedServer
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.serving.execution import PublisherFactory
from hayrunner.serving.run_events import RunPublisher
from hayrunner.serving.stored import messages_of
from hayrunner.settings import Settings
from hayrunner.testing.provider import Scenario, ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_event, decode_result
from hayrunner_contracts.events import StreamEvent, UnknownEvent
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.testing import eventually

Serve = Callable[..., Awaitable[Worker]]
Serving = Callable[..., Awaitable[Worker]]
ServeFiles = Callable[..., Awaitable[Worker]]
KEY = Secret.from_token("key")


class Requester:
    """Publishes plain JSON and watches everything that runs publish."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.js = nc.jetstream()
        self.events: dict[str, list[StreamEvent | UnknownEvent]] = defaultdict(list)
        self.results: dict[str, list[RunResult]] = defaultdict(list)

    async def watch(self) -> None:
        await self.nc.subscribe("runs.*.*.events", cb=self._on_event)
        await self.nc.subscribe("runs.*.*.result", cb=self._on_result)
        await self.nc.flush()

    async def publish(self, agent: str = "support", /, **request: Any) -> str:
        """A durable request; its message id."""
        message_id = str(request.setdefault("message_id", str(uuid.uuid4())))
        request.setdefault("prompt", "hi")
        await self.publish_raw(json.dumps(request).encode(), agent=agent, message_id=message_id)
        return message_id

    async def publish_raw(
        self, data: bytes, *, agent: str = "support", message_id: str | None = None
    ) -> int:
        headers = None if message_id is None else {"Nats-Msg-Id": message_id}
        ack = await self.js.publish(f"agents.default.{agent}.requests", data, headers=headers)
        return ack.seq

    async def ended(self, message_id: str, timeout: float = 15.0) -> RunResult:
        """Wait for the run's `stream_end` and result; the result."""

        def is_over() -> bool:
            events = self.events[message_id]
            return bool(self.results[message_id]) and "stream_end" in kinds(events)

        await eventually(is_over, timeout, what=f"the end of {message_id}")
        return self.results[message_id][0]

    async def cancel(self, message_id: str) -> None:
        subject = f"runs.default.{message_id}.commands"
        await self.js.publish(subject, b'{"type":"cancel","reason":"enough"}')

    async def stored_events(self, message_id: str) -> list[StreamEvent | UnknownEvent]:
        """What the stream holds, in order."""
        subject = f"runs.default.{message_id}.events"
        stored = messages_of(self.nc, "RUN_EVENTS", subject)
        return [decode_event(message.data) async for message in stored]

    async def count(self, stream: str) -> int:
        return (await self.js.stream_info(stream)).state.messages

    async def queue_is_empty(self) -> bool:
        return await self.count("AGENT_REQUESTS") == 0

    async def _on_event(self, message: Msg) -> None:
        self.events[message.subject.split(".")[2]].append(decode_event(message.data))

    async def _on_result(self, message: Msg) -> None:
        self.results[message.subject.split(".")[2]].append(decode_result(message.data))


def kinds(events: list[StreamEvent | UnknownEvent]) -> list[str]:
    """The events' types, as on the wire."""
    return [
        event.type if isinstance(event, UnknownEvent) else str(type(event).__struct_config__.tag)
        for event in events
    ]


@pytest.fixture(autouse=True)
def log() -> Iterator[list[MutableMapping[str, Any]]]:
    """The log as data, for the tests that read it; nothing on the terminal."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
async def requester(nc: Client) -> Requester:
    return Requester(nc)


@pytest.fixture
async def serve(nats_server: EmbeddedServer, requester: Requester) -> AsyncIterator[Serve]:
    """Starts workers: `await serve(agent, concurrency=1)`. They end with the test."""
    async with AsyncExitStack() as stack:
        watching = False

        async def start(
            *agents: ScriptedAgent, publisher: PublisherFactory = RunPublisher, **settings: Any
        ) -> Worker:
            nonlocal watching
            given: dict[str, Any] = {"port": -1, "drain_timeout_s": 0.2, **settings}
            worker = Worker(
                Settings(nats_url=nats_server.url, **given),
                ScriptedRegistry(*agents),
                publisher=publisher,
            )
            await stack.enter_async_context(worker)
            if not watching:
                watching = True
                await requester.watch()
            return worker

        yield start


@pytest.fixture
async def client(nc: Client) -> RunClient:
    return RunClient(nc)


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
async def serving(nats_server: EmbeddedServer, requester: Requester) -> AsyncIterator[Serving]:
    """Workers of real agents: `await serving(agent, …)`."""
    await requester.watch()
    async with AsyncExitStack() as stack:

        async def start(*agents: Agent, **settings: Any) -> Worker:
            given: dict[str, Any] = {"port": -1, "drain_timeout_s": 0.2, **settings}
            worker = Worker(Settings(nats_url=nats_server.url, **given), Registry(agents))
            return await stack.enter_async_context(worker)

        yield start


@pytest.fixture
async def serve_files(nats_server: EmbeddedServer, files: Files) -> AsyncIterator[ServeFiles]:
    """Serves the agent `support`, whose model says what `scenario` says."""
    async with AsyncExitStack() as stack:

        async def start(
            scenario: Scenario, settings: dict[str, Any] | None = None, **agent_settings: Any
        ) -> Worker:
            provider = await stack.enter_async_context(ScriptedProvider(scenario))
            generator = OpenAICompatibleChatGenerator(
                model="m", api_key=KEY, api_base_url=provider.base_url
            )
            agent = agent_over(generator, tools=files.tools(), **agent_settings)
            given: dict[str, Any] = {"port": -1, "drain_timeout_s": 0.1, **(settings or {})}
            worker = Worker(Settings(nats_url=nats_server.url, **given), Registry([agent]))
            return await stack.enter_async_context(worker)

        yield start
