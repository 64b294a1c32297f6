"""Model calls that failed are made again, and what was shown of them is void."""

import json
from itertools import pairwise
from typing import Any

import pytest
from haystack.dataclasses import Document
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import SPOKEN, Turn
from tests.unit.agent.runs import (
    Told,
    agent_over,
    call_turn,
    chunk,
    outputs_of,
    tell,
    text_turn,
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


TIMEOUTS: dict[str, dict[str, float]] = {
    "own": {"idle_timeout_s": 0.1, "first_byte_timeout_s": 0.1},
    "openai": {"timeout": 0.1},
    "responses": {"timeout": 0.1},
}


@pytest.mark.parametrize("kind", TIMEOUTS)
async def test_a_server_that_goes_silent_is_tried_again(
    provide: Provide, waits: list[float], kind: str
) -> None:
    whole = SPOKEN[kind].text("Hello")
    hanging: Turn = [whole[0], {"$hang": True}]
    never: Turn = [{"$hang": True}]
    timeouts: dict[str, Any] = {**TIMEOUTS[kind]}
    provider, generator = await provide([Tries(never, hanging, whole)], kind, **timeouts)

    told = await tell(agent_over(generator, provider_retries=2))

    await eventually(lambda: len(provider.disconnects) == 2)
    assert len(provider.requests) == 3
    assert message_of(told).text == told.outcome.answer == "Hello"
    assert told.outcome.model_calls == 2
    assert len(waits) == 2


@pytest.mark.parametrize("kind", ["own", "openai", "anthropic", "ollama"])
async def test_a_server_that_comes_up_meanwhile_is_used(
    provide: Provide, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    provider, generator = await provide([SPOKEN[kind].text("Hello")], kind)
    await provider.__aexit__(None, None, None)
    waited: list[float] = []

    async def start(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            await provider.__aenter__()

    monkeypatch.setattr("hayrunner.adapters.retries._sleep", start)
    told = await tell(agent_over(generator, provider_retries=2))
    assert (told.outcome.answer, told.outcome.model_calls, len(waited)) == ("Hello", 1, 2)
    assert told.kinds[1] == "TextChunk"


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


@pytest.mark.parametrize(
    ("error", "tries"),
    [("overloaded_error", 2), ("rate_limit_error", 2), ("invalid_request_error", 1)],
)
async def test_anthropics_errors_in_the_stream_are_told_apart(
    provide: Provide, waits: list[float], error: str, tries: int
) -> None:
    whole = SPOKEN["anthropic"].text("Hel", "lo")
    broken = [*whole[:4], {"type": "error", "error": {"type": error, "message": "secret"}}]
    provider, generator = await provide([Tries(broken, whole)], "anthropic")

    told = await tell(agent_over(generator, provider_retries=2))

    assert len(provider.requests) == tries
    # The first event tells what the input costs.
    assert told.outcome.usage.input_tokens == 10 * tries


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
