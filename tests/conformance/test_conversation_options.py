"""`preamble`, `history`, `thread_id`, `memory`, `documents`: what the model is shown, and what is
kept."""

from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver, steps
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.adapters.convert import from_wire
from hayrunner.storage.memory import InMemoryStorage
from hayrunner_contracts.documents import Document
from hayrunner_contracts.messages import ChatMessage

REPLY = [text_turn("Hello")]
DOCUMENT = {"id": "d1", "content": "2 < 3 & so on", "meta": {"title": 'A "title"'}}


class Storage(InMemoryStorage):
    """Counts its use."""

    def __init__(self) -> None:
        earlier = [ChatMessage.user("earlier"), ChatMessage.assistant("so it was")]
        self.runs = {"m0": earlier}
        super().__init__(self.runs)
        self.loads = 0

    async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
        self.loads += 1
        return await super().load(before_message_id)

    @property
    def texts(self) -> list[str | None]:
        return [from_wire(message).text for run in self.runs.values() for message in run]


def sent(provider: Any) -> list[tuple[str, Any]]:
    return [(m["role"], m["content"]) for m in provider.requests[0].body["messages"]]


async def test_preamble_replaces_the_system_prompt_and_null_removes_it(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(REPLY, kind)
    agent = agent_over(generator, instructions="own {{ braces }}")
    await driver.tell(agent, options={"preamble": "asked {{ too }}"})
    assert sent(provider) == [("system", "asked {{ too }}"), ("user", "hi")]
    provider.requests.clear()
    await driver.tell(agent, options={"preamble": None})
    assert sent(provider) == [("user", "hi")]
    provider.requests.clear()
    await driver.tell(agent)
    assert sent(provider) == [("system", "own {{ braces }}"), ("user", "hi")]


async def test_history_is_the_messages_before_the_prompt(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(REPLY, kind)
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    told = await driver.tell(
        agent_over(generator, instructions="own"), options={"history": history}
    )
    assert sent(provider) == [("system", "own"), ("user", "a"), ("assistant", "b"), ("user", "hi")]
    assert told.roles == ["assistant"]


@pytest.mark.parametrize("history", [[], None, [{"role": "user", "content": "a"}]])
async def test_history_given_at_all_even_empty_touches_no_memory(
    driver: Driver, provide: Provide, agent_over: AgentOver, history: Any
) -> None:
    provider, generator = await provide(REPLY)
    storage = Storage()
    agent = agent_over(generator, get_storage=lambda self, thread_id: storage)
    await driver.tell(agent, options={"history": history}, thread_id="t")
    assert storage.loads == 0
    assert storage.texts == ["earlier", "so it was"]
    assert ("user", "earlier") not in sent(provider)


async def test_history_wins_over_memory_true(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(REPLY)
    storage = Storage()
    agent = agent_over(generator, get_storage=lambda self, thread_id: storage)
    await driver.tell(agent, options={"history": [], "memory": True}, thread_id="t")
    assert (storage.loads, len(storage.texts)) == (0, 2)


async def test_thread_id_loads_and_saves_that_thread(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(REPLY)
    storage = Storage()
    asked: list[str | None] = []

    def get_storage(_: Any, thread_id: str | None) -> Storage:
        asked.append(thread_id)
        return storage

    await driver.tell(agent_over(generator, get_storage=get_storage), thread_id="t7")

    assert set(asked) == {"t7"}
    assert storage.loads == 1
    assert sent(provider) == [("user", "earlier"), ("assistant", "so it was"), ("user", "hi")]
    assert storage.texts == ["earlier", "so it was", "hi", "Hello"]


async def test_memory_false_is_no_load_and_no_save(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(REPLY)
    storage = Storage()
    agent = agent_over(generator, get_storage=lambda self, thread_id: storage)
    await driver.tell(agent, options={"memory": False}, thread_id="t")
    assert (storage.loads, len(storage.texts)) == (0, 2)
    assert sent(provider) == [("user", "hi")]


async def test_a_thread_that_cannot_be_loaded_fails_the_run_before_the_first_call(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    class Broken(Storage):
        async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
            raise OSError("card 4711")

    provider, generator = await provide(REPLY)
    agent = agent_over(generator, get_storage=lambda self, thread_id: Broken())
    told = await driver.tell(agent, thread_id="t")
    assert (told.code, provider.requests) == ("storage_error", [])
    assert "card 4711" not in told.everything


async def test_documents_are_one_user_message_after_the_system_messages_on_every_call(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    turns = [call_turn(("look", {})), text_turn("done")]
    provider, generator = await provide(turns, kind, steps)
    own = [Document(content="of the agent")]
    storage = Storage()
    agent = agent_over(
        generator,
        tools=[look],
        documents=own,
        instructions="own",
        get_storage=lambda self, thread_id: storage,
    )
    told = await driver.tell(agent, options={"documents": [DOCUMENT]}, thread_id="t")

    assert len(provider.requests) == 2
    for request in provider.requests:
        system, documents, *rest = request.body["messages"]
        assert (system["role"], documents["role"]) == ("system", "user")
        assert documents["content"] == (
            "<documents>\n<document>\nof the agent\n</document>\n"
            '<document id="d1" title="A &quot;title&quot;">\n2 < 3 & so on\n</document>\n'
            "</documents>"
        )
        assert rest[0]["content"] == "earlier"
    # Never saved in history.
    assert told.roles == ["assistant", "tool", "assistant"]
    assert not any("<documents>" in (text or "") for text in storage.texts)


async def test_null_documents_leave_none_at_all(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(REPLY)
    agent = agent_over(generator, documents=[Document(content="own")])
    await driver.tell(agent, options={"documents": None})
    assert sent(provider) == [("user", "hi")]
