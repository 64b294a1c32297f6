"""Haystack's integrations for Anthropic and Ollama in the loop: the real generators against
scripted servers of their protocols."""

from typing import Any

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import ANTHROPIC, SPOKEN
from tests.unit.agent.runs import agent_over, inputs_of, outputs_of, tell

from hayrunner.hooks import HookRun, ModelCall, Patch, RunHooks
from hayrunner_contracts.events import (
    ModelCallEnd,
    ReasoningChunk,
    TextChunk,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputChunk,
)
from hayrunner_contracts.options import NamedTool

KINDS = ("anthropic", "ollama")


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def ping() -> str:
    """Answers."""
    return "pong"


@pytest.mark.parametrize("kind", KINDS)
async def test_text_streams_as_it_comes(provide: Provide, kind: str) -> None:
    _, generator = await provide([SPOKEN[kind].text("Hel", "lo")], kind)

    told = await tell(agent_over(generator, tools=[add]))

    assert [event.content for event in told.of(TextChunk)] == ["Hel", "lo"]
    assert (told.outcome.answer, told.outcome.finish_reason) == ("Hello", "stop")
    assert told.outcome.usage.input_tokens == 10
    assert told.outcome.usage.output_tokens == 5
    [end] = told.of(ModelCallEnd)
    assert (end.model, end.finish_reason) == (f"fake-{kind[0]}", "stop")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_is_called_and_its_result_goes_back(provide: Provide, kind: str) -> None:
    spoken = SPOKEN[kind]
    turns = [spoken.calls(("add", {"a": 1, "b": 2}), text="Let me add."), spoken.text("It is 3.")]
    provider, generator = await provide(turns, kind)

    told = await tell(agent_over(generator, tools=[add]))

    assert told.text == "Let me add.It is 3."
    assert inputs_of(told.events) == [("add", {"a": 1, "b": 2})]
    assert outputs_of(told.events) == [("3", False)]
    assert [e.tool_input for e in told.of(ToolExecutionCommitted)] == [{"a": 1, "b": 2}]
    assert [end.finish_reason for end in told.of(ModelCallEnd)] == ["tool_calls", "stop"]
    assert told.outcome.usage.total_tokens == 30
    assert told.roles == ["assistant", "tool", "assistant"]
    assert spoken.tools(provider.requests[0].body) == ["add"]
    assert len(provider.requests) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_parallel_calls_keep_their_order_and_have_ids(provide: Provide, kind: str) -> None:
    spoken = SPOKEN[kind]
    calls = [("ping", {}), ("add", {"a": 1, "b": 2}), ("ping", {}), ("add", {"a": 1, "b": 2})]
    _, generator = await provide([spoken.calls(*calls), spoken.text("Done.")], kind)

    told = await tell(agent_over(generator, tools=[add, ping]), options={"tool_concurrency": 4})

    assert inputs_of(told.events) == calls
    assert [output for output, _ in outputs_of(told.events)] == ["pong", "3", "pong", "3"]
    ids = [start.tool_call_id for start in told.of(ToolCallStart)]
    assert len(set(ids)) == 4
    assert told.outcome.model_calls == 2
    assert told.outcome.usage.total_tokens == 30


@pytest.mark.parametrize("kind", KINDS)
async def test_ids_stay_unique_over_steps_and_go_back_as_they_were_told(
    provide: Provide, kind: str
) -> None:
    spoken = SPOKEN[kind]
    turn = spoken.calls(("add", {"a": 1, "b": 2}))
    provider, generator = await provide([turn, turn, spoken.text("3")], kind)

    told = await tell(agent_over(generator, tools=[add]))

    ids = [start.tool_call_id for start in told.of(ToolCallStart)]
    assert len(set(ids)) == 2
    if kind == "anthropic":
        messages = provider.requests[2].body["messages"]
        blocks = [block for message in messages for block in message["content"]]
        assert [block["id"] for block in blocks if block["type"] == "tool_use"] == ids
        results = [block for block in blocks if block["type"] == "tool_result"]
        assert [block["tool_use_id"] for block in results] == ids


async def test_arguments_stream_in_pieces_where_the_provider_sends_them_so(
    provide: Provide,
) -> None:
    turn = ANTHROPIC.raw_calls(("add", ['{"a"', ": 1, ", '"b": 2}']))
    _, generator = await provide([turn, ANTHROPIC.text("3")], "anthropic")
    told = await tell(agent_over(generator, tools=[add]))
    assert [e.input_chunk for e in told.of(ToolInputChunk)] == ['{"a"', ": 1, ", '"b": 2}']


@pytest.mark.parametrize("raw", ['{"a":1,', "[1, 2]"])
async def test_arguments_that_are_no_object_are_fed_back(provide: Provide, raw: str) -> None:
    turns = [ANTHROPIC.raw_calls(("add", [raw])), ANTHROPIC.text("Sorry.")]
    _, generator = await provide(turns, "anthropic")

    told = await tell(agent_over(generator, tools=[add]))

    assert inputs_of(told.events) == [("add", raw)]
    [(output, is_error)] = outputs_of(told.events)
    assert is_error
    assert "not a JSON object" in output
    assert (told.outcome.answer, told.outcome.usage.total_tokens) == ("Sorry.", 30)


async def test_thinking_is_reasoning_and_its_signature_goes_back(provide: Provide) -> None:
    def block(index: int, *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        start = {"type": "thinking", "thinking": "", "signature": ""}
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": d} for d in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    thought = {"type": "thinking_delta", "thinking": "Add them."}
    signature = {"type": "signature_delta", "signature": "sig"}
    turn = ANTHROPIC.calls(("add", {"a": 1, "b": 2}))
    turn[2:2] = block(7, thought, signature)
    provider, generator = await provide([turn, ANTHROPIC.text("3")], "anthropic")

    told = await tell(agent_over(generator, tools=[add]))

    assert [event.content for event in told.of(ReasoningChunk)] == ["Add them."]
    sent = provider.requests[1].body["messages"][1]["content"]
    assert sent[0] == {"type": "thinking", "thinking": "Add them.", "signature": "sig"}


async def test_cached_input_counts_as_input(provide: Provide) -> None:
    turn = ANTHROPIC.text("Hello")
    turn[0]["message"]["usage"] |= {"cache_read_input_tokens": 90}
    _, generator = await provide([turn], "anthropic")
    usage = (await tell(agent_over(generator))).outcome.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.total_tokens) == (100, 90, 105)


@pytest.mark.parametrize(
    ("kind", "finish"),
    [("anthropic", "length"), ("anthropic", "content_filter"), ("ollama", "length")],
)
async def test_a_reply_that_was_cut_says_why(provide: Provide, kind: str, finish: str) -> None:
    _, generator = await provide([SPOKEN[kind].text("Hel", finish=finish)], kind)
    told = await tell(agent_over(generator))
    assert (told.outcome.answer, told.outcome.finish_reason) == ("Hel", finish)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "provider_error", False),
        (429, "provider_rate_limited", True),
        (529, "provider_error", True),
    ],
)
async def test_an_http_error_ends_the_run_without_its_text(
    provide: Provide, kind: str, status: int, code: str, retryable: bool
) -> None:
    body = {"type": "error", "error": {"type": "some_error", "message": "secret"}}
    _, generator = await provide([[{"$status": status, "body": body}]], kind)

    told = await tell(agent_over(generator))

    failure = told.outcome.error
    assert failure is not None
    assert (failure.code, failure.retryable) == (code, retryable)
    assert str(status) in failure.message
    assert "secret" not in failure.message


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("anthropic", {"type": "error", "error": {"type": "overloaded_error"}}, "provider_error"),
    (
        "anthropic",
        {"type": "error", "error": {"type": "rate_limit_error"}},
        "provider_rate_limited",
    ),
    ("anthropic", {"$abort": True}, "provider_error"),
    ("ollama", {"error": "secret"}, "provider_error"),
    ("ollama", {"$abort": True}, "provider_error"),
]


@pytest.mark.parametrize(("kind", "broken", "code"), BROKEN)
async def test_a_stream_that_breaks_off_is_a_provider_error_with_what_there_was(
    provide: Provide, kind: str, broken: dict[str, Any], code: str
) -> None:
    turn = [*SPOKEN[kind].text("Hel", "lo")[:-2], broken]
    _, generator = await provide([turn], kind)

    told = await tell(agent_over(generator, tools=[add]))

    failure = told.outcome.error
    assert failure is not None
    assert (failure.code, failure.retryable, told.outcome.finish_reason) == (code, True, "error")
    assert "secret" not in failure.message
    assert told.text.startswith("Hel")


async def test_a_server_that_is_not_there_is_a_provider_error(provide: Provide) -> None:
    for kind in KINDS:
        provider, generator = await provide([[]], kind)
        await provider.__aexit__(None, None, None)
        told = await tell(agent_over(generator))
        assert told.code == "provider_error"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_headless_run_ends_as_the_streaming_one_does(provide: Provide, kind: str) -> None:
    spoken = SPOKEN[kind]
    turns = [spoken.calls(("add", {"a": 1, "b": 2})), spoken.text("It is 3.")]
    _, generator = await provide(turns, kind)
    agent = agent_over(generator, tools=[add])

    streamed = (await tell(agent)).outcome
    headless = (await tell(agent, mode="answer", tools=True)).outcome

    assert headless.answer == streamed.answer == "It is 3."
    assert headless.usage == streamed.usage
    assert [m.role for m in headless.messages] == [m.role for m in streamed.messages]


CHOICES: list[tuple[Any, dict[str, Any]]] = [
    ("auto", {"type": "auto"}),
    ("required", {"type": "any"}),
    ("none", {"type": "none"}),
    (NamedTool(name="add"), {"type": "tool", "name": "add"}),
]


@pytest.mark.parametrize(("choice", "on_the_wire"), CHOICES, ids=repr)
async def test_each_tool_choice_is_spelled_as_anthropic_has_it(
    provide: Provide, choice: Any, on_the_wire: dict[str, Any]
) -> None:
    provider, generator = await provide([ANTHROPIC.text("Hello")], "anthropic")
    await tell(agent_over(generator, tools=[add]), options={"tool_choice": choice})
    assert provider.requests[0].body["tool_choice"] == on_the_wire


@pytest.mark.parametrize("choice", ["auto", "required", "none", NamedTool(name="add")], ids=repr)
async def test_ollama_has_no_tool_choice_and_a_run_that_wants_one_is_refused(
    provide: Provide, choice: Any
) -> None:
    provider, generator = await provide([SPOKEN["ollama"].text("Hello")], "ollama")
    told = await tell(agent_over(generator, tools=[add]), options={"tool_choice": choice})
    assert (told.code, provider.requests) == ("invalid_request", [])
    assert told.outcome.error is not None
    assert told.outcome.error.field == "options.tool_choice"


async def test_parameters_are_anthropics(provide: Provide) -> None:
    own = {"service_tier": "auto", "max_tokens": 100}
    turns = [ANTHROPIC.text("Hello")]
    provider, generator = await provide(turns, "anthropic", generation_kwargs=own)
    agent = agent_over(generator)

    merged: dict[str, Any] = {"stop_sequences": ["x"], "thinking_budget_tokens": 9}
    await tell(agent, options={"max_tokens": 7, "merge_params": merged})
    await tell(agent, options={"replace_params": None})

    sent = provider.requests[0].body
    assert (sent["service_tier"], sent["max_tokens"]) == ("auto", 7)
    assert sent["stop_sequences"] == ["x"]
    assert sent["thinking"] == {"budget_tokens": 9, "type": "enabled"}
    assert "service_tier" not in provider.requests[1].body
    assert generator.generation_kwargs == own


# The generator would leave out the first with a warning. At the others the installed version of
# Anthropic's client would fail, which takes no temperature.
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"merge_params": {"seed": 3}}, "merge_params.seed"),
        ({"replace_params": {"seed": 3}}, "replace_params.seed"),
        ({"merge_params": {"top_k": 3}}, "merge_params.top_k"),
        ({"temperature": 0.5}, "temperature"),
    ],
)
async def test_a_parameter_that_would_not_be_sent_is_refused(
    provide: Provide, options: dict[str, Any], field: str
) -> None:
    provider, generator = await provide([ANTHROPIC.text("Hello")], "anthropic")
    told = await tell(agent_over(generator), options=options)
    assert (told.code, provider.requests) == ("invalid_request", [])
    assert told.outcome.error is not None
    assert told.outcome.error.field == f"options.{field}"


async def test_parameters_are_ollamas_options(provide: Provide) -> None:
    own = {"temperature": 0.5, "num_predict": 100}
    turns = [SPOKEN["ollama"].text("Hello")]
    provider, generator = await provide(turns, "ollama", generation_kwargs=own)
    agent = agent_over(generator)

    await tell(agent, options={"temperature": 0.1, "max_tokens": 7, "merge_params": {"top_k": 5}})
    await tell(agent, options={"max_tokens": None})

    sent = [request.body["options"] for request in provider.requests]
    assert sent == [{"temperature": 0.1, "num_predict": 7, "top_k": 5}, {"temperature": 0.5}]


async def test_max_tokens_is_spelled_as_ollama_has_it(provide: Provide) -> None:
    provider, generator = await provide([SPOKEN["ollama"].text("Hello")], "ollama")

    class Shorter(RunHooks):
        async def on_model_call(self, run: HookRun, call: ModelCall) -> Patch:
            return Patch(max_tokens=3)

    await tell(agent_over(generator), options={"max_tokens": 7})
    await tell(agent_over(generator, hooks=[Shorter()]), options={"max_tokens": 7})
    sent = [request.body["options"] for request in provider.requests]
    assert sent == [{"num_predict": 7}, {"num_predict": 3}]
