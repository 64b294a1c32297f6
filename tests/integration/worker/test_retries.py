"""A provider that fails and recovers, from a request on NATS to its stored events and result."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from haystack.utils import Secret
from tests.integration.worker.conftest import Requester
from tests.unit.agent.runs import agent_over, call_turn, chunk, text_turn

from hayrunner import RetryPolicy
from hayrunner.embedded import EmbeddedServer
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner.testing.provider import Scenario, ScriptedProvider, Tries
from hayrunner_contracts.events import Error, ToolExecutionCommitted, ToolOutput
from hayrunner_contracts.following import MessageBuilder
from hayrunner_contracts.testing import assert_valid_stream, eventually

Serving = Callable[..., Awaitable[ScriptedProvider]]


@pytest.fixture
async def serving(nats_server: EmbeddedServer, requester: Requester) -> AsyncIterator[Serving]:
    """A worker whose agent `support` has a model that says what the scenario says."""
    await requester.watch()
    async with AsyncExitStack() as stack:

        async def start(scenario: Scenario, **settings: Any) -> ScriptedProvider:
            provider = await stack.enter_async_context(ScriptedProvider(scenario))
            generator = OpenAICompatibleChatGenerator(
                model="m", api_key=Secret.from_token("key"), api_base_url=provider.base_url
            )
            stack.push_async_callback(generator.close_async)
            agent = agent_over(generator, **settings)
            given = Settings(nats_url=nats_server.url, port=-1, drain_timeout_s=0.2)
            await stack.enter_async_context(Worker(given, Registry([agent])))
            return provider

        yield start


async def test_a_provider_that_recovers_is_one_coherent_message(
    serving: Serving, requester: Requester
) -> None:
    def add(a: int) -> int:
        """Adds."""
        return a + 1

    whole = call_turn(("add", {"a": 1}), text="Adding.")
    turns = [
        Tries([{"$status": 503}], [*whole[:2], {"$abort": True}], whole),
        Tries([chunk({"content": "It"}), {"$abort": True}], text_turn("It is ", "2.")),
    ]
    policy = RetryPolicy(first_wait_s=0.01)
    provider = await serving(turns, tools=[add], provider_retries=policy)

    message_id = await requester.publish(include_messages=True)
    result = await requester.ended(message_id)

    events = await requester.stored_events(message_id)
    assert_valid_stream(events)
    message = MessageBuilder()
    for event in events:
        message.add(event)
    assert message.text == "Adding.It is 2."
    assert (result.status, result.answer, result.model_calls) == ("completed", "It is 2.", 4)
    assert [m.role for m in result.messages or []] == ["assistant", "tool", "assistant"]
    assert len([e for e in events if isinstance(e, ToolExecutionCommitted)]) == 1
    assert [e.is_error for e in events if isinstance(e, ToolOutput)] == [True, False]
    assert len(provider.requests) == 5
    headless = await requester.ended(await requester.publish(mode="answer", tools=True))
    assert headless.answer == "It is 2."


async def test_a_run_whose_provider_wants_it_to_wait_past_its_deadline_fails_at_once(
    serving: Serving, requester: Requester
) -> None:
    refusal = {"$status": 429, "headers": {"Retry-After": "20"}}
    provider = await serving([[refusal]], provider_retries=2)
    message_id = await requester.publish(timeout_s=15.0)
    result = await requester.ended(message_id, timeout=10)

    assert len(provider.requests) == 1
    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("provider_rate_limited", True)
    [error] = [e for e in requester.events[message_id] if isinstance(e, Error)]
    assert error.retryable


async def test_a_cancel_ends_the_wait_for_another_try(
    serving: Serving, requester: Requester
) -> None:
    refusal = {"$status": 429, "headers": {"Retry-After": "50"}}
    provider = await serving([[refusal]], provider_retries=2)
    message_id = await requester.publish()
    await eventually(lambda: len(provider.requests) == 1, 5)
    await requester.cancel(message_id)
    assert (await requester.ended(message_id, timeout=5)).status == "cancelled"
    assert len(provider.requests) == 1
