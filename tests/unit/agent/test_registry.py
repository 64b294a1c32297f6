"""The registry: agents by name, and what cannot be one."""

from typing import Any

import pytest
from haystack import Pipeline
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.generators.chat import MockChatGenerator
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore

from hayrunner.adapted import HaystackAgentAdapter, PipelineAgent
from hayrunner.agent import Agent
from hayrunner.errors import ConfigurationError
from hayrunner.registry import Registry


class Support(Agent):
    name = "support"


class Nameless(Agent):
    pass


def haystack_agent() -> HaystackAgent:
    return HaystackAgent(chat_generator=MockChatGenerator("Hello"))


def pipeline(*names: str) -> Pipeline:
    made = Pipeline()
    for name in names:
        made.add_component(name, MockChatGenerator("Hello"))
    return made


def test_classes_and_instances_are_registered_under_their_own_names() -> None:
    other = Support()
    other.name = "other"
    registry = Registry([Support, other])
    assert registry.names() == ["other", "support"]
    assert registry.get("other") is other
    assert isinstance(registry.get("support"), Support)
    assert len(registry) == 2


def test_haystack_agents_and_pipelines_are_registered_under_a_given_name() -> None:
    registry = Registry()
    alone = Pipeline()
    alone.add_component("agent", haystack_agent())
    registry.add("plain", haystack_agent())
    registry.add("alone", alone)
    registry.add("rag", pipeline("llm"))
    registry.add("mine", Support)
    kinds = [type(registry.get(name)) for name in registry.names()]
    assert kinds == [HaystackAgentAdapter, Support, HaystackAgentAdapter, PipelineAgent]
    assert registry.get("rag").name == "rag"


def test_an_agents_limit_is_said_by_the_agent_or_where_it_is_registered() -> None:
    class Limited(Agent):
        name = "limited"
        max_concurrent_runs = 3

    rag = Pipeline(metadata={"hayrunner": {"max_concurrent_runs": 2}})
    rag.add_component("llm", MockChatGenerator("Hello"))
    registry = Registry([Limited, Support])
    registry.add("other", Limited(), max_concurrent_runs=1)
    registry.add("helper", haystack_agent(), max_concurrent_runs=4)
    registry.add("rag", rag)
    registry.add("free", pipeline("llm"))

    limits = {name: registry.get(name).max_concurrent_runs for name in registry.names()}
    assert limits == {
        "limited": 3,
        "support": None,
        "other": 1,
        "helper": 4,
        "rag": 2,
        "free": None,
    }


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    registry = Registry()
    with pytest.raises(ConfigurationError, match="x: max_concurrent_runs is a number from 1"):
        registry.add("x", haystack_agent(), max_concurrent_runs=limit)
    rag = Pipeline(metadata={"hayrunner": {"max_concurrent_runs": limit}})
    rag.add_component("llm", MockChatGenerator("Hello"))
    with pytest.raises(ConfigurationError, match="x: max_concurrent_runs is a number from 1"):
        registry.add("x", rag)
    assert registry.names() == []


@pytest.mark.parametrize("said", [{"max_runs": 1}, 7])
def test_metadata_that_is_not_understood_is_refused(said: Any) -> None:
    rag = Pipeline(metadata={"hayrunner": said})
    rag.add_component("llm", MockChatGenerator("Hello"))
    with pytest.raises(ConfigurationError, match="knows max_concurrent_runs, and nothing else"):
        Registry().add("rag", rag)


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Registry().get("nobody")


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", ">", "ä", "x" * 129])
def test_a_name_that_is_no_subject_token_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="agent name"):
        Registry().add(name, haystack_agent())


def test_a_class_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="agent name"):
        Registry([Nameless])


def test_a_name_is_given_once() -> None:
    registry = Registry([Support])
    with pytest.raises(ConfigurationError, match="two agents are named 'support'"):
        registry.add("support", haystack_agent())
    assert isinstance(registry.get("support"), Support)


@pytest.mark.parametrize("thing", [None, "agent", 5, object(), MockChatGenerator("x"), dict])
def test_what_is_no_agent_is_refused_with_its_type(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is a hayrunner\.Agent"):
        Registry().add("thing", thing)
    with pytest.raises(ConfigurationError):
        Registry([thing])


def test_a_pipeline_whose_input_nothing_can_fill_is_refused_when_it_is_registered() -> None:
    writing = Pipeline()
    writing.add_component("writer", DocumentWriter(InMemoryDocumentStore()))
    with pytest.raises(ConfigurationError, match=r"writer\.documents is mandatory"):
        Registry().add("writer", writing)


def test_a_haystack_agent_whose_prompt_needs_values_is_refused() -> None:
    asking = HaystackAgent(chat_generator=MockChatGenerator("x"), user_prompt="About {{topic}}:")
    with pytest.raises(ConfigurationError, match="topic"):
        Registry().add("asking", asking)


async def test_an_agent_is_warmed_up_and_closed() -> None:
    registry = Registry()
    registry.add("plain", haystack_agent())
    registry.add("rag", pipeline("llm"))
    for name in registry.names():
        await registry.get(name).warm_up()
        await registry.get(name).close()


def test_an_agent_without_any_model_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAYRUNNER_MODEL", raising=False)
    with pytest.raises(ConfigurationError, match="support has no model"):
        _ = Support().llm
