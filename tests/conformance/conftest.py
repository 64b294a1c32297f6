"""One suite, four drivers: every test says what a run does, whichever way it came and goes.

A module shares one nats-server and one worker, and so one event loop.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
import structlog
from nats.aio.client import Client
from tests.conformance.drivers import BusDriver, Driver, LocalDriver, Stage
from tests.unit.agent.conftest import Provide, providing

from hayrunner.agent import Agent
from hayrunner.embedded import EmbeddedServer
from hayrunner.hooks import RunHooks
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.serving.served import AgentRegistry
from hayrunner.settings import Settings

FOLDER = Path(__file__).parent
VARIANTS = {
    "in-process-stream": ("local", "stream"),
    "in-process-headless": ("local", "answer"),
    "nats-stream": ("bus", "stream"),
    "nats-headless": ("bus", "answer"),
}
STREAMING = [name for name, (_, mode) in VARIANTS.items() if mode == "stream"]
HEADLESS = [name for name, (_, mode) in VARIANTS.items() if mode == "answer"]
DURABLE = [name for name, (where, _) in VARIANTS.items() if where == "bus"]

AgentOver = Callable[..., Agent]
ServeElsewhere = Callable[[Agent], Awaitable[None]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    shared = pytest.mark.asyncio(loop_scope="module")
    for item in items:
        if item.path.is_relative_to(FOLDER) and inspect.iscoroutinefunction(
            getattr(item, "function", None)
        ):
            item.add_marker(shared, append=False)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def bus() -> AsyncIterator[tuple[Client, Stage]]:
    """A requester's connection, and what the worker at the other end serves."""
    stage = Stage()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer())
        await stack.enter_async_context(_worker(server.url, stage))
        nc = await nats.connect(server.url)
        stack.push_async_callback(nc.close)
        yield nc, stage


def _worker(url: str, registry: AgentRegistry) -> Worker:
    settings = Settings(
        nats_url=url, port=-1, concurrency=256, storage="memory", drain_timeout_s=0.2
    )
    return Worker(settings, registry)


@pytest_asyncio.fixture(loop_scope="module")
async def serve_elsewhere(bus: tuple[Client, Stage]) -> AsyncIterator[ServeElsewhere]:
    """`await serve_elsewhere(agent)`: another worker on the same bus, with this agent."""
    nc, _ = bus
    async with AsyncExitStack() as stack:

        async def serve(agent: Agent) -> None:
            assert nc.connected_url is not None
            worker = _worker(nc.connected_url.geturl(), Registry([agent]))
            await stack.enter_async_context(worker)

        yield serve


@pytest.fixture(params=VARIANTS)
def driver(request: pytest.FixtureRequest) -> Driver:
    """All four ways to a run."""
    return _driver(request)


@pytest.fixture(params=STREAMING)
def streaming(request: pytest.FixtureRequest) -> Driver:
    """The two that show every event."""
    return _driver(request)


@pytest.fixture(params=HEADLESS)
def headless(request: pytest.FixtureRequest) -> Driver:
    """The two whose result is all there is."""
    return _driver(request)


@pytest.fixture(params=DURABLE)
def durable(request: pytest.FixtureRequest) -> BusDriver:
    """The two over NATS."""
    _, mode = VARIANTS[request.param]
    return BusDriver(mode, *request.getfixturevalue("bus"))


def _driver(request: pytest.FixtureRequest) -> Driver:
    where, mode = VARIANTS[request.param]
    if where == "local":
        return LocalDriver(mode)
    return BusDriver(mode, *request.getfixturevalue("bus"))


@pytest.fixture(params=["own", "openai"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both generators: this package's, and Haystack's over the openai package."""
    return request.param


@pytest_asyncio.fixture(loop_scope="module")
async def provide() -> AsyncIterator[Provide]:
    """`provider, generator = await provide(scenario, kind, **generator_parameters)`."""
    async with AsyncExitStack() as stack:
        yield providing(stack)


@pytest_asyncio.fixture(loop_scope="module")
async def agent_over() -> AsyncIterator[AgentOver]:
    """`agent_over(generator, tools=[…], named_hooks={…}, …)`: an agent with these attributes,
    registered as a worker would."""
    async with AsyncExitStack() as stack:

        def make(
            generator: Any, *, named_hooks: dict[str, RunHooks] | None = None, **settings: Any
        ) -> Agent:
            def get_llm(_: Agent) -> Any:
                return generator

            members: dict[str, Any] = {"name": "stage", "get_llm": get_llm} | settings
            registry = Registry([type("Scripted", (Agent,), members)])
            for name, hook in (named_hooks or {}).items():
                registry.add_hook(name, hook)
            agent = registry.get(members["name"])
            stack.push_async_callback(agent.close)
            return agent

        yield make


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Nothing of the worker's log on the terminal."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of the agent half."""
    caplog.set_level(logging.DEBUG, "hayrunner")
    return caplog
