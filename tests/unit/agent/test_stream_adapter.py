"""The Stream adapter, in plain Python: events out, threads kept, early ends."""

import asyncio
import time
from typing import Any

import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage as HaystackMessage
from haystack.tools import create_tool_from_function
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, call_turn, chunk, kinds, text_of, text_turn

from hayrunner.adapters.convert import as_chat_messages, from_wire, merge_same_role
from hayrunner.adapters.stream import Stream
from hayrunner.adapters.writer import StreamWriter
from hayrunner.errors import ConfigurationError
from hayrunner.storage.memory import InMemoryStorage, InMemoryThreads
from hayrunner_contracts.events import Error, MessageEnd, MessageStart, StreamEvent, TextChunk
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.testing import assert_valid_stream, eventually

HANGING = [chunk({"content": "Hel"}), {"$hang": True}]


async def collect(stream: Any) -> list[StreamEvent]:
    events = [event async for event in stream]
    assert_valid_stream(events)
    return events


def texts(provider: Any, which: int = -1) -> list[str]:
    return [m["content"] for m in provider.requests[which].body["messages"]]


async def stored(storage: InMemoryStorage) -> list[tuple[str, str | None]]:
    return [(m.role, from_wire(m).text) for m in await storage.load()]


async def test_a_stream_is_numbered_and_framed(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hel", "lo")])
    stream = Stream(HaystackAgent(chat_generator=generator))

    events = await collect(stream.stream("hi"))

    assert kinds(events) == [
        "MessageStart",
        "TextChunk",
        "TextChunk",
        "ModelCallEnd",
        "MessageEnd",
        "StreamEnd",
    ]
    start = events[0]
    assert isinstance(start, MessageStart)
    assert (start.agent, start.thread_id) == ("agent", None)
    assert len(start.message_id) == 36


async def test_agent_stream_needs_no_bus(provide: Provide) -> None:
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])
    events = await collect(agent_over(generator, tools=[add]).stream("1+2?"))
    assert text_of(events) == "3"
    assert "ToolExecutionCommitted" in kinds(events)


async def test_failures_are_events_and_not_exceptions(provide: Provide) -> None:
    _, generator = await provide([[{"$status": 500, "body": {}}]])

    class Unreadable(InMemoryStorage):
        async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
            raise OSError

    agent = HaystackAgent(chat_generator=generator)
    for stream, messages, code in (
        (Stream(agent), "hi", "provider_error"),
        (Stream(agent), [], "invalid_request"),
        (Stream(agent, storage=Unreadable()), "hi", "storage_error"),
    ):
        events = await collect(stream.stream(messages))
        assert [e.error_code for e in events if isinstance(e, Error)] == [code]
        assert kinds(events)[-3:] == ["Error", "MessageEnd", "StreamEnd"]


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_closing_the_iterator_cancels_the_run_and_keeps_the_partial_text(
    provide: Provide, kind: str
) -> None:
    provider, generator = await provide([HANGING], kind)
    storage = InMemoryStorage()
    stream = Stream(HaystackAgent(chat_generator=generator), storage=storage).stream("hi")
    async for event in stream:
        if isinstance(event, TextChunk):
            break

    closed_at = time.monotonic()
    await stream.aclose()
    await eventually(lambda: provider.disconnects)

    assert provider.disconnects[0] - closed_at < 0.1
    assert await stored(storage) == [("user", "hi"), ("assistant", "Hel")]
    assert (await storage.load())[-1].meta["finish_reason"] == "cancelled"


async def test_a_consumer_that_is_cancelled_ends_the_run_too(provide: Provide) -> None:
    provider, generator = await provide([HANGING])
    stream = Stream(HaystackAgent(chat_generator=generator))
    seen: list[StreamEvent] = []

    async def consume() -> None:
        async for event in stream.stream("hi"):
            seen.append(event)

    task = asyncio.ensure_future(consume())
    await eventually(lambda: any(isinstance(event, TextChunk) for event in seen))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: provider.disconnects)


async def test_a_consumer_that_does_not_read_makes_the_run_wait(provide: Provide) -> None:
    total = 2_000
    provider, generator = await provide(
        [[*([chunk({"content": "x" * 20_000})] * total), chunk({}, "stop")]]
    )
    stream = Stream(HaystackAgent(chat_generator=generator)).stream("hi")
    await anext(stream)
    await anext(stream)
    sent: list[int] = []

    def has_stalled() -> bool:
        sent.append(len(provider.requests[0].emitted))
        return len(sent) > 20 and len(set(sent[-20:])) == 1

    await eventually(has_stalled, what="the provider waiting")
    assert sent[-1] < total
    rest = [event async for event in stream]
    assert len(text_of(rest)) == (total - 1) * 20_000


async def test_the_thread_is_loaded_before_and_added_to_after_the_run(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")], turn_of=lambda _: 0)
    storage = InMemoryStorage()
    stream = Stream(HaystackAgent(chat_generator=generator), storage=storage)

    await collect(stream.stream("one"))
    await collect(stream.stream("two"))

    assert texts(provider) == ["one", "Hello", "two"]
    assert await stored(storage) == [
        ("user", "one"),
        ("assistant", "Hello"),
        ("user", "two"),
        ("assistant", "Hello"),
    ]


async def test_store_false_keeps_nothing(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    storage = InMemoryStorage()
    await collect(
        Stream(HaystackAgent(chat_generator=generator), store=False, storage=storage).stream("hi")
    )
    assert await storage.load() == []


async def test_the_system_prompt_is_sent_and_not_stored(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator, instructions="Be kind.")
    await collect(agent.stream("hi", thread_id="t"))
    assert texts(provider) == ["Be kind.", "hi"]
    thread = agent.get_storage("t")
    assert thread is not None
    assert [m.role for m in await thread.load()] == ["user", "assistant"]


@pytest.mark.parametrize(("most", "kept"), [(None, 6), (4, 4), (3, 2), (1, 0), (0, 0), (99, 6)])
async def test_max_history_sends_the_latest_messages_from_a_user_message_on(
    provide: Provide, most: int | None, kept: int
) -> None:
    provider, generator = await provide([text_turn("Hello")], turn_of=lambda _: 0)
    agent = agent_over(generator, max_history=most)
    storage = InMemoryStorage()
    agent.get_storage = lambda thread_id: storage
    history = [HaystackMessage.from_user("q"), HaystackMessage.from_assistant("a")]
    writer = StreamWriter(storage, "earlier", history * 3)
    await writer.store([])

    await collect(agent.stream("now", thread_id="t"))

    assert texts(provider) == [*["q", "a"] * (kept // 2), "now"]
    assert len(await storage.load()) == 8


async def test_a_run_is_appended_once_however_often_it_is_delivered() -> None:
    storage = InMemoryStorage()
    writer = StreamWriter(storage, "m-1", as_chat_messages("hi"))
    await writer.store([])
    await writer.store([])
    await StreamWriter(storage, "m-1", as_chat_messages("hi")).store([])
    await StreamWriter(storage, "m-2", as_chat_messages("again")).store([])
    assert await stored(storage) == [("user", "hi"), ("user", "again")]


async def test_threads_in_memory_are_kept_apart() -> None:
    threads = InMemoryThreads()
    one, other = threads.thread("1"), threads.thread("2")
    await StreamWriter(one, "m-1", as_chat_messages("hi")).store([])
    assert await stored(threads.thread("1")) == [("user", "hi")]
    assert await other.load() == []


async def test_a_plain_haystack_agents_own_limits_count(provide: Provide) -> None:
    def add(a: int) -> int:
        """Adds."""
        return a

    provider, generator = await provide([call_turn(("add", {"a": 1}))])
    inner = HaystackAgent(
        chat_generator=generator, tools=[create_tool_from_function(add)], max_agent_steps=8
    )
    events = await collect(Stream(inner).stream("hi"))
    assert len(provider.requests) == 8
    assert [e.finish_reason for e in events if isinstance(e, MessageEnd)] == ["max_turns"]


def test_only_agents_and_pipelines_can_be_streamed() -> None:
    with pytest.raises(ConfigurationError, match=r"this is builtins\.str"):
        Stream("an agent")


def test_neighbouring_messages_of_one_role_can_be_merged() -> None:
    user, assistant = HaystackMessage.from_user, HaystackMessage.from_assistant
    merged = merge_same_role([user("a"), user("b"), assistant("c"), user("d"), user("e", name="x")])
    assert [(m.role, m.text) for m in merged] == [
        ("user", "a\n\nb"),
        ("assistant", "c"),
        ("user", "d"),
        ("user", "e"),
    ]
