"""What keeps a model call that failed from being made again: time, limits, a cancel."""

import asyncio
import time
from datetime import UTC, datetime

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import Turn
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    chunk,
    kinds,
    request,
    tell,
    text_turn,
    usage_chunk,
)

from hayrunner import RetryPolicy
from hayrunner.testing.provider import Tries
from hayrunner_contracts.events import ModelCallEnd
from hayrunner_contracts.testing import eventually

ABORT: Turn = [{"$abort": True}]
BROKEN = [chunk({"content": "Hel"}), *ABORT]
FAILED: Turn = [{"$status": 500, "body": {}}]


def in_seconds(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


@pytest.mark.parametrize(("retry_after", "tries"), [("30", 1), ("2", 2)])
async def test_a_wait_past_the_deadline_fails_the_run_at_once(
    provide: Provide, waits: list[float], retry_after: str, tries: int
) -> None:
    turn = Tries([{"$status": 429, "headers": {"Retry-After": retry_after}}], text_turn("Hello"))
    provider, generator = await provide([turn])

    told = await tell(agent_over(generator, provider_retries=2), deadline=in_seconds(10))

    assert (len(provider.requests), len(waits)) == (tries, tries - 1)
    if tries == 1:
        assert told.code == "provider_rate_limited"
        assert told.outcome.error is not None
        assert told.outcome.error.retryable


async def test_a_cancel_ends_the_wait_at_once_and_keeps_what_there_is(provide: Provide) -> None:
    provider, generator = await provide([BROKEN])
    policy = RetryPolicy(first_wait_s=60, longest_wait_s=60)
    sink = Sink()
    session = agent_over(generator, provider_retries=policy).open_session(
        request(), message_id=MESSAGE_ID, sink=sink, agent_name="support"
    )
    task = asyncio.ensure_future(session.run())
    await eventually(lambda: bool(provider.requests and provider.requests[0].finished_at))
    await eventually(lambda: sink.events)

    session.stop("cancelled", "enough")
    outcome = await asyncio.wait_for(task, 2)

    assert kinds(sink.events) == ["TextChunk", "MessageEnd"]
    assert (outcome.status, outcome.answer, outcome.model_calls) == ("cancelled", "Hel", 1)
    assert len(provider.requests) == 1


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_what_a_broken_reply_cost_is_spent_and_its_budget_allows_no_other(
    provide: Provide, waits: list[float], kind: str
) -> None:
    costly = [chunk({"content": "Hel"}), usage_chunk(), *ABORT]
    provider, generator = await provide([Tries(costly, text_turn("Hello"))], kind)
    agent = agent_over(generator, provider_retries=2)

    told = await tell(agent, options={"token_budget": 15})
    assert (len(provider.requests), told.code, waits) == (1, "provider_error", [])
    assert told.outcome.usage.total_tokens == 15

    provider, generator = await provide([Tries(costly, text_turn("Hello"))], kind)
    told = await tell(agent_over(generator, provider_retries=2), options={"token_budget": 16})
    assert told.outcome.answer == "Hello"
    assert told.outcome.usage.total_tokens == 30
    spent = [event.usage.total_tokens for event in told.of(ModelCallEnd) if event.usage]
    assert spent == [15, 15]


async def test_only_a_try_that_the_model_began_to_answer_counts_as_a_turn(
    provide: Provide, waits: list[float]
) -> None:
    provider, generator = await provide([Tries(FAILED, FAILED, text_turn("Hello"))])
    told = await tell(agent_over(generator, provider_retries=2), options={"max_turns": 1})
    assert (told.outcome.answer, len(provider.requests)) == ("Hello", 3)

    provider, generator = await provide([Tries(BROKEN, text_turn("Hello"))])
    told = await tell(agent_over(generator, provider_retries=2), options={"max_turns": 1})
    assert (told.code, told.outcome.answer, len(provider.requests)) == ("provider_error", "Hel", 1)
