"""Real generators over a scripted provider, all closed after the test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest
from anthropic import AsyncAnthropic
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator
from haystack_integrations.components.generators.ollama import OllamaChatGenerator

from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.testing.provider import Scenario, ScriptedProvider

KEY = Secret.from_token("key")
GENERATORS: dict[str, Callable[..., Any]] = {
    "own": OpenAICompatibleChatGenerator,
    "openai": OpenAIChatGenerator,
    "responses": OpenAIResponsesChatGenerator,
}


def _anthropic(url: str, parameters: dict[str, Any]) -> Any:
    generator = AnthropicChatGenerator(**parameters)
    # It takes no address: the client that it would make is made here.
    generator.async_client = AsyncAnthropic(
        api_key="key", base_url=url, max_retries=parameters["max_retries"]
    )
    return generator


def _ollama(url: str, parameters: dict[str, Any]) -> Any:
    return OllamaChatGenerator(url=url, **{k: v for k, v in parameters.items() if k != "api_key"})


INTEGRATIONS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "anthropic": _anthropic,
    "ollama": _ollama,
}


class Provide(Protocol):
    def __call__(
        self,
        scenario: Scenario,
        kind: str = "own",
        turn_of: Callable[[dict[str, Any]], int] | None = None,
        **parameters: Any,
    ) -> Awaitable[tuple[ScriptedProvider, Any]]: ...


def providing(stack: AsyncExitStack) -> Provide:
    """What the fixture `provide` is; everything is closed with `stack`."""

    async def start(
        scenario: Scenario,
        kind: str = "own",
        turn_of: Callable[[dict[str, Any]], int] | None = None,
        **parameters: Any,
    ) -> tuple[ScriptedProvider, Any]:
        provider = await stack.enter_async_context(ScriptedProvider(scenario, turn_of=turn_of))
        given = {"model": "m", "api_key": KEY, "max_retries": 0} | parameters
        if kind in INTEGRATIONS:
            generator = INTEGRATIONS[kind](provider.root_url, given)
        else:
            generator = GENERATORS[kind](api_base_url=provider.base_url, **given)
        stack.push_async_callback(generator.close_async)
        return provider, generator

    return start


@pytest.fixture
async def provide() -> AsyncIterator[Provide]:
    """`provider, generator = await provide(scenario, kind, **generator_parameters)`."""
    async with AsyncExitStack() as stack:
        yield providing(stack)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited between tries; nobody waits for real."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("hayrunner.adapters.retries._sleep", sleep)
    return waited
