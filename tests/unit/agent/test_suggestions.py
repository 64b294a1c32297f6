"""Follow-up questions after an answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    request,
    tell,
    text_turn,
)

from hayrunner import Stream, SuggestionGenerator
from hayrunner_contracts.events import Suggestion
from hayrunner_contracts.testing import assert_valid_stream


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Fixed(SuggestionGenerator):
    """Says what it is told to."""

    def __init__(self, found: Any = ("When?", "Where?")) -> None:
        super().__init__()
        self.found = found
        self.asked: list[tuple[list[str | None], str]] = []

    async def generate(self, messages: Sequence[ChatMessage], response: str) -> list[str]:
        self.asked.append(([message.text for message in messages], response))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Never(SuggestionGenerator):
    limit_s = 0.05

    async def generate(self, messages: Sequence[ChatMessage], response: str) -> list[str]:
        await asyncio.Event().wait()
        return []


async def test_questions_come_after_the_message_and_before_the_end(provide: Provide) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("It", " is 3.")])
    fixed = Fixed()
    told = await tell(agent_over(generator, tools=[add], suggestion_generator=fixed), "add 1 and 2")
    assert told.kinds[-3:] == ["MessageEnd", "Suggestion", "StreamEnd"]
    assert told.of(Suggestion)[0].suggestions == ["When?", "Where?"]
    assert fixed.asked == [(["add 1 and 2"], "It is 3.")]


async def test_the_default_asks_the_agents_own_generator_and_is_not_in_the_usage(
    provide: Provide,
) -> None:
    def turn(body: dict[str, Any]) -> int:
        return int("short questions" in str(body["messages"][0]["content"]))

    listed = text_turn('Here: ["When?", ', '"Where?", "Why?", "How?"]')
    provider, generator = await provide([text_turn("Hello"), listed], turn_of=turn)
    agent = agent_over(generator, suggestion_generator=SuggestionGenerator)

    told = await tell(agent, "hi")

    assert told.of(Suggestion)[0].suggestions == ["When?", "Where?", "Why?"]
    asked = provider.requests[1].body
    assert asked["messages"][-1]["content"] == "User: hi\n\nAssistant: Hello"
    assert "tools" not in asked
    assert (told.outcome.usage.total_tokens, told.outcome.model_calls) == (15, 1)
    assert told.text == "Hello"
    assert len(told.outcome.messages) == 1


@pytest.mark.parametrize(
    "found", [[], None, "When?", [1, "  ", "x" * 301], ValueError("card 4711"), RuntimeError()]
)
async def test_what_is_no_list_of_questions_means_none(provide: Provide, found: Any) -> None:
    _, generator = await provide([text_turn("Hello")])
    told = await tell(agent_over(generator, suggestion_generator=Fixed(found)))
    assert told.of(Suggestion) == []
    assert told.outcome.status == "completed"


async def test_questions_that_take_too_long_are_not_waited_for(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    assert SuggestionGenerator.limit_s == 5.0
    told = await tell(agent_over(generator, suggestion_generator=Never()))
    assert told.of(Suggestion) == []
    assert told.outcome.answer == "Hello"


@pytest.mark.parametrize("reply", ["no list at all", '{"a": 1}', "[1, 2]", "[broken"])
async def test_a_reply_that_is_no_list_means_none(provide: Provide, reply: str) -> None:
    def turn(body: dict[str, Any]) -> int:
        return int("short questions" in str(body["messages"][0]["content"]))

    _, generator = await provide([text_turn("Hello"), text_turn(reply)], turn_of=turn)
    told = await tell(agent_over(generator, suggestion_generator=SuggestionGenerator()))
    assert told.of(Suggestion) == []


async def test_headless_failed_and_structured_runs_have_none(provide: Provide) -> None:
    fixed = Fixed()
    _, generator = await provide([text_turn("{}")])
    agent = agent_over(generator, suggestion_generator=fixed)
    await tell(agent, mode="answer", tools=True)
    await tell(agent, response_format={"type": "object"})
    await tell(agent, options={"max_turns": 0})
    assert fixed.asked == []


async def test_a_subagent_suggests_nothing(provide: Provide) -> None:
    fixed = Fixed()
    _, parent = await provide([call_turn(("researcher", {"task": "t"})), text_turn("ok")])
    _, child = await provide([text_turn("Blue.")])
    researcher = agent_over(child, suggestion_generator=fixed)
    researcher.name = "researcher"
    told = await tell(agent_over(parent, subagents=[researcher]))
    assert told.outcome.answer == "ok"
    assert fixed.asked == []


async def test_stopping_a_run_that_has_ended_ends_its_suggestions_only(provide: Provide) -> None:
    began = asyncio.Event()

    class Waiting(SuggestionGenerator):
        async def generate(self, messages: Sequence[ChatMessage], response: str) -> list[str]:
            began.set()
            await asyncio.Event().wait()
            return []

    _, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator, suggestion_generator=Waiting())
    sink = Sink()
    session = agent.open_session(request(), message_id=MESSAGE_ID, sink=sink, agent_name="support")
    running = asyncio.ensure_future(session.run())
    await asyncio.wait_for(began.wait(), 5)

    session.stop("cancelled", "enough")

    outcome = await asyncio.wait_for(running, 2)
    assert (outcome.status, outcome.answer) == ("completed", "Hello")
    assert_valid_stream(sink.framed())


async def test_a_stream_adapter_takes_a_generator_of_suggestions(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    stream = Stream(agent_over(generator).loop, suggestion_generator=Fixed())
    events = [event async for event in stream.stream("hi")]
    assert_valid_stream(events)
    assert [e.suggestions for e in events if isinstance(e, Suggestion)] == [["When?", "Where?"]]
