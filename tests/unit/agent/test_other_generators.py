"""Generators that are not of this package: mocks, sync only, without a stream."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from haystack import component
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.tools import Tool, create_tool_from_function
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    inputs_of,
    outputs_of,
    request,
    tell,
)

from hayrunner.adapted import HaystackAgentAdapter
from hayrunner_contracts.events import TextChunk, ToolCallStart
from hayrunner_contracts.testing import assert_valid_stream, eventually


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def calls(*pairs: tuple[int, int], call_id: str | None = None) -> ChatMessage:
    asked = [
        ToolCall(tool_name="add", arguments={"a": a, "b": b}, id=call_id and f"{call_id}{a}")
        for a, b in pairs
    ]
    return ChatMessage.from_assistant("Adding now.", tool_calls=asked)


@pytest.mark.parametrize("call_id", ["c", None])
async def test_haystacks_mock_streams_text_calls_tools_and_answers(call_id: str | None) -> None:
    generator = MockChatGenerator([calls((1, 2), (3, 4), call_id=call_id), "It is done."])

    told = await tell(agent_over(generator, tools=[add]))

    assert told.text == "Adding now.It is done."
    assert len(told.of(TextChunk)) > 3
    assert inputs_of(told.events) == [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]
    assert outputs_of(told.events) == [("3", False), ("7", False)]
    assert len({event.tool_call_id for event in told.of(ToolCallStart)}) == 2
    assert told.outcome.usage.output_tokens == 5


async def test_an_echo_of_nothing_is_an_empty_reply() -> None:
    told = await tell(agent_over(MockChatGenerator("")))
    assert (told.outcome.status, told.outcome.answer, told.outcome.model_calls) == (
        "completed",
        None,
        1,
    )


@component
class SyncGenerator:
    """Speaks from a thread, as older integrations do."""

    def __init__(self, words: list[str], before_last: Callable[[], object] | None = None) -> None:
        self.words = words
        self.before_last = before_last
        self.threads: list[int] = []
        self.failed: list[str] = []

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: Callable[[StreamingChunk], None] | None = None,
        tools: list[Tool] | None = None,
    ) -> dict[str, Any]:
        self.threads.append(threading.get_ident())
        for number, word in enumerate(self.words):
            if number == len(self.words) - 1 and self.before_last is not None:
                self.before_last()
            if streaming_callback is not None:
                try:
                    streaming_callback(StreamingChunk(word))
                except RuntimeError as error:
                    self.failed.append(str(error))
                    raise
        return {"replies": [ChatMessage.from_assistant("".join(self.words))]}


async def test_a_sync_generator_streams_from_its_thread() -> None:
    generator = SyncGenerator(["Hel", "lo"])
    told = await tell(agent_over(generator, tools=[add]))
    assert [event.content for event in told.of(TextChunk)] == ["Hel", "lo"]
    assert told.outcome.answer == "Hello"
    assert generator.threads != [threading.get_ident()]


async def test_a_stopped_run_ends_its_sync_generator_at_the_next_chunk() -> None:
    goes_on = threading.Event()
    generator = SyncGenerator(["Hel", "lo"], before_last=goes_on.wait)
    sink = Sink()
    session = agent_over(generator).open_session(
        request(), message_id=MESSAGE_ID, sink=sink, agent_name="support"
    )
    task = asyncio.ensure_future(session.run())
    await eventually(lambda: sink.events)

    session.stop("cancelled", "enough")
    outcome = await asyncio.wait_for(task, 5)
    goes_on.set()
    await eventually(lambda: generator.failed, what="the thread being told")

    assert outcome.answer == "Hel"
    assert_valid_stream(sink.framed())
    assert generator.failed == ["the run this generator streams for has ended"]


@component
class SilentGenerator:
    """Has no streaming_callback, and no parameters."""

    def __init__(self, call_id: str | None = "c") -> None:
        self.call_id = call_id

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: list[Tool] | None = None) -> dict[str, Any]:
        if messages[-1].is_from("user") and tools:
            return {"replies": [calls((1, 2), call_id=self.call_id)]}
        return {"replies": [ChatMessage.from_assistant("Hello")]}


async def test_a_generator_without_a_stream_gives_its_text_as_one_chunk() -> None:
    told = await tell(agent_over(SilentGenerator()))
    assert [event.content for event in told.of(TextChunk)] == ["Hello"]


async def test_a_generator_without_a_stream_still_shows_its_calls() -> None:
    told = await tell(agent_over(SilentGenerator(), tools=[add]))
    assert told.text == "Adding now.Hello"
    assert outputs_of(told.events) == [("3", False)]
    assert [event.tool_call_id for event in told.of(ToolCallStart)] == ["c1"]


async def test_a_call_without_an_id_and_without_a_stream_keeps_its_arguments() -> None:
    told = await tell(agent_over(SilentGenerator(call_id=None), tools=[add]))
    assert outputs_of(told.events) == [("3", False)]


@component
class MuteGenerator:
    """Takes no tools at all."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        return {"replies": [ChatMessage.from_assistant("Hello")]}


async def test_a_generator_that_takes_no_tools_fails_the_run_and_not_the_worker() -> None:
    told = await tell(agent_over(MuteGenerator(), tools=[add]))
    assert (told.outcome.status, told.code) == ("failed", "internal")
    assert (await tell(agent_over(MuteGenerator()))).outcome.answer == "Hello"


async def test_an_authors_subclass_of_haystacks_agent_keeps_its_overrides() -> None:
    class Exiting(HaystackAgent):
        """Constructed in a way of its own, and stops after any tool."""

        def __init__(self, flavour: str) -> None:
            self.flavour = flavour
            generator = MockChatGenerator([calls((1, 2)), "never said"])
            tool = create_tool_from_function(add)
            super().__init__(chat_generator=generator, tools=[tool], exit_conditions=["x"])

        def _check_exit_conditions(self, llm_messages: Any, tool_messages: Any) -> str | None:
            return self.flavour

    inner = Exiting("sour")
    told = await tell(HaystackAgentAdapter("sour", inner))

    assert told.outcome.finish_reason == "tool"
    assert inner.max_agent_steps == 100
    assert type(inner) is Exiting
