"""Workers with real agents on a real nats-server, and a client that runs them on threads."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest
import structlog
from haystack import component
from haystack.dataclasses import ChatMessage, StreamingChunk
from nats.aio.client import Client

from hayrunner.agent import Agent
from hayrunner.embedded import EmbeddedServer
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.serving.provisioning import provision
from hayrunner.settings import Settings
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.testing import eventually


@component
class Echo:
    """Answers `re: …`, waiting first for what a test holds back."""

    def __init__(self) -> None:
        self.seen: dict[str, list[list[str]]] = defaultdict(list)
        """By the last message's text: what each of its model calls was shown."""
        self.held: dict[str, asyncio.Event] = {}

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        tools: Any = None,
    ) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        tools: Any = None,
    ) -> dict[str, Any]:
        asked = messages[-1].text or ""
        self.seen[asked].append([message.text or "" for message in messages])
        if asked in self.held:
            await self.held[asked].wait()
        reply = f"re: {asked}"
        if streaming_callback is not None:
            await streaming_callback(StreamingChunk(reply))
        return {"replies": [ChatMessage.from_assistant(reply)]}

    def hold(self, asked: str) -> asyncio.Event:
        """Runs asked this wait until the event is set."""
        self.held[asked] = asyncio.Event()
        return self.held[asked]

    async def called(self, asked: str, times: int = 1) -> None:
        """Wait until the model was asked this."""
        await eventually(lambda: len(self.seen[asked]) >= times, what=f"a call with {asked!r}")


class Serve(Protocol):
    async def __call__(self, **settings: Any) -> Worker: ...


@pytest.fixture(autouse=True)
def _log() -> Any:
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def agent_class(echo: Echo) -> type[Agent]:
    """What the workers of a test serve."""

    class Support(Agent):
        name = "support"

        def get_llm(self) -> Any:
            return echo

    return Support


@pytest.fixture
async def serve(nats_server: EmbeddedServer, agent_class: type[Agent]) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Worker:
            given: dict[str, Any] = {
                "port": -1,
                "drain_timeout_s": 0.2,
                "ack_wait_s": 1,
                **settings,
            }
            worker = Worker(Settings(nats_url=nats_server.url, **given), Registry([agent_class]))
            return await stack.enter_async_context(worker)

        yield start


@pytest.fixture
async def client(nats_server: EmbeddedServer) -> AsyncIterator[RunClient]:
    async with await RunClient.connect(nats_server.url) as client:
        yield client


@pytest.fixture
async def provisioned(nats_server: EmbeddedServer, nc: Client) -> Client:
    """A connection to a server that has the streams and no worker."""
    settings = Settings(nats_url=nats_server.url)
    await provision(nc.jetstream(), settings, ["support"])
    return nc


@pytest.fixture
def client_connection(client: RunClient) -> Client:
    """A second connection."""
    return client.connection
