"""Sources that tools find, and how the answer cites them."""

from collections.abc import Sequence
from typing import Any

import pytest
from haystack.dataclasses import Document
from haystack.tools import Tool
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import Told, agent_over, call_turn, outputs_of, tell, text_turn

from hayrunner import CitationRegistry, Stream
from hayrunner.adapters.citations import CitedDocument, documents_in, numbered_blocks
from hayrunner.agent import Agent
from hayrunner.hooks import HookRun, RewriteResult, RunHooks, ToolResult
from hayrunner_contracts.events import Source, StreamEvent, TextChunk, ToolOutput

SHIPPING = Document(
    id="d1", content="Orders ship on Mondays.", meta={"title": "Shipping", "url": "https://x/s"}
)
RETURNS = Document(id="d2", content="Thirty days.", meta={"name": "Returns"})
SECRET = Document(id="d3", content="card 4711", meta={"title": "Secret"})


def find(topic: str) -> list[Document]:
    """Finds documents."""
    return {"shipping": [SHIPPING], "all": [RETURNS, SHIPPING], "secret": [SECRET]}[topic]


async def search(topic: str) -> dict[str, Any]:
    """Searches."""
    return {"documents": [SHIPPING], "took_ms": 5}


def tagged(*pieces: str) -> list[list[dict[str, Any]]]:
    return [call_turn(("find", {"topic": "all"})), text_turn(*pieces)]


async def test_documents_are_numbered_for_the_model_and_told_once_as_sources(
    provide: Provide,
) -> None:
    turns = [
        call_turn(("find", {"topic": "shipping"})),
        call_turn(("find", {"topic": "all"})),
        text_turn("On Mondays [1]."),
    ]
    provider, generator = await provide(turns)

    told = await tell(agent_over(generator, tools=[find]))

    assert [output for output, _ in outputs_of(told.events)] == [
        "[1] Shipping\nhttps://x/s\nOrders ship on Mondays.",
        "[2] Returns\nThirty days.\n\n[1] Shipping\nhttps://x/s\nOrders ship on Mondays.",
    ]
    sent = provider.requests[2].body["messages"]
    assert [m["content"] for m in sent if m["role"] == "tool"] == [
        output for output, _ in outputs_of(told.events)
    ]
    first, second = told.of(Source)
    assert (first.index, first.title, first.content) == (1, "Shipping", "Orders ship on Mondays.")
    assert (first.source_id, first.url, first.step) == ("d1", "https://x/s", 1)
    assert (second.index, second.title, second.step) == (2, "Returns", 2)
    # Each right after the output of the call that found it.
    for source in (first, second):
        before = told.events[told.events.index(source) - 1]
        assert isinstance(before, ToolOutput)
        assert before.tool_call_id == source.tool_call_id


async def test_what_a_dict_says_beside_its_documents_is_shown_too(provide: Provide) -> None:
    _, generator = await provide([call_turn(("search", {"topic": "x"})), text_turn("ok")])
    told = await tell(agent_over(generator, tools=[search]))
    assert outputs_of(told.events) == [
        ('[1] Shipping\nhttps://x/s\nOrders ship on Mondays.\n\n{"took_ms":5}', False)
    ]
    assert len(told.of(Source)) == 1


async def test_a_tag_that_is_split_across_chunks_arrives_whole(provide: Provide) -> None:
    _, generator = await provide(tagged("Soon [", "2", "]", " or [", "1", "7", "] a[", "x] [1"))

    told = await tell(agent_over(generator, tools=[find]))

    assert [event.content for event in told.of(TextChunk)] == [
        "Soon ", "[2]", " or ", "[17] a", "[x] ", "[1",
    ]  # fmt: skip
    # A number that no source has is left alone; what was streamed is what is stored.
    assert told.text == told.outcome.answer == "Soon [2] or [17] a[x] [1"
    assert told.outcome.messages[-1].text == told.text


async def test_text_is_not_held_back_where_there_is_nothing_to_cite(provide: Provide) -> None:
    _, generator = await provide([text_turn("a[", "1", "]")])
    told = await tell(agent_over(generator, tools=[find]))
    assert [event.content for event in told.of(TextChunk)] == ["a[", "1", "]"]


async def test_what_was_held_back_is_streamed_when_the_run_breaks_off(provide: Provide) -> None:
    broken = [*text_turn("See [1")[:1], {"$abort": True}]
    _, generator = await provide([call_turn(("find", {"topic": "all"})), broken])
    told = await tell(agent_over(generator, tools=[find]))
    assert told.outcome.status == "failed"
    assert told.text == "See [1"
    assert told.outcome.messages[-1].text == "See [1"


def brief(documents: Sequence[CitedDocument]) -> str:
    return "; ".join(f"{document.index}={document.meta['title']}" for document in documents)


class Own(Agent):
    def citation_formatter(self, documents: Sequence[CitedDocument]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"{self.name}: {brief(documents)}"


@pytest.mark.parametrize("kind", ["function", "method"])
async def test_an_agents_own_formatter_decides_what_the_model_sees(
    provide: Provide, kind: str
) -> None:
    _, generator = await provide([call_turn(("find", {"topic": "shipping"})), text_turn("ok")])
    if kind == "function":
        agent, expected = (
            agent_over(generator, tools=[find], citation_formatter=brief),
            "1=Shipping",
        )
    else:

        class Formatting(Own):
            name = "support"
            tools = (find,)

            def get_llm(self) -> Any:
                return generator

        agent, expected = Formatting(), "support: 1=Shipping"
    told = await tell(agent)
    assert outputs_of(told.events) == [(expected, False)]


async def test_a_formatter_that_raises_fails_the_call_and_tells_nobody_why(
    provide: Provide,
) -> None:
    def broken(documents: Sequence[CitedDocument]) -> str:
        raise ValueError("card 4711")

    _, generator = await provide([call_turn(("find", {"topic": "all"})), text_turn("ok")])
    told = await tell(agent_over(generator, tools=[find], citation_formatter=broken))
    ((output, is_error),) = outputs_of(told.events)
    assert is_error
    assert "4711" not in output
    assert told.of(Source) == []


async def test_a_tool_that_makes_its_own_text_keeps_it_and_its_documents_are_sources(
    provide: Provide,
) -> None:
    tool = Tool(
        name="find",
        description="Finds.",
        parameters={"type": "object", "properties": {"topic": {"type": "string"}}},
        function=find,
        outputs_to_string={"handler": lambda documents: f"{len(documents)} found"},
    )
    _, generator = await provide([call_turn(("find", {"topic": "all"})), text_turn("ok")])
    told = await tell(agent_over(generator, tools=[tool]))
    assert outputs_of(told.events) == [("2 found", False)]
    assert [source.index for source in told.of(Source)] == [1, 2]


class Redacting(RunHooks):
    async def on_tool_result(self, run: HookRun, result: ToolResult) -> RewriteResult | None:
        return RewriteResult(output="[redacted]") if "4711" in str(result.output) else None


async def test_what_a_hook_takes_out_of_a_result_is_no_source_either(provide: Provide) -> None:
    turns = [call_turn(("find", {"topic": "secret"}), ("find", {"topic": "all"})), text_turn("ok")]
    _, generator = await provide(turns)
    told = await tell(agent_over(generator, tools=[find], hooks=[Redacting()]))
    assert [source.title for source in told.of(Source)] == ["Returns", "Shipping"]


async def test_numbers_begin_anew_in_every_run_and_headless_runs_have_them_too(
    provide: Provide,
) -> None:
    _, generator = await provide(tagged("On Mondays [2]."))
    agent = agent_over(generator, tools=[find])
    for mode in ("stream", "answer"):
        told = await tell(agent, mode=mode, tools=True)
        assert told.outcome.answer == "On Mondays [2]."
        (tool_message,) = (m for m in told.outcome.messages if m.role == "tool")
        assert "[2] Shipping" in str(tool_message.content)


async def test_a_registry_of_the_authors_own_is_used(provide: Provide) -> None:
    _, generator = await provide(tagged("ok"))
    mine = CitationRegistry()
    mine.register([SECRET])

    class Numbering(Agent):
        name = "support"
        tools = (find,)

        def get_llm(self) -> Any:
            return generator

        def get_citation_registry(self) -> CitationRegistry:
            return mine

    told: Told = await tell(Numbering())
    assert [source.index for source in told.of(Source)] == [2, 3]
    assert [source.title for source in mine.sources] == ["Secret", "Returns", "Shipping"]


async def test_a_stream_adapter_takes_a_registry(provide: Provide) -> None:
    _, generator = await provide(tagged("ok"))
    mine = CitationRegistry()
    agent = agent_over(generator)
    stream = Stream(
        agent.loop,
        citation_registry=mine,
        tools=agent_over(None, tools=[find]).run_tools(None, None),
    )
    events: list[StreamEvent] = [event async for event in stream.stream("hi")]
    assert sum(isinstance(event, Source) for event in events) == len(mine) == 2


def test_one_id_or_one_url_is_one_source() -> None:
    registry = CitationRegistry()
    again = Document(id="d9", content="Another part.", meta={"url": "https://x/s"})
    moved = Document(id="d9", content="Elsewhere.", meta={"url": "https://x/t"})
    numbers = [d.index for d in registry.register([SHIPPING, RETURNS, again, moved, RETURNS])]
    assert numbers == [1, 2, 1, 1, 2]
    assert [source.source_id for source in registry.sources] == ["d1", "d2"]


def test_only_whole_lists_of_documents_are_sources() -> None:
    assert documents_in([SHIPPING, "text"]) == []
    assert documents_in([]) == []
    assert documents_in({"documents": []}) == []
    assert documents_in({"answer": [SHIPPING]}) == []
    assert documents_in((SHIPPING,)) == [SHIPPING]


def test_a_block_has_what_there_is() -> None:
    bare = CitedDocument(index=1, source_id="d1")
    linked = CitedDocument(index=2, url="https://x/s", content="Text.")
    assert numbered_blocks([bare, linked]) == "[1] d1\n\n[2] https://x/s\nText."


async def test_a_long_document_is_whole_for_the_model_and_cut_for_the_consumer(
    provide: Provide,
) -> None:
    def read() -> list[Document]:
        """Reads."""
        return [Document(content="x" * 50_000)]

    _, generator = await provide([call_turn(("read", {})), text_turn("ok")])
    told = await tell(agent_over(generator, tools=[read]))
    ((output, _),) = outputs_of(told.events)
    (source,) = told.of(Source)
    assert len(output) > 50_000
    assert source.content is not None
    assert len(source.content) == 10_001
    assert source.content.endswith("…")
