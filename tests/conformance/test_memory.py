"""Memory: a storage is bound to a thread, loaded once, appended to once; a thread takes its runs
one after the other. In memory without a bus, on JetStream with one.

What `thread_id`, `memory` and `history` say is in `test_conversation_options`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import BusDriver, Driver, new_thread, steps
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.adapters.convert import from_wire
from hayrunner.agent import Agent
from hayrunner.storage.base import BaseStorageAdapter
from hayrunner.storage.jetstream import JetStreamStorage
from hayrunner.storage.memory import InMemoryStorage
from hayrunner_contracts.events import MessageStart
from hayrunner_contracts.messages import ChatMessage

REPLY = [text_turn("Hello")]
WITH_A_TOOL = [call_turn(("look", {}), text="Looking."), text_turn("Hello")]
LIMIT_S = 20.0


def look() -> str:
    """Looks."""
    return "seen"


class Watched:
    """A thread, wherever it is kept, that notes its use."""

    def __init__(self, inner: BaseStorageAdapter, noted: list[Any]) -> None:
        self.inner = inner
        self.noted = noted

    async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
        self.noted.append("load")
        return await self.inner.load(before_message_id)

    async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
        self.noted.append((message_id, [message.role for message in messages]))
        await self.inner.append(message_id, messages)


def watched(noted: list[Any], kind: type[Watched] = Watched) -> Callable[..., BaseStorageAdapter]:
    """A `get_storage` whose threads are watched."""

    def get_storage(agent: Agent, thread_id: str) -> BaseStorageAdapter:
        inner = Agent.get_storage(agent, thread_id)
        assert inner is not None
        return kind(inner, noted)

    return get_storage


async def texts(agent: Agent, thread_id: str) -> list[str | None]:
    """What is in the thread, tools' results left out."""
    messages = await agent.threads.thread(thread_id).load()
    return [from_wire(message).text for message in messages if message.role != "tool"]


async def test_a_thread_is_loaded_once_before_the_first_call_and_appended_to_once_after_the_last(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    noted: list[Any] = []

    def turn(body: dict[str, Any]) -> Any:
        noted.append("call")
        return WITH_A_TOOL[steps(body)]

    _, generator = await provide(turn)
    agent = agent_over(generator, tools=[look], get_storage=watched(noted))
    told = await driver.tell(agent, thread_id=new_thread())
    kept = (told.result.message_id, ["user", "assistant", "tool", "assistant"])
    assert noted == ["load", "call", "call", kept]


async def test_only_new_messages_are_appended_and_the_next_run_is_shown_all(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(REPLY)
    noted: list[Any] = []
    agent, thread = agent_over(generator, get_storage=watched(noted)), new_thread()
    first = await driver.tell(agent, "one", thread_id=thread)
    second = await driver.tell(agent, "two", thread_id=thread)

    new = ["user", "assistant"]
    assert noted == [
        *("load", (first.result.message_id, new)),
        *("load", (second.result.message_id, new)),
    ]
    shown = [message["content"] for message in provider.requests[1].body["messages"]]
    assert shown == ["one", "Hello", "two"]
    assert await texts(agent, thread) == ["one", "Hello", "two", "Hello"]


async def test_an_append_that_comes_again_changes_nothing(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    class Twice(Watched):
        async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
            await super().append(message_id, messages)
            await super().append(message_id, [*messages, ChatMessage.user("again")])

    _, generator = await provide(REPLY)
    noted: list[Any] = []
    agent, thread = agent_over(generator, get_storage=watched(noted, Twice)), new_thread()
    told = await driver.tell(agent, thread_id=thread)
    assert (told.answer, len(noted)) == ("Hello", 3)
    assert await texts(agent, thread) == ["hi", "Hello"]


async def test_a_redelivered_run_is_not_shown_its_own_messages_and_cannot_store_twice(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    class Redelivered(Watched):
        """Its first attempt got as far as its append."""

        async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
            assert before_message_id is not None
            said = [ChatMessage.user("hi"), ChatMessage.assistant("the first answer")]
            await self.inner.append(before_message_id, said)
            return await super().load(before_message_id)

    provider, generator = await provide(REPLY)
    noted: list[Any] = []
    agent, thread = agent_over(generator, get_storage=watched(noted, Redelivered)), new_thread()
    await driver.tell(agent, thread_id=thread)
    assert [m["content"] for m in provider.requests[0].body["messages"]] == ["hi"]
    assert await texts(agent, thread) == ["hi", "the first answer"]


async def test_the_default_is_jetstream_on_a_bus_and_memory_without_one(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(REPLY)
    agent, thread = agent_over(generator), new_thread()
    await driver.tell(agent, thread_id=thread)
    kind = JetStreamStorage if isinstance(driver, BusDriver) else InMemoryStorage
    assert isinstance(agent.get_storage(thread), kind)


async def test_an_adapter_of_the_authors_own_is_two_methods(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    class Own:
        def __init__(self) -> None:
            self.kept: dict[str, list[ChatMessage]] = {}

        async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
            return [ChatMessage.user("earlier"), ChatMessage.assistant("so it was")]

        async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
            self.kept[message_id] = list(messages)

    own, thread = Own(), new_thread()
    provider, generator = await provide(REPLY)
    agent = agent_over(generator, get_storage=lambda self, thread_id: own)
    told = await driver.tell(agent, thread_id=thread)
    shown = [message["content"] for message in provider.requests[0].body["messages"]]
    assert shown == ["earlier", "so it was", "hi"]
    assert list(own.kept) == [told.result.message_id]
    assert await texts(agent, thread) == []


class Held:
    """A model whose run `first` calls a tool that waits for `go`."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    def turn(self, body: dict[str, Any]) -> Any:
        asked = body["messages"][-1]["content"]
        return call_turn(("hold", {})) if asked == "first" else text_turn("ok")

    def tools(self) -> list[Callable[..., Any]]:
        async def hold() -> str:
            """Holds."""
            self.begun.set()
            await asyncio.wait_for(self.go.wait(), LIMIT_S)
            return "held"

        return [hold]


async def test_of_two_runs_on_one_thread_the_second_waits_for_the_first(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    held, thread = Held(), new_thread()
    provider, generator = await provide(held.turn)
    agent = agent_over(generator, tools=held.tools())
    first = await driver.start(agent, "first", thread_id=thread)
    await asyncio.wait_for(held.begun.wait(), LIMIT_S)
    second = await driver.start(agent, "second", thread_id=thread)
    await second.shows(MessageStart)
    # Another thread's run is not in its way.
    await driver.tell(agent, "other", thread_id=new_thread())
    assert [r.body["messages"][-1]["content"] for r in provider.requests] == ["first", "other"]

    held.go.set()
    await first.told()
    assert (await second.told()).answer == "ok"
    shown = [message["role"] for message in provider.requests[-1].body["messages"]]
    assert shown == ["user", "assistant", "tool", "assistant", "user"]
    assert await texts(agent, thread) == ["first", None, "ok", "second", "ok"]


async def test_on_busy_thread_reject_refuses_the_second_and_wait_is_the_default(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    held, thread = Held(), new_thread()
    provider, generator = await provide(held.turn)
    agent = agent_over(generator, tools=held.tools())
    first = await driver.start(agent, "first", thread_id=thread)
    await asyncio.wait_for(held.begun.wait(), LIMIT_S)
    reject = {"on_busy_thread": "reject"}
    refused = await driver.tell(agent, "second", reject, thread_id=thread)
    assert (refused.code, len(provider.requests)) == ("busy_thread", 1)
    waiting = [
        await driver.start(agent, "third", options, thread_id=thread)
        for options in ({}, {"on_busy_thread": "wait"})
    ]
    held.go.set()
    assert (await first.told()).answer == "ok"
    assert [(await run.told()).answer for run in waiting] == ["ok", "ok"]
    assert "second" not in await texts(agent, thread)


async def test_threads_are_created_listed_read_rated_deleted_and_restored(
    durable: BusDriver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(REPLY)
    agent = agent_over(generator)
    threads = durable.client_of(agent).threads
    thread = (await threads.create(title="Order 7")).thread_id
    run = (await durable.tell(agent, thread_id=thread)).result.message_id

    assert {info.thread_id: info.title for info in await threads.list()}[thread] == "Order 7"
    assert [message.text for message in await threads.messages(thread)] == ["hi", "Hello"]
    await threads.rate(thread, run, "up")
    assert (await threads.get(thread)).ratings[run].rating == "up"

    await threads.delete(thread)
    assert thread not in [info.thread_id for info in await threads.list()]
    refused = await durable.tell(agent, thread_id=thread)
    assert (refused.code, refused.field) == ("invalid_request", "thread_id")

    await threads.restore(thread)
    await durable.tell(agent, "again", thread_id=thread)
    shown = [message["content"] for message in provider.requests[-1].body["messages"]]
    assert shown == ["hi", "Hello", "again"]


async def test_a_thread_that_cannot_be_saved_fails_the_run(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    class Full(Watched):
        async def append(self, message_id: str, messages: Sequence[ChatMessage]) -> None:
            raise OSError("card 4711")

    _, generator = await provide(REPLY)
    agent = agent_over(generator, get_storage=watched([], Full))
    told = await driver.tell(agent, thread_id=new_thread())
    assert (told.code, told.result.status) == ("storage_error", "failed")
    assert "4711" not in told.everything
