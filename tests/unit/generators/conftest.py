"""A generator and the scripted provider it talks to, closed after the test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hayrunner.generators import OpenAICompatibleChatGenerator
from hayrunner.generators import transport as transport_module
from hayrunner.testing.provider import Scenario, ScriptedProvider, load_scenarios

Serve: TypeAlias = Callable[..., Awaitable[tuple[ScriptedProvider, OpenAICompatibleChatGenerator]]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`provider, generator = await serve(scenario, **generator_parameters)`."""
    async with AsyncExitStack() as stack:

        async def start(
            scenario: Scenario,
            turn_of: Callable[[dict[str, Any]], int] | None = None,
            **parameters: Any,
        ) -> tuple[ScriptedProvider, OpenAICompatibleChatGenerator]:
            provider = await stack.enter_async_context(ScriptedProvider(scenario, turn_of=turn_of))
            given: dict[str, Any] = {"max_retries": 2} | parameters
            generator = OpenAICompatibleChatGenerator(api_base_url=provider.base_url, **given)
            stack.push_async_callback(generator.close_async)
            return provider, generator

        yield start


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait milliseconds."""
    monkeypatch.setattr(transport_module, "FIRST_WAIT_S", 0.002)


@pytest.fixture(scope="session")
def scenarios() -> dict[str, list[list[dict[str, Any]]]]:
    path = Path(__file__).parents[2] / "scenarios" / "openai_chat.json"
    return load_scenarios(path)
