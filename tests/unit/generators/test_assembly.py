"""Payloads to well-formed chunks and one reply."""

import json
from typing import Any

import pytest
from haystack.components.generators.utils import (
    _convert_streaming_chunks_to_chat_message as joined_by_haystack,  # pyright: ignore[reportPrivateUsage]
)
from haystack.dataclasses import ChatMessage, ComponentInfo, StreamingChunk, ToolCall

from hayrunner.errors import ProviderError
from hayrunner.generators.assembly import ReplyAssembler


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def assembled(*chunks: Any, done: bool = True) -> tuple[ChatMessage, list[StreamingChunk]]:
    assembler = ReplyAssembler()
    given: list[StreamingChunk] = []
    for chunk in chunks:
        given += assembler.feed(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())
    if done:
        assembler.feed(b"[DONE]")
    given += assembler.finish()
    return assembler.reply(), given


def kinds(chunks: list[StreamingChunk]) -> list[str]:
    """What each chunk holds, after checking that it holds one thing."""
    found: list[str] = []
    for chunk in chunks:
        held = {
            "reasoning": bool(chunk.reasoning),
            "text": bool(chunk.content),
            "tool": bool(chunk.tool_calls),
            "finish": bool(chunk.finish_reason),
            "usage": "usage" in chunk.meta,
        }
        assert sum(held.values()) == 1
        found += [kind for kind, holds in held.items() if holds]
    return found


CALL = {"index": 0, "id": "A", "function": {"name": "add", "arguments": '{"a":1}'}}


def test_text_reasoning_and_tool_call_in_one_delta_become_a_chunk_each() -> None:
    reply, chunks = assembled(
        delta(reasoning_content="Hm", content="Let me", tool_calls=[CALL]),
        delta("tool_calls"),
    )
    assert kinds(chunks) == ["reasoning", "text", "tool", "finish"]
    assert (reply.text, reply.tool_calls) == ("Let me", [ToolCall("add", {"a": 1}, "A")])
    assert reply.reasoning is not None
    assert reply.reasoning.reasoning_text == "Hm"


def test_haystacks_own_joiner_makes_the_same_reply_of_the_chunks() -> None:
    second = {"index": 0, "function": {"name": "add", "arguments": '{"a":2}'}}
    reply, chunks = assembled(
        delta(role="assistant", content=""),
        delta(reasoning="Hm"),
        delta(content="Let "),
        delta(content="me", tool_calls=[CALL, second]),
        delta("stop"),
        {"model": "m", "choices": [], "usage": {"total_tokens": 3}},
    )
    joined = joined_by_haystack(chunks)
    assert joined.text == reply.text
    assert joined.tool_calls == reply.tool_calls
    assert joined.reasoning == reply.reasoning
    for key in ("model", "index", "finish_reason", "usage"):
        assert joined.meta[key] == reply.meta[key]


def test_only_the_first_chunk_of_a_block_is_a_start_and_text_is_at_index_zero() -> None:
    _, chunks = assembled(
        delta(content=""),
        delta(content="a"),
        delta(content="b"),
        delta(tool_calls=[CALL]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": " "}}]),
        delta("tool_calls"),
    )
    assert [(chunk.start, chunk.index) for chunk in chunks] == [
        (True, 0),
        (False, 0),
        (True, 0),
        (False, 0),
        (False, None),
    ]


@pytest.mark.parametrize(
    ("sent", "with_call", "finish"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", True, "tool_calls"),
        ("tool_calls", False, "stop"),
        ("function_call", True, "tool_calls"),
        ("eos", False, "stop"),
        ("eos_token", True, "tool_calls"),
        ("length", False, "length"),
        ("length", True, "length"),
        ("content_filter", False, "content_filter"),
    ],
)
def test_the_finish_reason_is_one_of_the_known_ones(
    sent: str, with_call: bool, finish: str
) -> None:
    start = delta(tool_calls=[CALL]) if with_call else delta(content="x")
    reply, chunks = assembled(start, delta(sent), delta(sent))
    assert reply.meta["finish_reason"] == finish
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [finish]


def test_usage_comes_once_and_last_however_often_it_was_sent() -> None:
    nested = {"total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
    reply, chunks = assembled(
        {**delta(content="x"), "usage": {"total_tokens": 1}},
        {**delta("stop"), "usage": nested},
        {"choices": [], "usage": None},
    )
    assert kinds(chunks) == ["text", "finish", "usage"]
    assert chunks[-1].meta["usage"] == reply.meta["usage"] == nested


def test_a_refusal_is_text_that_says_so_and_a_content_filter_finish() -> None:
    reply, chunks = assembled(delta(refusal="I can"), delta(refusal="not"), delta("stop"))
    assert reply.text == "I cannot"
    assert reply.meta["refusal"] is True
    assert reply.meta["finish_reason"] == "content_filter"
    assert chunks[0].meta["refusal"] is True


def test_reasoning_sent_in_both_fields_is_taken_once() -> None:
    reply, _ = assembled(delta(reasoning="Hm", reasoning_content="Hm"), delta("stop"))
    assert reply.reasoning is not None
    assert reply.reasoning.reasoning_text == "Hm"


def test_content_as_typed_parts_is_text_and_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    reply, chunks = assembled(
        delta(content=[thinking, {"type": "text", "text": "Hi"}, {"type": "other"}, 5]),
        delta("stop"),
    )
    assert kinds(chunks) == ["reasoning", "text", "finish"]
    assert reply.text == "Hi"


def test_nulls_and_unknown_fields_everywhere_are_read_over() -> None:
    empty: Any = {
        "content": None,
        "tool_calls": None,
        "reasoning": None,
        "refusal": None,
        "new": {},
    }
    reply, chunks = assembled(
        {"id": None, "model": None, "choices": None, "usage": None, "error": None},
        {"choices": [{"index": None, "delta": None, "finish_reason": None, "logprobs": None}]},
        delta(**empty),
        delta("", content="x"),
        delta("stop"),
    )
    assert reply.text == "x"
    assert kinds(chunks) == ["text", "finish"]


def test_log_probabilities_are_collected_as_haystack_does() -> None:
    choice = {"index": 0, "delta": {"content": "x"}, "logprobs": {"content": []}}
    reply, _ = assembled({"choices": [choice]}, delta("stop"))
    assert reply.meta["logprobs"] == [{"content": []}]


def test_an_empty_reply_has_neither_text_nor_calls() -> None:
    reply, chunks = assembled(delta(role="assistant", content=""), delta("stop"))
    assert (reply.text, reply.tool_calls) == (None, [])
    assert kinds(chunks) == ["finish"]


def test_a_stream_that_is_done_without_a_finish_reason_stopped() -> None:
    assert assembled(delta(content="x"))[0].meta["finish_reason"] == "stop"


def test_a_finish_reason_without_a_done_is_a_whole_reply() -> None:
    reply, _ = assembled(delta(content="x"), delta("stop"), done=False)
    assert reply.text == "x"


def test_a_stream_that_ends_with_neither_is_an_error() -> None:
    with pytest.raises(ProviderError) as caught:
        assembled(delta(content="x"), done=False)
    assert caught.value.retryable


def test_an_error_event_keeps_its_tokens_and_none_of_its_prose() -> None:
    with pytest.raises(ProviderError) as caught:
        assembled({"error": {"message": "secret prose", "type": "server_error", "code": "a b"}})
    assert "server_error" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "a b" not in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "retryable"), [(b'{"choices": [{"secret', True), (b'{"choices": "secret"}', False)]
)
def test_a_payload_that_is_no_chunk_is_an_error_without_its_content(
    payload: bytes, retryable: bool
) -> None:
    with pytest.raises(ProviderError) as caught:
        assembled(payload)
    assert caught.value.retryable is retryable
    assert "secret" not in str(caught.value)


def test_a_whole_answer_gives_the_same_chunks_as_a_stream() -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": [CALL, {**CALL, "id": None}]}
    body = {
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"total_tokens": 3},
    }
    assembler = ReplyAssembler()
    chunks = assembler.feed_whole(json.dumps(body).encode()) + assembler.finish()
    assert kinds(chunks) == ["text", "tool", "tool", "finish", "usage"]
    reply = assembler.reply()
    assert [call.arguments for call in reply.tool_calls] == [{"a": 1}, {"a": 1}]
    assert reply.meta["finish_reason"] == "tool_calls"


def test_a_whole_answer_without_a_reply_is_an_error() -> None:
    with pytest.raises(ProviderError):
        ReplyAssembler().feed_whole(b'{"detail": "nothing here"}')


def test_a_text_chunk_is_what_haystacks_constructor_would_have_made() -> None:
    info = ComponentInfo(type="generator", name="llm")
    assembler = ReplyAssembler(info)
    first, second = (
        assembler.feed(json.dumps(delta(content=text)).encode())[0] for text in ("a", "b")
    )

    for chunk, text, start in ((first, "a", True), (second, "b", False)):
        made = StreamingChunk(text, chunk.meta, info, index=0, start=start)
        assert chunk == made
        assert vars(chunk) == vars(made)
    assert StreamingChunk.from_dict(second.to_dict()) == second
