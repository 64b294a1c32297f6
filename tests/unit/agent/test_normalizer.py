"""The chunk normalizer: whatever providers stream, events are whole and nothing is lost."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall, ToolCallDelta
from haystack.dataclasses.chat_message import ReasoningContent
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.agent.runs import inputs_of

from hayrunner.adapters.normalize import ChunkNormalizer, parse_arguments
from hayrunner.errors import ProviderError
from hayrunner.token_counts import usage_from
from hayrunner_contracts.events import (
    MessageEnd,
    MessageStart,
    ModelCallEnd,
    StreamEnd,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolInputChunk,
    ToolInputComplete,
    Usage,
)
from hayrunner_contracts.testing import assert_valid_stream, numbered


def deltas(*parts: ToolCallDelta) -> StreamingChunk:
    return StreamingChunk("", index=0, tool_calls=list(parts))


def normalize(
    chunks: Sequence[StreamingChunk], reply: ChatMessage | None = None
) -> tuple[ChatMessage, list[StreamEvent]]:
    """One step, framed and held to the rules."""
    normalizer = ChunkNormalizer()
    normalizer.begin_step()
    events = [event for chunk in chunks for event in normalizer.feed(chunk)]
    message, closing = normalizer.close_step(reply)
    events += [*closing, *normalizer.close_open_calls("not run")]
    start = MessageStart(message_id="m", agent="a")
    assert_valid_stream(numbered([start, *events, MessageEnd(finish_reason="stop"), StreamEnd()]))
    return message, events


@dataclass(frozen=True)
class Call:
    name: str
    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
objects = st.dictionaries(st.text(min_size=1, max_size=4), values, min_size=1, max_size=3)


@st.composite
def some_calls(draw: st.DrawFn, most_pieces: int = 4) -> Call:
    text = json.dumps(draw(objects))
    cuts = draw(st.lists(st.integers(1, max(1, len(text) - 1)), max_size=most_pieces - 1))
    edges = [0, *sorted(set(cuts)), len(text)]
    pieces = tuple(text[a:b] for a, b in pairwise(edges) if a < b)
    return Call(draw(st.sampled_from(["add", "find"])), pieces)


def stream_of(
    calls: Sequence[Call], order: Sequence[int], *, shared: bool, ids: str, names: str
) -> list[StreamingChunk]:
    """The calls as a provider of some habits sends them: `order` is which call has its next
    piece sent, `ids` and `names` in which deltas they stand."""
    sent = [0] * len(calls)
    chunks: list[StreamingChunk] = []
    for number in order:
        call, first = calls[number], sent[number] == 0
        if ids == "none":
            call_id = None
        elif first or ids == "every":
            call_id = f"call_{number}"
        else:
            call_id = "" if ids == "then empty" else None
        name = call.name if first or names == "every" else None
        arguments = call.pieces[sent[number]]
        sent[number] += 1
        index = 0 if shared else number
        chunks.append(deltas(ToolCallDelta(index, name, arguments, call_id)))
    return chunks


def in_turn(calls: Sequence[Call]) -> list[int]:
    return [number for number, call in enumerate(calls) for _ in call.pieces]


def check(calls: Sequence[Call], chunks: Sequence[StreamingChunk], order: Sequence[int]) -> None:
    opened = list(dict.fromkeys(order))
    message, events = normalize(chunks)
    expected = [(calls[n].name, json.loads(calls[n].text)) for n in opened]
    assert inputs_of(events) == expected
    assert [(call.tool_name, call.arguments) for call in message.tool_calls] == expected
    for start, number in zip(
        [e for e in events if isinstance(e, ToolCallStart)], opened, strict=True
    ):
        pieces = [
            event.input_chunk
            for event in events
            if isinstance(event, ToolInputChunk) and event.tool_call_id == start.tool_call_id
        ]
        assert "".join(pieces) == calls[number].text
    assert len({call.id for call in message.tool_calls}) == len(calls)


call_lists = st.lists(some_calls(), min_size=1, max_size=3)


@given(calls=call_lists, data=st.data(), names=st.sampled_from(["first", "every"]))
def test_interleaved_calls_are_kept_apart_by_their_index(
    calls: list[Call], data: st.DataObject, names: str
) -> None:
    order = data.draw(st.permutations(in_turn(calls)))
    # Without any id, a name that comes again may begin a call: no such server is known to mix.
    habits = ["first", "every", "then empty", *(["none"] if names == "first" else [])]
    ids = data.draw(st.sampled_from(habits))
    check(calls, stream_of(calls, order, shared=False, ids=ids, names=names), order)


@given(calls=call_lists, ids=st.sampled_from(["first", "every", "then empty"]))
def test_calls_that_share_an_index_are_kept_apart_by_their_ids(calls: list[Call], ids: str) -> None:
    order = in_turn(calls)
    check(calls, stream_of(calls, order, shared=True, ids=ids, names="first"), order)


@given(calls=call_lists, data=st.data())
def test_calls_that_share_an_index_may_alternate_if_every_delta_has_its_id(
    calls: list[Call], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(in_turn(calls)))
    check(calls, stream_of(calls, order, shared=True, ids="every", names="first"), order)


@given(calls=st.lists(some_calls(most_pieces=1), min_size=1, max_size=3))
def test_calls_that_share_an_index_without_ids_are_kept_apart_when_whole(calls: list[Call]) -> None:
    order = in_turn(calls)
    check(calls, stream_of(calls, order, shared=True, ids="none", names="first"), order)


wild_deltas = st.builds(
    lambda index, call_id, name, arguments: ToolCallDelta(index, name, arguments, call_id),
    st.integers(0, 2),
    st.sampled_from([None, "", "a", "b"]),
    st.sampled_from([None, "", "add", "find"]),
    st.sampled_from([None, "", "{", "}", '{"a": 1}', ' "b": ', "null", "[1]", "ä", " "]),
).filter(lambda delta: delta.tool_name or delta.arguments)
wild_chunks = st.one_of(
    st.lists(wild_deltas, min_size=1, max_size=3).map(lambda parts: deltas(*parts)),
    st.sampled_from(["text", " "]).map(StreamingChunk),
    st.just(StreamingChunk("", index=0, reasoning=ReasoningContent("hm"))),
    st.just(StreamingChunk("")),
)


def shape(events: Sequence[StreamEvent]) -> list[Any]:
    """Events with the ids that may be minted replaced by their order."""
    ids: dict[str, int] = {}
    told: list[Any] = []
    for event in events:
        call_id = getattr(event, "tool_call_id", None)
        number = None if call_id is None else ids.setdefault(call_id, len(ids))
        text = getattr(event, "content", getattr(event, "input_chunk", None))
        told.append((type(event).__name__, number, text))
    return told


@given(chunks=st.lists(wild_chunks, max_size=12))
def test_no_stream_however_wild_breaks_the_rules_or_loses_a_character(
    chunks: list[StreamingChunk],
) -> None:
    message, events = normalize(chunks)

    sent = [d.arguments or "" for chunk in chunks for d in chunk.tool_calls or ()]
    inputs = [event.tool_input for event in events if isinstance(event, ToolInputComplete)]
    assert len(message.tool_calls) == len(inputs)
    named = [d for chunk in chunks for d in chunk.tool_calls or ()]
    if all(delta.tool_name for delta in named):
        shown = [event.input_chunk for event in events if isinstance(event, ToolInputChunk)]
        assert sorted("".join(shown)) == sorted("".join(sent))
    text = "".join(event.content for event in events if isinstance(event, TextChunk))
    assert text == "".join(chunk.content for chunk in chunks) == (message.text or "")
    assert isinstance(events[-1], ModelCallEnd) or inputs
    # Pure: the same chunks give the same events.
    assert shape(normalize(chunks)[1]) == shape(events)


@given(calls=call_lists, data=st.data())
def test_a_reply_that_lost_calls_is_put_right_from_the_chunks(
    calls: list[Call], data: st.DataObject
) -> None:
    chunks = stream_of(calls, in_turn(calls), shared=False, ids="first", names="first")
    kept = data.draw(st.lists(st.sampled_from(range(len(calls))), unique=True))
    reply = ChatMessage.from_assistant(
        tool_calls=[
            ToolCall(calls[n].name, json.loads(calls[n].text), id=f"call_{n}", extra={"n": n})
            for n in kept
        ]
    )

    message, _ = normalize(chunks, reply)

    assert [call.arguments for call in message.tool_calls] == [json.loads(c.text) for c in calls]
    for number, call in enumerate(message.tool_calls):
        # What the provider attached to a call is kept with it, and with no other.
        assert call.extra == ({"n": number} if number in kept else None)


def test_ids_are_unique_over_the_steps_of_a_run_and_its_history() -> None:
    normalizer = ChunkNormalizer()
    ids: list[str | None] = []
    for _ in range(3):
        normalizer.begin_step(iter(["old"]))
        for call_id in ("same", "old"):
            normalizer.feed(deltas(ToolCallDelta(0, "add", "{}", call_id)))
        ids += [call.id for call in normalizer.close_step(None)[0].tool_calls]
    assert ids[0] == "same"
    assert len(set(ids)) == 6
    assert "old" not in ids


def test_text_that_was_not_streamed_is_one_chunk() -> None:
    message, events = normalize([], ChatMessage.from_assistant("Hello"))
    assert [event.content for event in events if isinstance(event, TextChunk)] == ["Hello"]
    assert message.text == "Hello"


def test_a_failure_that_a_chunk_tells_of_is_raised_and_the_text_kept() -> None:
    normalizer = ChunkNormalizer()
    normalizer.begin_step()
    normalizer.feed(StreamingChunk("Hel"))
    normalizer.feed(StreamingChunk("", meta={"type": "response.failed"}))
    with pytest.raises(ProviderError):
        normalizer.close_step(ChatMessage.from_assistant("Hel"))
    assert (normalizer.open, normalizer.partial_text) == (True, "Hel")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", ({}, None)),
        (" \n", ({}, None)),
        ("null", ({}, None)),
        ('{"a": 1}', ({"a": 1}, None)),
        ("[1]", ({}, "[1]")),
        ('{"a":', ({}, '{"a":')),
        ("5", ({}, "5")),
        ("\ud800", ({}, "\ud800")),
        ("[" * 100_000, ({}, "[" * 100_000)),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_arguments_are_an_object_or_kept_as_they_are(text: str, parsed: Any) -> None:
    assert parse_arguments(text) == parsed


@pytest.mark.parametrize(
    "usage",
    [
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        {
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens_details": {"reasoning_tokens": 2},
        },
    ],
)
def test_both_spellings_of_usage_are_read(usage: dict[str, Any]) -> None:
    assert usage_from(usage) == Usage(
        input_tokens=10,
        output_tokens=5,
        total_tokens=15,
        cached_input_tokens=3,
        reasoning_tokens=2,
    )


def test_usage_that_makes_no_sense_counts_as_none() -> None:
    assert usage_from({"input_tokens": "many", "prompt_tokens_details": 5}) == Usage()
