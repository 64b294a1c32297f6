"""Headless runs: when tools run, and when an author's own adapter is left alone."""

from typing import Any

import pytest
from haystack.dataclasses import ChatMessage
from pydantic import BaseModel
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, call_turn, tell, text_turn

from hayrunner.adapters.run import Run
from hayrunner.agent import Agent
from hayrunner.storage.memory import InMemoryStorage
from hayrunner_contracts.errors import InvalidRequest, StructuredOutputFailed

TURNS = [call_turn(("add", {"a": 1, "b": 2})), text_turn("It is 3.")]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"sum": {"type": "integer"}}}


class Sum(BaseModel):
    sum: int


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def counting(agent: Agent) -> list[int]:
    """How often the agent's tools were resolved."""
    asked: list[int] = []
    get_tools = agent.get_tools

    def counted(thread_id: str | None = None, user: str | None = None) -> Any:
        asked.append(1)
        return get_tools(thread_id, user)

    agent.get_tools = counted
    return asked


def tools_sent(provider: Any) -> list[bool]:
    return ["tools" in request.body for request in provider.requests]


async def test_with_tools_and_no_form_the_agents_tools_run(provide: Provide) -> None:
    provider, generator = await provide(TURNS)
    agent = agent_over(generator, tools=[add])
    asked = counting(agent)

    assert await agent.run("1+2?", tools=True) == "It is 3."

    assert tools_sent(provider) == [True, True]
    assert asked == [1]


async def test_without_tools_none_are_resolved_or_sent(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator, tools=[add])
    asked = counting(agent)

    assert await agent.run("hi") == "Hello"
    assert (await tell(agent, mode="answer")).outcome.answer == "Hello"

    assert tools_sent(provider) == [False, False]
    assert asked == []


@pytest.mark.parametrize("own", [None, SCHEMA, Sum])
async def test_a_response_format_wins_over_tools(provide: Provide, own: Any) -> None:
    provider, generator = await provide([text_turn('{"sum": 3}')])
    agent = agent_over(generator, tools=[add], response_format=own)
    asked = counting(agent)
    fields: dict[str, Any] = {} if own is not None else {"response_format": SCHEMA}

    told = await tell(agent, mode="answer", tools=True, **fields)

    assert told.outcome.answer == {"sum": 3}
    assert tools_sent(provider) == [False]
    assert asked == []


async def test_null_clears_the_agents_own_format_and_tools_run(provide: Provide) -> None:
    provider, generator = await provide(TURNS)
    agent = agent_over(generator, tools=[add], response_format=SCHEMA)
    told = await tell(agent, mode="answer", tools=True, response_format=None)
    assert told.outcome.answer == "It is 3."
    assert "response_format" not in provider.requests[0].body


async def test_the_agents_own_format_gives_agent_run_an_instance(provide: Provide) -> None:
    _, generator = await provide([text_turn('{"sum": 3}')])
    assert await agent_over(generator, response_format=Sum).run("1+2?") == Sum(sum=3)
    assert await agent_over(generator).run("1+2?", response_format=Sum) == Sum(sum=3)
    assert await agent_over(generator).run("1+2?", response_format=SCHEMA) == {"sum": 3}


async def test_a_reply_that_never_fits_is_a_structured_output_failure(provide: Provide) -> None:
    _, generator = await provide([text_turn("no")])
    agent = agent_over(generator)
    told = await tell(agent, mode="answer", response_format=SCHEMA)
    assert (told.code, told.outcome.answer, told.outcome.model_calls) == (
        "structured_output",
        "no",
        2,
    )
    with pytest.raises(StructuredOutputFailed):
        await agent.run("?", response_format=SCHEMA)


async def test_a_streaming_run_has_its_tools_and_the_form_together(provide: Provide) -> None:
    provider, generator = await provide([TURNS[0], text_turn('{"sum": 3}')])
    agent = agent_over(generator, tools=[add])
    told = await tell(agent, response_format=SCHEMA)
    assert told.outcome.answer == {"sum": 3}
    assert tools_sent(provider) == [True, True]


async def test_a_schema_that_is_none_is_refused_and_its_field_named(provide: Provide) -> None:
    _, generator = await provide([text_turn("{}")])
    with pytest.raises(InvalidRequest) as refused:
        await tell(agent_over(generator), mode="answer", response_format={"type": "nonsense"})
    assert refused.value.field == "response_format"


class Foreign:
    """Not a `Run`, though it looks like one."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[dict[str, Any]] = []

    async def run(
        self, messages: list[ChatMessage], system_prompt: Any = None, response_format: Any = None
    ) -> Any:
        texts = [message.text for message in messages]
        self.calls.append(
            {"texts": texts, "system_prompt": system_prompt, "response_format": response_format}
        )
        return self.answer


@pytest.mark.parametrize("tools", [True, False])
async def test_an_adapter_of_another_kind_is_called_unchanged(
    provide: Provide, tools: bool
) -> None:
    provider, generator = await provide(TURNS)
    foreign = Foreign("my own answer")
    agent = agent_over(generator, tools=[add], instructions="Be kind.")
    agent.get_run_adapter = lambda thread_id=None, user=None: foreign
    asked = counting(agent)

    told = await tell(agent, mode="answer", tools=tools)

    assert told.outcome.answer == "my own answer"
    assert told.roles == ["assistant"]
    assert foreign.calls == [
        {"texts": ["hi"], "system_prompt": "Be kind.", "response_format": None}
    ]
    assert (provider.requests, asked) == ([], [])


async def test_an_adapter_of_another_kind_is_given_the_form(provide: Provide) -> None:
    _, generator = await provide(TURNS)
    foreign = Foreign(Sum(sum=3))
    agent = agent_over(generator, response_format=Sum)
    agent.get_run_adapter = lambda thread_id=None, user=None: foreign

    assert await agent.run("1+2?") == Sum(sum=3)
    told = await tell(agent, mode="answer", response_format=SCHEMA)

    assert told.outcome.answer == {"sum": 3}
    assert [call["response_format"] for call in foreign.calls] == [Sum, SCHEMA]


async def test_an_authors_own_run_adapter_answers_with_its_own_generator(
    provide: Provide,
) -> None:
    main, generator = await provide(TURNS)
    small, cheap = await provide([text_turn("from the small one")])
    agent = agent_over(generator, tools=[add], instructions="Be kind.")
    agent.get_run_adapter = lambda thread_id=None, user=None: Run(
        cheap, model="small", instructions="Be brief."
    )

    assert await agent.run("hi") == "from the small one"
    assert main.requests == []
    assert small.requests[0].body["model"] == "small"
    assert small.requests[0].body["messages"][0]["content"] == "Be brief."

    agent.get_run_adapter = lambda thread_id=None, user=None: Run(cheap)
    await agent.run("hi")
    assert small.requests[1].body["messages"][0]["content"] == "Be kind."

    # With tools it is still the agent's loop.
    assert await agent.run("1+2?", tools=True) == "It is 3."


async def test_agent_run_loads_and_stores_a_thread(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")], turn_of=lambda _: 0)
    storage = InMemoryStorage()
    agent = agent_over(generator)
    agent.get_storage = lambda thread_id: storage if thread_id == "t" else None

    await agent.run("one", thread_id="t")
    await agent.run("two", thread_id="t", tools=True)
    await agent.run("alone")

    texts = [[m["content"] for m in r.body["messages"]] for r in provider.requests]
    assert texts == [["one"], ["one", "Hello", "two"], ["alone"]]
    assert [m.role for m in await storage.load()] == ["user", "assistant"] * 2
