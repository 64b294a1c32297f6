"""The generator as a Haystack component, over every scenario and inside Haystack's own parts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel

from hayrunner.errors import ConfigurationError, ProviderError
from hayrunner.generators import OpenAICompatibleChatGenerator
from hayrunner.generators.openai_compatible import ON_TEXT
from hayrunner.testing.provider import ScriptedProvider

Serve = Callable[..., Awaitable[tuple[ScriptedProvider, OpenAICompatibleChatGenerator]]]
Scenarios = dict[str, list[list[dict[str, Any]]]]

SUM = ("add", {"a": 1, "b": 2})
OTHER_SUM = ("add", {"a": 3, "b": 4})
INVALID = ("add", {})

# Per scenario the first turn: text, calls, finish reason.
EXPECTED: dict[str, tuple[str | None, list[tuple[str, dict[str, Any]]], str]] = {
    "text": ("Hello", [], "stop"),
    "text_tool": ("Let me add.", [SUM], "tool_calls"),
    "parallel": (None, [SUM, OTHER_SUM], "tool_calls"),
    "raises": (None, [SUM, ("boom", {"x": "y"})], "tool_calls"),
    "halluc": (None, [("nosuch", {})], "tool_calls"),
    "badjson": (None, [INVALID], "tool_calls"),
    "badjson_text": ("Calling.", [INVALID], "tool_calls"),
    "badjson_mixed": (None, [INVALID, SUM], "tool_calls"),
    "args_list": (None, [INVALID], "tool_calls"),
    "empty": (None, [], "stop"),
    "length": ("Hel", [], "length"),
    "length_empty": (None, [], "length"),
    "content_filter": ("Hel", [], "content_filter"),
    "noids": (None, [SUM, OTHER_SUM], "tool_calls"),
    "sameindex": (None, [SUM, OTHER_SUM], "tool_calls"),
    "idrepeat": (None, [SUM], "tool_calls"),
    "three_turns": (None, [SUM], "tool_calls"),
    "deepseek": ("Hi", [], "stop"),
    "finish_with_last": ("Hello", [], "stop"),
    "unknown_finish": ("x", [], "stop"),
    "nofinish": ("Hel", [], "stop"),
}
FAILING = ["err_midstream", "abort_midstream"]
INVALID_ARGUMENTS = {
    "badjson": '{"a":1,',
    "badjson_text": '{"a":1,',
    "badjson_mixed": '{"a":',
    "args_list": "[1,2]",
}


@tool
def add(a: Annotated[int, "first"], b: Annotated[int, "second"]) -> str:
    """Add two numbers."""
    return str(a + b)


class Movie(BaseModel):
    title: str


def module_callback(chunk: StreamingChunk) -> None:
    """A callback with an import path."""


def dumped_and_loaded(generator: OpenAICompatibleChatGenerator) -> OpenAICompatibleChatGenerator:
    """Through a pipeline's YAML, in a pipeline no longer."""
    pipeline = Pipeline()
    pipeline.add_component("llm", generator)
    loaded = Pipeline.loads(
        pipeline.dumps(), allowed_modules=["hayrunner.*", module_callback.__module__]
    )
    restored: Any = loaded.remove_component("llm")
    assert isinstance(restored, OpenAICompatibleChatGenerator)
    return restored


def test_every_scenario_is_expected(scenarios: Scenarios) -> None:
    assert sorted([*EXPECTED, *FAILING]) == sorted(scenarios)


@pytest.mark.parametrize("name", EXPECTED)
async def test_a_scenario_gives_its_reply(name: str, serve: Serve, scenarios: Scenarios) -> None:
    _, generator = await serve(scenarios[name])
    chunks: list[StreamingChunk] = []

    async def callback(chunk: StreamingChunk) -> None:
        chunks.append(chunk)

    (reply,) = (await generator.run_async("hi", callback))["replies"]
    text, calls, finish = EXPECTED[name]
    assert reply.text == text
    assert [(call.tool_name, call.arguments) for call in reply.tool_calls] == calls
    assert reply.meta["finish_reason"] == finish
    assert reply.meta["model"] == "fake-1"
    if name != "nofinish":
        assert reply.meta["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
        assert chunks[-1].meta["usage"] == reply.meta["usage"]
    ids = [call.id for call in reply.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    invalid = [call.extra["invalid_arguments"] for call in reply.tool_calls if call.extra]
    assert invalid == ([INVALID_ARGUMENTS[name]] if name in INVALID_ARGUMENTS else [])
    assert "".join(chunk.content for chunk in chunks) == (text or "")
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [finish]


@pytest.mark.parametrize("name", FAILING)
async def test_a_scenario_that_breaks_off_is_raised(
    name: str, serve: Serve, scenarios: Scenarios
) -> None:
    _, generator = await serve(scenarios[name])
    with pytest.raises(ProviderError) as caught:
        await generator.run_async("hi")
    assert caught.value.retryable
    assert "overloaded" not in str(caught.value)


async def test_the_reply_is_the_same_with_a_sync_an_async_and_no_callback(
    serve: Serve, scenarios: Scenarios
) -> None:
    _, generator = await serve(scenarios["text_tool"])
    seen: dict[str, list[StreamingChunk]] = {"sync": [], "async": []}

    async def callback(chunk: StreamingChunk) -> None:
        seen["async"].append(chunk)

    replies = [
        (await generator.run_async("hi", given))["replies"][0]
        for given in (None, callback, seen["sync"].append)
    ]
    contents = [reply.to_dict()["content"] for reply in replies]
    assert contents[0] == contents[1] == contents[2]
    assert seen["sync"] == seen["async"] != []


async def test_chunks_name_the_component_and_the_run_callback_wins(
    serve: Serve, scenarios: Scenarios
) -> None:
    unused: list[StreamingChunk] = []
    _, generator = await serve(scenarios["text"], streaming_callback=unused.append)
    chunks: list[StreamingChunk] = []
    await generator.run_async("hi", chunks.append)
    types = {chunk.component_info.type for chunk in chunks if chunk.component_info}
    assert types == {"hayrunner.generators.openai_compatible.OpenAICompatibleChatGenerator"}
    assert unused == []


async def test_the_request_holds_what_the_call_asked_for(
    serve: Serve, scenarios: Scenarios
) -> None:
    provider, generator = await serve(
        scenarios["text"],
        model="m",
        api_key=Secret.from_token("key"),
        organization="org",
        extra_headers={"X-A": "1"},
        generation_kwargs={"temperature": 1, "top_p": 0.5, "extra_headers": {"X-B": "2"}},
        tools=[add],
    )
    await generator.run_async(
        [ChatMessage.from_system("Be kind."), ChatMessage.from_user("hi")],
        generation_kwargs={"temperature": None, "seed": 7, "response_format": Movie},
        tools_strict=True,
    )
    (request,) = provider.requests
    headers, body = request.headers, request.body
    assert request.path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer key"
    assert headers["OpenAI-Organization"] == "org"
    assert (headers["X-A"], headers["X-B"]) == ("1", "2")
    assert (body["model"], body["top_p"], body["seed"]) == ("m", 0.5, 7)
    assert "temperature" not in body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["function"]["strict"] is True
    assert body["response_format"]["json_schema"]["name"] == "Movie"


async def test_tools_of_a_run_replace_those_of_the_constructor(
    serve: Serve, scenarios: Scenarios
) -> None:
    provider, generator = await serve(scenarios["text"], tools=[add])
    await generator.run_async("hi", tools=[])
    assert "tools" not in provider.requests[0].body


async def test_without_a_key_no_authorization_is_sent(
    serve: Serve, scenarios: Scenarios, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    provider, generator = await serve(scenarios["text"])
    await generator.run_async("hi")
    assert "Authorization" not in provider.requests[0].headers


async def test_no_messages_make_no_call(serve: Serve, scenarios: Scenarios) -> None:
    provider, generator = await serve(scenarios["text"])
    assert await generator.run_async([]) == {"replies": []}
    assert provider.requests == []


async def test_a_plain_json_answer_to_a_request_for_a_stream_is_taken(serve: Serve) -> None:
    function = {"name": "add", "arguments": '{"a":1,"b":2}'}
    message = {"role": "assistant", "content": "Hi", "tool_calls": [{"function": function}]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"model": "m", "choices": [choice], "usage": {"total_tokens": 3}}
    _, generator = await serve([[{"$json": body}]])
    chunks: list[StreamingChunk] = []
    (reply,) = (await generator.run_async("hi", chunks.append))["replies"]
    assert reply.text == "Hi"
    assert [(call.tool_name, call.arguments) for call in reply.tool_calls] == [SUM]
    assert reply.meta["finish_reason"] == "tool_calls"
    assert reply.meta["usage"] == {"total_tokens": 3}
    assert len(chunks) == 4


async def test_a_plain_json_error_with_a_status_of_success_is_raised(serve: Serve) -> None:
    _, generator = await serve([[{"$json": {"error": {"code": "model_not_found"}}}]])
    with pytest.raises(ProviderError, match="model_not_found"):
        await generator.run_async("hi")


def test_it_survives_its_serialized_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret")
    generator = OpenAICompatibleChatGenerator(
        model="m",
        api_key=Secret.from_env_var("KEY"),
        api_base_url="http://localhost/v1",
        generation_kwargs={"temperature": 0, "response_format": Movie},
        streaming_callback=module_callback,
        tools=[add],
        tools_strict=True,
        organization="org",
        extra_headers={"X-A": "1"},
        connect_timeout_s=1,
        first_byte_timeout_s=2,
        idle_timeout_s=3,
        total_timeout_s=None,
        max_retries=4,
    )
    data = generator.to_dict()
    assert "secret" not in str(data)
    restored = dumped_and_loaded(generator)
    assert restored.to_dict() == data == generator.to_dict()
    assert restored.limits == generator.limits
    assert restored.streaming_callback is module_callback
    assert restored.api_key == Secret.from_env_var("KEY")
    assert restored.tools == [add]


async def test_it_runs_in_a_pipeline_that_was_dumped_and_loaded(
    serve: Serve, scenarios: Scenarios
) -> None:
    _, generator = await serve(scenarios["text"])
    loaded = Pipeline()
    restored = dumped_and_loaded(generator)
    loaded.add_component("llm", restored)
    chunks: list[StreamingChunk] = []

    async def callback(chunk: StreamingChunk) -> None:
        chunks.append(chunk)

    messages = [ChatMessage.from_user("hi")]
    inputs = {"llm": {"messages": messages, "streaming_callback": callback}}
    result = await loaded.run_async(inputs)
    await restored.close_async()
    assert result["llm"]["replies"][0].text == "Hello"
    assert {chunk.component_info.name for chunk in chunks if chunk.component_info} == {"llm"}


@pytest.mark.parametrize("name", ["text_tool", "parallel", "noids", "sameindex", "three_turns"])
async def test_a_bare_haystack_agent_runs_its_tools_with_it(
    name: str, serve: Serve, scenarios: Scenarios
) -> None:
    provider, generator = await serve(scenarios[name])
    agent = Agent(chat_generator=generator, tools=[add])
    chunks: list[StreamingChunk] = []

    async def callback(chunk: StreamingChunk) -> None:
        chunks.append(chunk)

    result = await agent.run_async(
        messages=[ChatMessage.from_user("hi")], streaming_callback=callback
    )
    assert result["last_message"].text == "Hello"
    assert [tool["function"]["name"] for tool in provider.requests[0].body["tools"]] == ["add"]
    last = provider.requests[-1].body["messages"]
    asked = [call["id"] for message in last for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in last if message["role"] == "tool"]
    assert asked == answered != []
    assert [chunk.tool_call_result.result for chunk in chunks if chunk.tool_call_result] == [
        str(sum(call.arguments.values()))
        for message in result["messages"]
        for call in message.tool_calls
    ]


async def test_an_invalid_call_in_an_agent_goes_back_as_written(
    serve: Serve, scenarios: Scenarios
) -> None:
    provider, generator = await serve(scenarios["badjson"])
    agent = Agent(chat_generator=generator, tools=[add])
    await agent.run_async(messages=[ChatMessage.from_user("hi")])
    _, call, result = provider.requests[1].body["messages"]
    assert call["tool_calls"][0]["function"]["arguments"] == '{"a":1,'
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]


async def test_run_without_a_loop_gives_the_same_and_within_one_is_refused(
    serve: Serve, scenarios: Scenarios
) -> None:
    provider, generator = await serve(scenarios["text"])
    with pytest.raises(ConfigurationError, match="run_async"):
        generator.run("hi")
    result = await asyncio.to_thread(generator.run, "hi")
    assert result["replies"][0].text == "Hello"
    assert len(provider.requests) == 1


async def test_a_callback_that_takes_text_gets_it_without_chunks_and_chunks_for_the_rest() -> None:
    turn: list[dict[str, Any]] = [
        {"model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}
        for text in ("Hel", "lo", "!")
    ]
    closing = {"index": 0, "delta": {}, "finish_reason": "stop"}
    turn.append({"model": "m", "choices": [closing], "usage": {"total_tokens": 3}})
    texts: list[str] = []
    chunks: list[StreamingChunk] = []

    async def on_chunk(chunk: StreamingChunk) -> None:
        chunks.append(chunk)

    async def on_text(text: str) -> None:
        texts.append(text)

    setattr(on_chunk, ON_TEXT, on_text)
    async with ScriptedProvider([turn]) as provider:
        generator = OpenAICompatibleChatGenerator(
            model="m", api_key=None, api_base_url=provider.base_url
        )
        result = await generator.run_async("hi", on_chunk)
        await generator.close_async()

    # The first piece opens the reply, which only a chunk can say.
    assert [chunk.content for chunk in chunks if chunk.content] == ["Hel"]
    assert texts == ["lo", "!"]
    assert chunks[-2].finish_reason == "stop"
    assert result["replies"][0].text == "Hello!"
