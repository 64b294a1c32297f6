"""preamble, history and prompts: what the provider is sent."""

from typing import Any

import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage as HaystackMessage
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, tell, text_turn

from hayrunner.adapted import HaystackAgentAdapter
from hayrunner.adapters.convert import from_wire, to_wire
from hayrunner.agent import Agent
from hayrunner.errors import UnsupportedOption
from hayrunner.storage.memory import InMemoryStorage
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.message_forms import parse_message
from hayrunner_contracts.messages import ChatMessage

REPLY = [text_turn("Hello")]
BRACES = "{{ user }} {% if x %} {# no #} {braces}"


def sent(provider: Any) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in provider.requests[-1].body["messages"]]


def user(text: str) -> ChatMessage:
    return to_wire(HaystackMessage.from_user(text))


def assistant(text: str) -> ChatMessage:
    return to_wire(HaystackMessage.from_assistant(text))


MODES: list[dict[str, Any]] = [
    {"mode": "stream"},
    {"mode": "answer"},
    {"mode": "answer", "tools": True},
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("options", "system"),
    [
        ({}, [("system", "Be kind.")]),
        ({"preamble": "Be brief."}, [("system", "Be brief.")]),
        ({"preamble": None}, []),
        ({"preamble": BRACES}, [("system", BRACES)]),
    ],
)
async def test_the_preamble_replaces_or_removes_the_system_prompt(
    provide: Provide, options: dict[str, Any], system: list[tuple[str, str]], mode: dict[str, Any]
) -> None:
    provider, generator = await provide(REPLY)
    await tell(agent_over(generator, instructions="Be kind."), "hi", options, **mode)
    assert sent(provider) == [*system, ("user", "hi")]


@pytest.mark.parametrize("mode", MODES)
async def test_a_preamble_is_given_to_an_agent_without_a_system_prompt(
    provide: Provide, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(REPLY)
    await tell(agent_over(generator), "hi", {"preamble": "Be brief."}, **mode)
    assert sent(provider) == [("system", "Be brief."), ("user", "hi")]


@pytest.mark.parametrize("mode", MODES)
async def test_braces_are_sent_as_they_are(provide: Provide, mode: dict[str, Any]) -> None:
    provider, generator = await provide(REPLY)
    await tell(agent_over(generator, instructions=BRACES), BRACES, **mode)
    assert sent(provider) == [("system", BRACES), ("user", BRACES)]


async def test_a_preamble_replaces_a_haystack_agents_rendered_prompt(provide: Provide) -> None:
    provider, generator = await provide(REPLY)
    agent = HaystackAgentAdapter(
        "kind", HaystackAgent(chat_generator=generator, system_prompt="Be {{ 'kind' }}.")
    )
    await tell(agent)
    assert sent(provider) == [("system", "Be kind."), ("user", "hi")]
    await tell(agent, options={"preamble": "Be {{ 'brief' }}."})
    assert sent(provider) == [("system", "Be {{ 'brief' }}."), ("user", "hi")]
    await tell(agent, options={"preamble": None})
    assert sent(provider) == [("user", "hi")]


class CountedStorage(InMemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
        self.touched += 1
        return await super().load(before_message_id)

    async def append(self, message_id: str, messages: Any) -> None:
        self.touched += 1
        await super().append(message_id, messages)


async def remembering(generator: Any) -> tuple[Agent, CountedStorage]:
    storage = CountedStorage()
    await InMemoryStorage.append(storage, "earlier", [user("I am Ann."), assistant("Hi Ann.")])
    agent = agent_over(generator)
    agent.get_storage = lambda thread_id: storage
    return agent, storage


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("history", [None, [], [user("I am Bob."), assistant("Hi Bob.")]])
async def test_given_history_stands_before_the_prompt_and_memory_is_not_touched(
    provide: Provide, history: list[ChatMessage] | None, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(REPLY, turn_of=lambda _: 0)
    agent, storage = await remembering(generator)

    await tell(agent, "who?", {"history": history}, thread_id="t", **mode)

    given = [("user", "I am Bob."), ("assistant", "Hi Bob.")] if history else []
    assert sent(provider) == [*given, ("user", "who?")]
    assert storage.touched == 0


@pytest.mark.parametrize("mode", MODES)
async def test_without_history_the_thread_is_loaded_and_added_to(
    provide: Provide, mode: dict[str, Any]
) -> None:
    provider, generator = await provide(REPLY, turn_of=lambda _: 0)
    agent, storage = await remembering(generator)

    await tell(agent, "who?", thread_id="t", **mode)

    assert sent(provider) == [("user", "I am Ann."), ("assistant", "Hi Ann."), ("user", "who?")]
    assert storage.touched == 2
    assert [m.role for m in await storage.load()] == ["user", "assistant"] * 2


async def test_memory_false_neither_loads_nor_saves(provide: Provide) -> None:
    provider, generator = await provide(REPLY)
    agent, storage = await remembering(generator)
    await tell(agent, "who?", {"memory": False}, thread_id="t")
    assert sent(provider) == [("user", "who?")]
    assert storage.touched == 0


async def test_an_option_that_cannot_be_honoured_is_refused_by_name(provide: Provide) -> None:
    provider, generator = await provide(REPLY)
    with pytest.raises(UnsupportedOption, match=r"options.hooks: ") as refused:
        await tell(agent_over(generator), options={"hooks": ["audit"]})
    assert refused.value.field == "options.hooks"
    assert provider.requests == []


async def test_a_conversation_without_a_message_to_answer_is_refused_before_any_call(
    provide: Provide,
) -> None:
    provider, generator = await provide(REPLY)
    agent = agent_over(generator, instructions="Be kind.")
    for mode in MODES:
        system = to_wire(HaystackMessage.from_system("only this"))
        told = await tell(agent, messages=[system], **mode)
        assert (told.code, told.outcome.model_calls) == ("invalid_request", 0)
        assert told.outcome.error is not None
        assert told.outcome.error.field == "messages"
    assert provider.requests == []


def test_data_that_is_no_image_is_an_invalid_request_and_no_accident() -> None:
    part = {"image": {"base64_image": "UEsDBGFhYWE="}}  # a zip archive, without a media type
    message = parse_message({"role": "user", "content": [{"text": "look"}, part]}, "messages[0]")

    with pytest.raises(InvalidRequest, match="mime_type"):
        from_wire(message)
