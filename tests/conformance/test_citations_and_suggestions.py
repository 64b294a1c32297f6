"""Sources that tools find, how the answer cites them, and the questions that come after it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage, Document
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner import CitationRegistry, SuggestionGenerator
from hayrunner_contracts.events import Source, Suggestion, TextChunk, ToolOutput

SHIPPING = Document(id="d1", content="On Mondays.", meta={"title": "Shipping"})
RETURNS = Document(id="d2", content="Thirty days.", meta={"title": "Returns"})
FOUND = {"shipping": [SHIPPING], "all": [RETURNS, SHIPPING]}
TWICE = [
    call_turn(("find", {"topic": "shipping"})),
    call_turn(("find", {"topic": "all"})),
    text_turn("On Mondays [1]."),
]
FIRST, SECOND = "[1] Shipping\nOn Mondays.", "[2] Returns\nThirty days."


def find(topic: str) -> list[Document]:
    """Finds documents."""
    return FOUND[topic]


async def test_tools_that_return_documents_register_them_in_the_runs_registry(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(TWICE)
    mine: list[CitationRegistry] = []

    def get_citation_registry(_: Any) -> CitationRegistry:
        mine.append(CitationRegistry())
        return mine[-1]

    agent = agent_over(generator, tools=[find], get_citation_registry=get_citation_registry)
    for _ in range(2):
        await driver.tell(agent)
    # Each run has its own.
    titles = [[source.title for source in registry.sources] for registry in mine]
    assert titles == [["Shipping", "Returns"]] * 2


async def test_numbering_is_cumulative(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(TWICE)
    told = await driver.tell(agent_over(generator, tools=[find]))
    results = [result for _, result, _ in told.tool_results]
    assert results == [FIRST, f"{SECOND}\n\n{FIRST}"]
    sent = provider.requests[2].body["messages"]
    assert [m["content"] for m in sent if m["role"] == "tool"] == results
    assert told.answer == "On Mondays [1]."


async def test_there_is_one_source_event_per_new_source(
    streaming: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(TWICE)
    told = await streaming.tell(agent_over(generator, tools=[find]))
    sources = told.of(Source)
    assert [(s.index, s.source_id, s.title) for s in sources] == [
        (1, "d1", "Shipping"),
        (2, "d2", "Returns"),
    ]
    # Each right after the output of the call that found it.
    for source in sources:
        before = told.events[list(told.events).index(source) - 1]
        assert isinstance(before, ToolOutput)
        assert before.tool_call_id == source.tool_call_id


async def test_tags_that_are_split_across_chunks_are_held_back_until_whole(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    pieces = text_turn("Soon [", "2", "]", " or [", "1", "7", "] a[", "x] [1")
    _, generator = await provide([call_turn(("find", {"topic": "all"})), pieces], kind)
    told = await streaming.tell(agent_over(generator, tools=[find]))
    assert [event.content for event in told.of(TextChunk)] == [
        *("Soon ", "[2]", " or ", "[17] a", "[x] ", "[1"),
    ]
    assert told.answer == "Soon [2] or [17] a[x] [1"


class Fixed(SuggestionGenerator):
    """Gives or raises what it is told to."""

    def __init__(self, found: Any) -> None:
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


async def test_generate_gives_at_most_three_questions_after_the_answer(
    streaming: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([call_turn(("find", {"topic": "all"})), text_turn("Hel", "lo")])
    fixed = Fixed(["When?", "Where?", "Why?", "How?"])
    told = await streaming.tell(agent_over(generator, tools=[find], suggestion_generator=fixed))
    assert told.kinds[-3:] == ["MessageEnd", "Suggestion", "StreamEnd"]
    assert told.of(Suggestion)[0].suggestions == ["When?", "Where?", "Why?"]
    assert fixed.asked == [(["hi"], "Hello")]


async def test_the_default_asks_the_agents_own_generator(
    streaming: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    def turn(body: dict[str, Any]) -> Any:
        asked = "short questions" in str(body["messages"][0]["content"])
        return text_turn('["When?", ', '"Where?"]') if asked else text_turn("Hello")

    _, generator = await provide(turn)
    told = await streaming.tell(agent_over(generator, suggestion_generator=SuggestionGenerator))
    assert [event.suggestions for event in told.of(Suggestion)] == [["When?", "Where?"]]
    # They are no part of the answer, nor of its cost.
    assert (told.answer, told.usage.total_tokens) == ("Hello", 15)


async def test_questions_that_are_not_there_in_time_are_none(
    streaming: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    assert SuggestionGenerator.limit_s == 5.0
    _, generator = await provide([text_turn("Hello")])
    told = await streaming.tell(agent_over(generator, suggestion_generator=Never()))
    assert (told.answer, told.of(Suggestion)) == ("Hello", [])


@pytest.mark.parametrize("found", [RuntimeError("card 4711"), None, [], [1, " "]], ids=repr)
async def test_failure_means_none(
    streaming: Driver, provide: Provide, agent_over: AgentOver, found: Any
) -> None:
    _, generator = await provide([text_turn("Hello")])
    told = await streaming.tell(agent_over(generator, suggestion_generator=Fixed(found)))
    assert (told.result.status, told.answer) == ("completed", "Hello")
    assert told.of(Suggestion) == []
    assert "4711" not in told.everything


async def test_a_headless_run_asks_for_none(
    headless: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([text_turn("Hello")])
    fixed = Fixed(["When?"])
    told = await headless.tell(agent_over(generator, suggestion_generator=fixed))
    assert (told.answer, fixed.asked) == ("Hello", [])
