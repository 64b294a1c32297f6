"""Subagents on other workers: real agents over scripted providers, real workers, a real bus."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from haystack.utils import Secret
from tests.integration.worker.conftest import Requester, Serving, kinds
from tests.unit.agent.runs import agent_over, call_turn, text_turn

from hayrunner import SuggestionGenerator
from hayrunner.agent import Agent
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.testing.provider import Scenario, ScriptedProvider
from hayrunner_contracts.events import Suggestion, ToolCallStart, ToolOutput
from hayrunner_contracts.testing import assert_valid_stream, eventually

ASK = call_turn(("researcher", {"task": "find it"}))
Provide = Callable[[Scenario], Awaitable[tuple[ScriptedProvider, Any]]]


def look_up(name: str) -> str:
    """Looks a thing up."""
    return f"{name} is blue"


def named(generator: Any, name: str, **settings: Any) -> Agent:
    agent = agent_over(generator, **settings)
    agent.name = name
    return agent


@pytest.fixture
async def provide() -> AsyncIterator[Provide]:
    async with AsyncExitStack() as stack:

        async def start(scenario: Scenario) -> tuple[ScriptedProvider, Any]:
            provider = await stack.enter_async_context(ScriptedProvider(scenario))
            generator = OpenAICompatibleChatGenerator(
                model="m",
                api_key=Secret.from_token("key"),
                api_base_url=provider.base_url,
                max_retries=0,
            )
            stack.push_async_callback(generator.close_async)
            return provider, generator

        yield start


async def test_a_subagent_on_another_worker_is_one_coherent_stream(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    _, parent = await provide([ASK, text_turn("It is blue.")])
    child_side, child = await provide(
        [call_turn(("look_up", {"name": "tea"}), text="Hm."), text_turn("Blue", " tea")]
    )
    await serving(named(parent, "support", subagents=["researcher"]))
    await serving(named(child, "researcher", tools=[look_up]))

    message_id = await requester.publish(
        user="ann", options={"tool_context": {"tenant": 7}, "token_budget": 1_000}
    )
    result = await requester.ended(message_id)

    events = await requester.stored_events(message_id)
    assert_valid_stream(events)
    starts = [(e.tool_name, e.agent) for e in events if isinstance(e, ToolCallStart)]
    assert starts == [("researcher", None), ("look_up", "researcher")]
    outputs = [(e.agent, e.tool_output) for e in events if isinstance(e, ToolOutput)]
    assert outputs == [("researcher", "tea is blue"), (None, "Blue tea")]
    assert kinds(events).count("text_chunk") == 1
    assert (result.status, result.answer) == ("completed", "It is blue.")
    assert (result.model_calls, result.usage and result.usage.total_tokens) == (4, 60)
    assert len(child_side.requests) == 2
    # The run over there is one of its own, and says whose.
    (other,) = set(requester.results) - {message_id}
    told = requester.results[other][0]
    assert told.agent == "researcher"
    assert told.metadata == {"hayrunner_subagent_path": "support"}
    assert_valid_stream(await requester.stored_events(other))


async def test_cancelling_the_parent_cancels_the_run_on_the_other_worker(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    _, parent = await provide([ASK])
    child_side, child = await provide(
        [call_turn(("look_up", {"name": "tea"})), [*text_turn("Bl")[:1], {"$hang": True}]]
    )
    await serving(named(parent, "support", subagents=["researcher"]))
    await serving(named(child, "researcher", tools=[look_up]))
    message_id = await requester.publish()
    await eventually(
        lambda: len(child_side.requests) == 2 and child_side.requests[1].emitted,
        what="the child's second call",
    )

    await requester.cancel(message_id)

    result = await requester.ended(message_id)
    assert result.status == "cancelled"
    await eventually(lambda: child_side.disconnects, what="the end of the child's model call")
    assert_valid_stream(await requester.stored_events(message_id))
    (other,) = set(requester.events) - {message_id}
    told = await requester.ended(other)
    assert (told.agent, told.status) == ("researcher", "cancelled")


async def test_the_parents_deadline_ends_both(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    _, parent = await provide([ASK])
    child_side, child = await provide([[*text_turn("Bl")[:1], {"$hang": True}]])
    await serving(named(parent, "support", subagents=["researcher"]))
    await serving(named(child, "researcher"))
    message_id = await requester.publish(timeout_s=1.0)

    result = await requester.ended(message_id)

    assert result.error is not None
    assert result.error.code == "deadline_exceeded"
    await eventually(lambda: child_side.disconnects, what="the end of the child's model call")


async def test_an_agent_nobody_ever_served_is_a_tool_error(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    _, parent = await provide([ASK, text_turn("Sorry.")])
    await serving(named(parent, "support", subagents=["researcher"]))
    message_id = await requester.publish()
    result = await requester.ended(message_id)
    assert (result.status, result.answer) == ("completed", "Sorry.")
    events = await requester.stored_events(message_id)
    (output,) = [event for event in events if isinstance(event, ToolOutput)]
    assert output.is_error
    assert "(unknown_agent)" in str(output.tool_output)


async def test_agents_that_would_ask_each_other_over_the_bus_do_not(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    _, first = await provide([ASK, text_turn("ok")])
    second_side, second = await provide(
        [call_turn(("support", {"task": "t"})), text_turn("Alone.")]
    )
    await serving(named(first, "support", subagents=["researcher"]))
    await serving(named(second, "researcher", subagents=["support"]))

    message_id = await requester.publish()

    result = await requester.ended(message_id)
    assert result.answer == "ok"
    refusal = second_side.requests[1].body["messages"][-1]["content"]
    assert "was not asked" in refusal
    assert len(requester.results) == 2


async def test_a_subagent_on_the_same_worker_needs_no_bus(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    _, parent = await provide([ASK, text_turn("It is blue.")])
    _, child = await provide([call_turn(("look_up", {"name": "tea"})), text_turn("Blue tea")])
    await serving(
        named(parent, "support", subagents=["researcher"]),
        named(child, "researcher", tools=[look_up]),
    )
    message_id = await requester.publish()
    result = await requester.ended(message_id)
    assert (result.answer, result.model_calls) == ("It is blue.", 4)
    assert_valid_stream(await requester.stored_events(message_id))
    assert list(requester.results) == [message_id]


async def test_suggestions_are_published_between_message_end_and_stream_end(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    _, generator = await provide([text_turn('["When?", "Where?"]')])
    await serving(named(generator, "support", suggestion_generator=SuggestionGenerator()))
    message_id = await requester.publish()
    await requester.ended(message_id)
    events = await requester.stored_events(message_id)
    assert_valid_stream(events)
    assert kinds(events)[-3:] == ["message_end", "suggestion", "stream_end"]
    assert [e.suggestions for e in events if isinstance(e, Suggestion)] == [["When?", "Where?"]]

    headless = await requester.publish(mode="answer", tools=True)
    await requester.ended(headless)
    assert "suggestion" not in kinds(await requester.stored_events(headless))


async def test_a_caller_that_goes_on_elsewhere_finds_the_run_it_asked_for(
    provide: Provide, serving: Serving, requester: Requester
) -> None:
    gate: dict[str, Any] = {}

    async def slow() -> AsyncIterator[Any]:
        first, *rest = text_turn("Blue", " tea")
        yield first
        gate["begun"] = True
        while "open" not in gate:
            yield {"$sleep": 0.02}
        for piece in rest:
            yield piece

    _, parent = await provide([ASK, text_turn("It is blue.")])
    child_side, child = await provide(lambda _: slow())
    await serving(named(child, "researcher"))
    first = await serving(
        named(parent, "support", subagents=["researcher"]), drain_timeout_s=0.0, worker_id="first"
    )
    message_id = await requester.publish()
    await eventually(lambda: "begun" in gate, what="the run over there")
    leaving = asyncio.create_task(first.shutdown())
    await serving(named(parent, "support", subagents=["researcher"]), worker_id="second")
    await leaving
    gate["open"] = True

    result = await requester.ended(message_id)
    assert (result.status, result.answer, result.attempts) == ("completed", "It is blue.", 1)
    events = await requester.stored_events(message_id)
    assert_valid_stream(events)
    assert "run_resumed" in kinds(events)
    assert len(child_side.requests) == 1
    assert len(requester.results) == 2
    assert [e.tool_output for e in events if isinstance(e, ToolOutput)][-1] == "Blue tea"
