"""Model calls that failed are made again, and what was shown of them is void."""

import asyncio
import json
import time
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from haystack.dataclasses import Document
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import SPOKEN, Turn
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    Told,
    agent_over,
    call_turn,
    chunk,
    kinds,
    outputs_of,
    request,
    tell,
    text_turn,
    usage_chunk,
)

from hayrunner import RetryPolicy
from hayrunner.testing.provider import ScriptedProvider, Tries
from hayrunner_contracts.events import (
    Data,
    ModelCallEnd,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
)
from hayrunner_contracts.following import MessageBuilder
from hayrunner_contracts.testing import eventually

ALL = tuple(SPOKEN)
ABORT: Turn = [{"$abort": True}]
BROKEN = [chunk({"content": "Hel"}), *ABORT]
FAILED: Turn = [{"$status": 500, "body": {}}]


def refused(status: int, retry_after: str | None = None, **error: str) -> Turn:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return [{"$status": status, "headers": headers, "body": {"error": error}}]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited between tries; nobody waits for real."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("hayrunner.adapters.retries._sleep", sleep)
    return waited


def message_of(told: Told) -> MessageBuilder:
    """The message as a consumer who follows the rules sees it."""
    return built(told.events)


def built(events: list[StreamEvent]) -> MessageBuilder:
    message = MessageBuilder()
    for event in events:
        message.add(event)
    return message


def rejected(told: Told) -> list[int]:
    return [e.data["step"] for e in told.of(Data) if e.data_type == "reply_rejected"]


def texts(told: Told) -> list[str | None]:
    """The assistant's texts in history."""
    return [
        "".join(str(getattr(part, "text", "")) for part in message.content)
        for message in told.outcome.messages
        if message.role == "assistant"
    ]


def same(provider: ScriptedProvider) -> bool:
    """Whether every try asked the same."""
    return all(one.body == other.body for one, other in pairwise(provider.requests))


@pytest.mark.parametrize("mode", ["stream", "answer"])
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_a_passing_failure_is_tried_again_and_leaves_no_trace(
    provide: Provide, waits: list[float], kind: str, mode: str, status: int
) -> None:
    turn = Tries(refused(status, "7"), SPOKEN[kind].text("Hel", "lo"))
    provider, generator = await provide([turn], kind)

    told = await tell(agent_over(generator, provider_retries=2), mode=mode)

    assert len(provider.requests) == 2
    assert same(provider)
    assert told.kinds == ["MessageStart", *["TextChunk"] * 2, *told.kinds[3:]]
    assert told.kinds[3:] == ["ModelCallEnd", "MessageEnd", "StreamEnd"]
    assert {event.step for event in told.of(TextChunk)} == {1}
    assert (told.outcome.answer, told.outcome.model_calls) == ("Hello", 1)
    [wait] = waits
    # Ollama's client does not tell what its server asked for.
    assert wait >= (0.25 if kind == "ollama" else 7)


@pytest.mark.parametrize("mode", ["stream", "answer"])
@pytest.mark.parametrize("kind", ALL)
async def test_a_reply_that_broke_off_is_void_and_made_again(
    provide: Provide, waits: list[float], kind: str, mode: str
) -> None:
    whole = SPOKEN[kind].text("Hel", "lo")
    first = 1 + next(n for n, element in enumerate(whole) if "Hel" in json.dumps(element))
    provider, generator = await provide([Tries([*whole[:first], *ABORT], whole)], kind)

    told = await tell(agent_over(generator, provider_retries=1), mode=mode)

    assert same(provider)
    assert [event.content for event in told.of(TextChunk)] == ["Hel", "Hel", "lo"]
    assert [event.step for event in told.of(TextChunk)] == [1, 2, 2]
    assert rejected(told) == [1]
    assert message_of(told).text == told.outcome.answer == "Hello"
    assert texts(told) == ["Hello"]
    assert (told.outcome.status, told.outcome.model_calls) == ("completed", 2)
    assert [event.finish_reason for event in told.of(ModelCallEnd)] == ["error", "stop"]
    assert len(waits) == 1


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("kind", ["own", "openai", "responses", "anthropic"])
async def test_a_call_that_was_being_written_is_closed_and_the_next_one_runs(
    provide: Provide, waits: list[float], kind: str, tools: bool
) -> None:
    spoken = SPOKEN[kind]
    whole = spoken.calls(("add", {"a": 1, "b": 2}))
    last = 1 + next(n for n, element in enumerate(whole) if '\\"b' in json.dumps(element))
    turns = [Tries([*whole[:last], *ABORT], whole), spoken.text("It is 3.")]
    provider, generator = await provide(turns, kind)
    agent = agent_over(generator, tools=[add], provider_retries=2)

    told = await tell(agent, mode="stream" if tools else "answer", tools=True)

    assert same_twice(provider)
    error, result = outputs_of(told.events)
    assert error == (
        "This call was not run: the model's server failed before the reply was whole.",
        True,
    )
    assert result == ("3", False)
    starts = [event.tool_call_id for event in told.of(ToolCallStart)]
    assert len(set(starts)) == 2
    assert [e.tool_call_id for e in told.of(ToolExecutionCommitted)] == starts[1:]
    assert told.of(ToolInputChunk)[0].tool_call_id == starts[0]
    assert told.roles == ["assistant", "tool", "assistant"]
    assert (told.outcome.answer, told.outcome.model_calls) == ("It is 3.", 3)
    assert rejected(told) == [1]


def same_twice(provider: ScriptedProvider) -> bool:
    return provider.requests[0].body == provider.requests[1].body


async def test_a_server_that_goes_silent_is_tried_again(
    provide: Provide, waits: list[float]
) -> None:
    hanging = [chunk({"content": "Hel"}), {"$hang": True}]
    first_byte: Turn = [{"$hang": True}]
    provider, generator = await provide(
        [Tries(first_byte, hanging, text_turn("Hello"))],
        idle_timeout_s=0.05,
        first_byte_timeout_s=0.05,
    )

    told = await tell(agent_over(generator, provider_retries=2))

    await eventually(lambda: len(provider.disconnects) == 2)
    assert len(provider.requests) == 3
    assert message_of(told).text == told.outcome.answer == "Hello"
    assert told.outcome.model_calls == 2
    assert len(waits) == 2


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_retries_that_are_used_up_end_the_run_with_the_last_failure(
    provide: Provide, waits: list[float], kind: str
) -> None:
    provider, generator = await provide([Tries(FAILED, BROKEN, refused(429))], kind)

    told = await tell(agent_over(generator, provider_retries=2))

    assert len(provider.requests) == 3
    assert told.outcome.error is not None
    assert (told.code, told.outcome.error.retryable) == ("provider_rate_limited", True)
    assert told.outcome.answer is None
    assert told.outcome.messages == []
    assert rejected(told) == [1]
    # The one that broke off, and the last one, which is what the run ended with.
    assert told.outcome.model_calls == 2
    assert len(waits) == 2
    assert waits[1] > waits[0]


async def test_the_last_broken_reply_is_the_runs_partial_answer(
    provide: Provide, waits: list[float]
) -> None:
    again = [chunk({"content": "Hell"}), *ABORT]
    _, generator = await provide([Tries(BROKEN, again)])

    told = await tell(agent_over(generator, provider_retries=1))

    assert (told.code, told.outcome.answer) == ("provider_error", "Hell")
    assert message_of(told).text == "Hell"
    assert texts(told) == ["Hell"]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_an_invalid_request_is_never_sent_again(
    provide: Provide, waits: list[float], kind: str, status: int
) -> None:
    provider, generator = await provide([refused(status, "1")], kind)
    told = await tell(agent_over(generator, provider_retries=5))
    assert (len(provider.requests), told.code, waits) == (1, "provider_error", [])


@pytest.mark.parametrize("kind", ["own", "openai", "responses"])
async def test_an_account_without_quota_is_not_asked_again(
    provide: Provide, waits: list[float], kind: str
) -> None:
    refusal = refused(429, code="insufficient_quota", type="insufficient_quota")
    provider, generator = await provide([refusal], kind)
    told = await tell(agent_over(generator, provider_retries=5))
    assert (len(provider.requests), told.code) == (1, "provider_rate_limited")
    assert told.outcome.error is not None
    assert not told.outcome.error.retryable


def failed_response(code: str) -> Turn:
    error = {"code": code, "message": "secret"}
    *text, last = SPOKEN["responses"].text("Hel", "lo")
    response = last["response"] | {"status": "failed", "error": error}
    return [*text, {"type": "response.failed", "sequence_number": 3, "response": response}]


@pytest.mark.parametrize(
    ("code", "tries", "told_as"),
    [
        ("server_error", 2, None),
        ("rate_limit_exceeded", 2, None),
        ("invalid_prompt", 1, "provider_error"),
        ("invalid_image_format", 1, "provider_error"),
    ],
)
async def test_a_failure_told_in_the_stream_is_tried_again_unless_it_is_the_requests(
    provide: Provide, waits: list[float], code: str, tries: int, told_as: str | None
) -> None:
    turn = Tries(failed_response(code), SPOKEN["responses"].text("Hello"))
    provider, generator = await provide([turn], "responses")

    told = await tell(agent_over(generator, provider_retries=2))

    assert (len(provider.requests), told.code) == (tries, told_as)
    if told_as is None:
        # What the failed try cost was told, and is spent.
        assert message_of(told).text == told.outcome.answer == "Hello"
        assert told.outcome.usage.total_tokens == 30


@pytest.mark.parametrize(("code", "tries"), [("server_error", 2), ("invalid_request_error", 1)])
async def test_an_error_in_the_place_of_a_chunk_is_told_by_its_type(
    provide: Provide, waits: list[float], code: str, tries: int
) -> None:
    for kind in ("own", "openai"):
        broken = [chunk({"content": "Hel"}), {"error": {"type": code, "message": "secret"}}]
        provider, generator = await provide([Tries(broken, text_turn("Hello"))], kind)
        await tell(agent_over(generator, provider_retries=2))
        assert len(provider.requests) == tries


async def test_none_are_made_where_an_author_wants_none(
    provide: Provide, waits: list[float]
) -> None:
    provider, generator = await provide([FAILED])
    told = await tell(agent_over(generator, provider_retries=0))
    assert (len(provider.requests), told.code, waits) == (1, "provider_error", [])


async def test_an_author_may_set_the_whole_policy(provide: Provide, waits: list[float]) -> None:
    policy = RetryPolicy(retries=4, first_wait_s=0.01, longest_wait_s=0.02)
    provider, generator = await provide([FAILED])
    await tell(agent_over(generator, provider_retries=policy))
    assert len(provider.requests) == 5
    assert max(waits) <= 0.02


def in_seconds(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


@pytest.mark.parametrize(("retry_after", "tries"), [("30", 1), ("2", 2)])
async def test_a_wait_past_the_deadline_fails_the_run_at_once(
    provide: Provide, waits: list[float], retry_after: str, tries: int
) -> None:
    turn = Tries(refused(429, retry_after), text_turn("Hello"))
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


async def test_a_cited_number_that_was_being_written_is_void_too(
    provide: Provide, waits: list[float]
) -> None:
    def find(topic: str) -> list[Document]:
        """Finds documents."""
        return [Document(content="x", meta={"title": "X"})]

    broken = [chunk({"content": "See [1"}), *ABORT]
    turns = [call_turn(("find", {"topic": "x"})), Tries(broken, text_turn("Look at ", "[1]."))]
    _, generator = await provide(turns)

    told = await tell(agent_over(generator, tools=[find], provider_retries=1))

    assert message_of(told).text == told.outcome.answer == "Look at [1]."
    last = [event.content for event in told.of(TextChunk) if event.step == 3]
    assert "".join(last) == "Look at [1]."


async def test_an_answer_given_by_a_tool_is_made_again_unseen(
    provide: Provide, waits: list[float]
) -> None:
    whole = SPOKEN["anthropic"].form('{"n": ', "1}")
    broken = [*whole[:4], *ABORT]
    provider, generator = await provide([Tries(broken, whole)], "anthropic")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    told = await tell(agent_over(generator, provider_retries=1), response_format=schema)

    assert (told.outcome.answer, len(provider.requests)) == ({"n": 1}, 2)
    assert rejected(told) == []
    assert message_of(told).text == '{"n": 1}'
