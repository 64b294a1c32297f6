"""Every recorded way in which providers stream, from a request on NATS to its result."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.agent.conftest import GENERATORS, KEY
from tests.unit.agent.runs import agent_over

from hayrunner.embedded import EmbeddedServer
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.settings import load_settings
from hayrunner.testing.provider import ScriptedProvider, load_scenarios
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.events import MessageEnd, TextChunk
from hayrunner_contracts.testing import assert_valid_stream

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CHAT = load_scenarios(SCENARIOS / "openai_chat.json")
RESPONSES = load_scenarios(SCENARIOS / "openai_responses.json")
CASES = [
    *(
        (f"{kind}-{name}", kind, turns)
        for name, turns in CHAT.items()
        for kind in ("own", "openai")
    ),
    *((f"responses-{name}", "responses", turns) for name, turns in RESPONSES.items()),
]


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def boom(x: str) -> str:
    """Fails."""
    raise ValueError(x)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[RunClient]:
    """A client of one worker that serves an agent per scenario and generator."""
    async with AsyncExitStack() as stack:
        registry = Registry()
        for name, kind, turns in CASES:
            provider = await stack.enter_async_context(ScriptedProvider(turns))
            more: dict[str, Any] = {"api_base_url": provider.base_url, "max_retries": 0}
            generator = GENERATORS[kind](model="m", api_key=KEY, **more)
            stack.push_async_callback(generator.close_async)
            registry.add(name, agent_over(generator, tools=[add, boom]))
        server = await stack.enter_async_context(EmbeddedServer())
        # A slot for every agent: with fewer, idle agents take turns, and each turn takes a while.
        settings = load_settings(nats_url=server.url, port=-1, concurrency=len(CASES))
        await stack.enter_async_context(Worker(settings, registry))
        yield await stack.enter_async_context(await RunClient.connect(server.url))


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
async def test_a_scenario_streams_one_valid_message_and_one_result(
    client: RunClient, name: str
) -> None:
    run = await client.submit(name, "go", timeout=10)
    events = [event async for event in run.events(timeout=10)]
    result = await run.result(timeout=10)

    assert_valid_stream(events)
    texts = {}
    for event in events:
        if isinstance(event, TextChunk):
            texts[event.step] = texts.get(event.step, "") + event.content
    (end,) = (event for event in events if isinstance(event, MessageEnd))
    assert result.finish_reason == end.finish_reason
    assert result.usage == end.usage
    assert result.last_seq == len(events)
    last = texts[max(texts)] if texts else None
    assert result.answer == last
    assert (result.status == "completed") == (result.error is None)


@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
async def test_a_scenario_has_the_same_answer_headless(client: RunClient, name: str) -> None:
    streamed = await client.submit(name, "go", timeout=10)
    answered = await client.ask(name, "go", tools=True, timeout=10) if _completes(name) else None
    result = await streamed.result(timeout=10)

    if answered is not None:
        assert (answered.answer, answered.finish_reason, answered.usage, answered.model_calls) == (
            result.answer,
            result.finish_reason,
            result.usage,
            result.model_calls,
        )
    else:
        assert result.error is not None


def _completes(name: str) -> bool:
    return not any(part in name for part in ("midstream", "r_failed"))
