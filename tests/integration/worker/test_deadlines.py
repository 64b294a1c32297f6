"""Deadlines count from the request, and hold wherever a run waits."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from haystack.utils import Secret
from tests.integration.worker.conftest import Requester, Serve, Serving
from tests.integration.worker.scripted import ScriptedAgent, Session
from tests.unit.agent.runs import agent_over, call_turn, chunk, text_turn

from hayrunner import RetryPolicy, current_tool_call, requires_approval
from hayrunner.agent import Agent
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.testing.provider import Scenario, ScriptedProvider, Tries
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import deadline_of
from hayrunner_contracts.errors import DeadlineExceeded
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.testing import assert_valid_stream, eventually

AgentOver = Callable[..., Awaitable[tuple[ScriptedProvider, Agent]]]
HANGING = [chunk({"content": "Hel"}), {"$hang": True}]
TIME_S = 0.6


@pytest.fixture
async def over() -> AsyncIterator[AgentOver]:
    """`provider, agent = await over(scenario, name, **settings)`."""
    async with AsyncExitStack() as stack:

        async def make(
            scenario: Scenario, name: str = "support", **settings: Any
        ) -> tuple[ScriptedProvider, Agent]:
            provider = await stack.enter_async_context(ScriptedProvider(scenario))
            generator = OpenAICompatibleChatGenerator(
                model="m", api_key=Secret.from_token("key"), api_base_url=provider.base_url
            )
            stack.push_async_callback(generator.close_async)
            agent = agent_over(generator, **settings)
            agent.name = name
            return provider, agent

        yield make


async def ended_late(requester: Requester, message_id: str) -> RunResult:
    """The result of a run that ended by its deadline, and not long after it."""
    result = await requester.ended(message_id, timeout=TIME_S + 3)
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "deadline_exceeded")
    assert_valid_stream(await requester.stored_events(message_id))
    return result


async def test_a_model_that_hangs_is_left_at_the_deadline(
    over: AgentOver, serving: Serving, requester: Requester
) -> None:
    provider, agent = await over([HANGING])
    await serving(agent)
    for mode in ("stream", "answer"):
        result = await ended_late(requester, await requester.publish(timeout_s=TIME_S, mode=mode))
        assert result.answer == "Hel"
    await eventually(lambda: len(provider.disconnects) == 2)


async def test_the_queue_counts_and_a_run_pulled_too_late_asks_no_model(
    over: AgentOver, serving: Serving, requester: Requester
) -> None:
    provider, agent = await over([HANGING])
    await serving(agent, concurrency=1)
    first = await requester.publish(timeout_s=2 * TIME_S)
    await eventually(lambda: provider.requests, 5)
    queued = await requester.publish(timeout_s=TIME_S)

    await ended_late(requester, first)
    result = await ended_late(requester, queued)
    assert (result.model_calls, len(provider.requests)) == (0, 1)


async def test_what_is_left_of_a_timeout_is_what_a_run_is_told(
    serve: Serve, requester: Requester
) -> None:
    go = asyncio.Event()
    sessions: list[Session] = []

    async def script(session: Session) -> str:
        sessions.append(session)
        await go.wait()
        return ""

    await serve(ScriptedAgent(script=script), concurrency=1)
    first = await requester.publish()
    await eventually(lambda: sessions)
    published = time.time()
    queued = await requester.publish(timeout_s=60.0)
    await eventually(lambda: time.time() > published + 0.5)
    go.set()
    await requester.ended(first)
    await requester.ended(queued)

    deadline = deadline_of(sessions[1].request, time.time())
    assert deadline is not None
    assert abs(deadline - published - 60) < 0.4


async def test_the_wait_for_another_try_ends_at_the_deadline(
    over: AgentOver, serving: Serving, requester: Requester
) -> None:
    policy = RetryPolicy(retries=1_000, first_wait_s=0.05, longest_wait_s=0.05)
    provider, agent = await over([Tries([{"$status": 500}], HANGING)], provider_retries=policy)
    await serving(agent)
    await ended_late(requester, await requester.publish(timeout_s=TIME_S))
    assert len(provider.requests) == 2


@pytest.mark.parametrize("park_after_s", [0.05, 30.0])
async def test_a_call_that_nobody_decides_on_ends_at_the_deadline(
    over: AgentOver, serving: Serving, requester: Requester, park_after_s: float
) -> None:
    @requires_approval
    def delete(name: str) -> str:
        """Deletes."""
        raise AssertionError

    provider, agent = await over([call_turn(("delete", {"name": "x"}))], tools=[delete])
    await serving(agent, park_after_s=park_after_s)
    await ended_late(requester, await requester.publish(timeout_s=TIME_S))
    assert len(provider.requests) == 1


@pytest.fixture
def blocked() -> Iterator[threading.Event]:
    """What a sync tool waits for; set in the end, so that its thread ends."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_sync_tool_that_blocks_does_not_hold_the_run_past_the_deadline(
    over: AgentOver,
    serving: Serving,
    requester: Requester,
    blocked: threading.Event,
    concurrency: int,
) -> None:
    def block(n: int) -> str:
        """Blocks."""
        blocked.wait(20)
        return ""

    calls = call_turn(("block", {"n": 1}), ("block", {"n": 2}))
    _, agent = await over([calls], tools=[block], tool_concurrency=concurrency)
    await serving(agent)
    began = time.monotonic()
    await ended_late(requester, await requester.publish(timeout_s=TIME_S))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_subagent_ends_with_the_run_that_called_it(
    over: AgentOver, serving: Serving, requester: Requester, where: str
) -> None:
    ask = call_turn(("researcher", {"task": "find it"}))
    side, researcher = await over([HANGING], "researcher")
    sub = researcher if where == "here" else "researcher"
    _, agent = await over([ask, text_turn("never")], subagents=[sub])
    await serving(agent)
    if where == "elsewhere":
        await serving(researcher)
    await ended_late(requester, await requester.publish(timeout_s=TIME_S))
    await eventually(lambda: len(side.disconnects) == 1, 5)


async def test_a_busy_thread_is_waited_for_until_the_deadline(
    over: AgentOver, serving: Serving, requester: Requester
) -> None:
    provider, agent = await over([HANGING])
    await serving(agent)
    holder = await requester.publish(thread_id="t")
    await eventually(lambda: provider.requests, 5)

    await ended_late(requester, await requester.publish(thread_id="t", timeout_s=TIME_S))
    assert len(provider.requests) == 1
    await requester.cancel(holder)
    assert (await requester.ended(holder)).status == "cancelled"


async def test_an_async_tool_is_cancelled_at_the_deadline(
    over: AgentOver, serving: Serving, requester: Requester
) -> None:
    ended: list[str] = []

    async def wait() -> str:
        """Waits."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(current_tool_call().tool_name)
        return ""

    _, agent = await over([call_turn(("wait", {}))], tools=[wait])
    await serving(agent)
    await ended_late(requester, await requester.publish(timeout_s=TIME_S))
    assert ended == ["wait"]


async def test_a_direct_run_has_its_deadline_too(
    over: AgentOver, serving: Serving, requester: Requester
) -> None:
    provider, agent = await over([HANGING])
    await serving(agent)
    with pytest.raises(DeadlineExceeded):
        await RunClient(requester.nc).ask("support", "hi", timeout=5, timeout_s=TIME_S)
    await eventually(lambda: len(provider.disconnects) == 1)
