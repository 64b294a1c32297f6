"""Every recorded way in which providers stream, on every generator that speaks its API."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    agent_over,
    chunk,
    inputs_of,
    outputs_of,
    tell,
    text_of,
    usage_chunk,
)

from hayrunner.adapters.convert import from_wire
from hayrunner.testing.provider import load_scenarios
from hayrunner_contracts.events import (
    FinishReason,
    ModelCallEnd,
    ReasoningChunk,
    ToolCallStart,
    ToolExecutionCommitted,
)

SCENARIOS = Path(__file__).parents[2] / "scenarios"
CHAT = load_scenarios(SCENARIOS / "openai_chat.json")
RESPONSES = load_scenarios(SCENARIOS / "openai_responses.json")

ONE = ("add", {"a": 1, "b": 2})
TWO = ("add", {"a": 3, "b": 4})
FAILED = ("The tool boom failed (ref ", True)
UNKNOWN = ("This call was not run: there is no tool of that name.", True)
MALFORMED = ("This call was not run: its arguments are not a JSON object.", True)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """`outputs` are beginnings of the outputs and whether they are errors."""

    text: str = "Hello"
    answer: str | None = "Hello"
    calls: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[tuple[str, bool], ...] = ()
    reasoning: str = ""
    finish: FinishReason = "stop"
    code: str | None = None
    requests: int = 1
    tokens: int = 15


def after(*calls: tuple[str, Any], outputs: tuple[tuple[str, bool], ...], **more: Any) -> Expected:
    """A turn of tool calls and a turn of text."""
    return replace(Expected(calls=calls, outputs=outputs, requests=2, tokens=30), **more)


HEL = Expected(text="Hel", answer="Hel")
NOTHING = Expected(text="", answer=None)
BROKEN = replace(HEL, finish="error", code="provider_error", tokens=0)
SUMS = (("3", False), ("7", False))

CHAT_EXPECTED = {
    "text": Expected(),
    "text_tool": after(ONE, outputs=SUMS[:1], text="Let me add.Hello"),
    "parallel": after(ONE, TWO, outputs=SUMS),
    "raises": after(ONE, ("boom", {"x": "y"}), outputs=(SUMS[0], FAILED)),
    "halluc": after(("nosuch", {}), outputs=(UNKNOWN,)),
    "badjson": after(("add", '{"a":1,'), outputs=(MALFORMED,)),
    "badjson_text": after(("add", '{"a":1,'), outputs=(MALFORMED,), text="Calling.Hello"),
    "badjson_mixed": after(("add", '{"a":'), ONE, outputs=(MALFORMED, SUMS[0])),
    "args_list": after(("add", "[1,2]"), outputs=(MALFORMED,)),
    "empty": NOTHING,
    "length": replace(HEL, finish="length"),
    "length_empty": replace(NOTHING, finish="length"),
    "content_filter": replace(HEL, finish="content_filter"),
    "noids": after(ONE, TWO, outputs=SUMS),
    "sameindex": after(ONE, TWO, outputs=SUMS),
    "idrepeat": after(ONE, outputs=SUMS[:1]),
    "three_turns": after(ONE, ONE, outputs=(SUMS[0], SUMS[0]), requests=3, tokens=45),
    "deepseek": Expected(text="Hi", answer="Hi", reasoning="Think hard"),
    "finish_with_last": Expected(),
    "unknown_finish": Expected(text="x", answer="x"),
    "nofinish": replace(HEL, tokens=0),
    "err_midstream": BROKEN,
    "abort_midstream": BROKEN,
}
# Haystack's generator does not read `reasoning_content`: the one difference between the paths.
DIFFERENT = {("openai", "deepseek"): Expected(text="Hi", answer="Hi")}

RESPONSES_EXPECTED = {
    "r_text": Expected(),
    "r_reason_tool": after(ONE, TWO, outputs=SUMS, reasoning="Think hard"),
    "r_incomplete": replace(HEL, finish="length"),
    "r_filter": replace(HEL, finish="content_filter"),
    "r_failed": replace(NOTHING, finish="error", code="provider_error", tokens=0),
    "r_refusal": Expected(text="I cannot", answer="I cannot", finish="content_filter"),
}

CASES = [
    *(("own", name) for name in CHAT),
    *(("openai", name) for name in CHAT),
    *(("responses", name) for name in RESPONSES),
]


def turns_and_expected(kind: str, name: str) -> tuple[list[list[dict[str, Any]]], Expected]:
    if kind == "responses":
        return RESPONSES[name], RESPONSES_EXPECTED[name]
    return CHAT[name], DIFFERENT.get((kind, name), CHAT_EXPECTED[name])


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def boom(x: str) -> str:
    """Always fails."""
    raise ValueError(f"the secret is {x}")


def test_every_recorded_scenario_has_an_expectation() -> None:
    assert set(CHAT) == set(CHAT_EXPECTED)
    assert set(RESPONSES) == set(RESPONSES_EXPECTED)


@pytest.mark.parametrize(("kind", "name"), CASES)
async def test_a_scenario_becomes_a_valid_stream_and_the_expected_outcome(
    kind: str, name: str, provide: Provide
) -> None:
    turns, expected = turns_and_expected(kind, name)
    provider, generator = await provide(turns, kind)

    told = await tell(agent_over(generator, tools=[add, boom]))

    assert told.text == expected.text
    assert told.outcome.answer == expected.answer
    assert inputs_of(told.events) == list(expected.calls)
    outputs = outputs_of(told.events)
    assert [is_error for _, is_error in outputs] == [is_error for _, is_error in expected.outputs]
    for (output, _), (beginning, _) in zip(outputs, expected.outputs, strict=True):
        assert output.startswith(beginning)
    assert "".join(e.content for e in told.of(ReasoningChunk)) == expected.reasoning
    assert told.outcome.finish_reason == expected.finish
    assert told.code == expected.code
    assert told.outcome.usage.total_tokens == expected.tokens
    assert told.outcome.model_calls == len(provider.requests) == expected.requests


@pytest.mark.parametrize(("kind", "name"), CASES)
async def test_a_headless_run_ends_as_the_streaming_one_does(
    kind: str, name: str, provide: Provide
) -> None:
    _, generator = await provide(turns_and_expected(kind, name)[0], kind)
    agent = agent_over(generator, tools=[add, boom])

    streamed = (await tell(agent)).outcome
    headless = (await tell(agent, mode="answer", tools=True)).outcome

    assert headless.answer == streamed.answer
    assert headless.finish_reason == streamed.finish_reason
    assert headless.status == streamed.status
    assert headless.usage == streamed.usage
    assert headless.model_calls == streamed.model_calls
    assert _comparable(headless.messages) == _comparable(streamed.messages)


def _comparable(messages: list[Any]) -> list[tuple[Any, ...]]:
    """Messages without the ids that are minted and the references of failures."""
    plain = [from_wire(message) for message in messages]
    return [
        (
            message.role,
            message.text,
            message.reasoning and message.reasoning.reasoning_text,
            [(call.tool_name, call.arguments, call.extra) for call in message.tool_calls],
            [(r.error, str(r.result).partition("(ref")[0]) for r in message.tool_call_results],
        )
        for message in plain
    ]


@pytest.mark.parametrize(("kind", "name"), CASES)
async def test_only_calls_that_were_run_are_committed(
    kind: str, name: str, provide: Provide
) -> None:
    turns, expected = turns_and_expected(kind, name)
    _, generator = await provide(turns, kind)

    told = await tell(agent_over(generator, tools=[add, boom]))

    committed = [(e.tool_name, e.tool_input) for e in told.of(ToolExecutionCommitted)]
    refused = (UNKNOWN, MALFORMED)
    ran = zip(expected.calls, expected.outputs, strict=True)
    assert committed == [call for call, output in ran if output not in refused]


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_what_goes_back_to_the_provider_answers_every_call(
    kind: str, provide: Provide
) -> None:
    provider, generator = await provide(CHAT["badjson_mixed"], kind)

    told = await tell(agent_over(generator, tools=[add]))

    sent = provider.requests[1].body["messages"]
    calls = [call["id"] for message in sent for call in message.get("tool_calls") or ()]
    answered = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert calls == answered == [start.tool_call_id for start in told.of(ToolCallStart)]


async def test_a_chat_refusal_is_text_where_the_generator_reads_it(provide: Provide) -> None:
    turn = [chunk({"refusal": "I can"}), chunk({"refusal": "not"}), chunk({}, "stop")]
    for kind, text, finish in (("own", "I cannot", "content_filter"), ("openai", "", "stop")):
        # Haystack's generator does not read refusals: there, the reply is an empty one.
        provider, generator = await provide([[*turn, usage_chunk()]], kind)

        told = await tell(agent_over(generator, tools=[add]))

        assert (text_of(told.events), told.outcome.finish_reason) == (text, finish)
        assert len(provider.requests) == 1


async def test_haystacks_generator_is_asked_for_usage_unless_its_author_chose(
    provide: Provide,
) -> None:
    provider, generator = await provide(CHAT["text"], "openai")
    await tell(agent_over(generator))
    assert provider.requests[0].body["stream_options"] == {"include_usage": True}

    chosen = {"stream_options": {"include_usage": False}}
    provider, generator = await provide(CHAT["text"], "openai", generation_kwargs=chosen)
    await tell(agent_over(generator))
    assert provider.requests[0].body["stream_options"] == {"include_usage": False}


async def test_an_id_that_a_provider_repeats_in_a_later_step_is_replaced(provide: Provide) -> None:
    turns = [CHAT["three_turns"][0], CHAT["three_turns"][0], CHAT["text"][0]]
    for kind in ("own", "openai"):
        _, generator = await provide(turns, kind)
        told = await tell(agent_over(generator, tools=[add]))
        ids = [start.tool_call_id for start in told.of(ToolCallStart)]
        assert len(set(ids)) == 2
        assert ids[0] == "call_0"
        assert [end.step for end in told.of(ModelCallEnd)] == [1, 2, 3]
