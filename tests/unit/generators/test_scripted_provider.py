"""The scripted provider speaks what the openai package understands."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from haystack.components.generators.chat import (
    OpenAIChatGenerator,
    OpenAIResponsesChatGenerator,
)
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.utils import Secret

from hayrunner.testing.provider import ScriptedProvider, load_scenarios

KEY = Secret.from_token("x")
FILES = Path(__file__).parents[2] / "scenarios"


async def streamed(generator: Any, messages: list[ChatMessage]) -> ChatMessage:
    async def callback(chunk: StreamingChunk) -> None: ...

    result = await generator.run_async(messages, streaming_callback=callback)
    return result["replies"][0]


async def test_the_openai_package_reads_chat_completions_streaming_or_not() -> None:
    scenario = load_scenarios(FILES / "openai_chat.json")["text_tool"]
    async with ScriptedProvider(scenario) as provider:
        generator = OpenAIChatGenerator(KEY, api_base_url=provider.base_url, max_retries=0)
        user = ChatMessage.from_user("hi")
        whole = (await generator.run_async([user]))["replies"][0]
        first = await streamed(generator, [user])
        tool = ChatMessage.from_tool("3", first.tool_calls[0])
        last = await streamed(generator, [user, first, tool])
        await generator.close_async()
    assert first.text == whole.text == "Let me add."
    assert first.tool_calls == whole.tool_calls
    assert last.text == "Hello"


async def test_the_openai_package_reads_responses_turn_by_turn() -> None:
    scenario = load_scenarios(FILES / "openai_responses.json")["r_reason_tool"]
    async with ScriptedProvider(scenario) as provider:
        generator = OpenAIResponsesChatGenerator(
            api_key=KEY, api_base_url=provider.base_url, max_retries=0
        )
        user = ChatMessage.from_user("hi")
        first = await streamed(generator, [user])
        tools = [ChatMessage.from_tool("3", call) for call in first.tool_calls]
        last = await streamed(generator, [user, first, *tools])
        await generator.close_async()
    assert len(first.tool_calls) == 2
    assert last.text == "Hello"


async def test_a_request_is_recorded_and_a_rate_is_kept() -> None:
    turn = [
        element
        for number in range(10)
        for element in ({"$at": number * 0.02}, {"choices": [], "number": number})
    ]
    async with ScriptedProvider([turn]) as provider, aiohttp.ClientSession() as session:
        url = f"{provider.base_url}/chat/completions"
        async with session.post(url, json={"stream": True}, headers={"X-A": "1"}) as response:
            body = await response.read()
    (request,) = provider.requests
    assert body.endswith(b'{"choices":[],"number":9}\n\ndata: [DONE]\n\n')
    assert request.headers["X-A"] == "1"
    assert request.finished_at is not None
    assert request.disconnected_at is None
    assert len(request.emitted) == 10
    assert request.emitted[-1] - request.emitted[0] == pytest.approx(0.18, abs=0.05)
    assert all(later >= earlier for earlier, later in pairwise(request.emitted))
