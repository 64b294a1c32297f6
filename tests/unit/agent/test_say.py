"""Messages that a user sends while a run goes on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.going import Going
from tests.unit.agent.runs import Told, agent_over, call_turn, chunk, text_turn

from hayrunner.adapters.convert import from_wire
from hayrunner.hooks import HookRun, ModelCall, Patch, RunHooks, Stop
from hayrunner_contracts.commands import Say
from hayrunner_contracts.events import Data, ModelCallEnd
from hayrunner_contracts.testing import eventually

MODES: list[dict[str, Any]] = [{"mode": "stream"}, {"mode": "answer", "tools": True}]
Element = dict[str, Any]


def texts(told: Told) -> list[str | None]:
    return [from_wire(message).text for message in told.outcome.messages]


@pytest.mark.parametrize("fields", MODES)
async def test_what_is_said_while_a_tool_runs_is_part_of_the_next_model_call(
    provide: Provide, fields: dict[str, Any]
) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        """Looks."""
        going.set()
        await go.wait()
        return "seen"

    provider, generator = await provide([call_turn(("look", {})), text_turn("done")])
    async with Going(agent_over(generator, tools=[look]), **fields) as run:
        await asyncio.wait_for(going.wait(), 5)
        run.send(Say(text="Hurry."), Say(text="Please."))
        go.set()
        told = await run.told()

    sent = provider.requests[1].body["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "user", "user"]
    assert [m["content"] for m in sent[-2:]] == ["Hurry.", "Please."]
    assert told.roles == ["assistant", "tool", "user", "user", "assistant"]
    said = [event for event in told.of(Data) if event.data_type == "said"]
    assert [(e.data, e.step) for e in said] == [({"text": "Hurry."}, 2), ({"text": "Please."}, 2)]


async def test_what_is_said_before_the_first_model_call_is_part_of_it(provide: Provide) -> None:
    provider, generator = await provide([text_turn("done")])
    run = Going(agent_over(generator))
    run.send(Say(text="In French."))
    async with run:
        told = await run.told()
    assert [m["content"] for m in provider.requests[0].body["messages"]] == ["hi", "In French."]
    assert len(provider.requests) == 1
    assert told.roles == ["user", "assistant"]


def held(hold: asyncio.Event) -> Any:
    """A provider whose first answer waits in its middle."""

    async def first() -> AsyncIterator[Element]:
        yield chunk({"content": "It is"})
        await hold.wait()
        for element in text_turn(" seven."):
            yield element

    def answer(body: dict[str, Any]) -> Any:
        said = any(message["content"] == "In roman." for message in body["messages"])
        return text_turn("VII.") if said else first()

    return answer


@pytest.mark.parametrize("fields", MODES)
async def test_what_is_said_while_the_answer_comes_is_answered_too(
    provide: Provide, fields: dict[str, Any]
) -> None:
    hold = asyncio.Event()
    provider, generator = await provide(held(hold))
    async with Going(agent_over(generator), **fields) as run:
        await eventually(lambda: provider.requests, what="the model call")
        run.send(Say(text="In roman."))
        hold.set()
        told = await run.told()

    assert texts(told) == ["It is seven.", "In roman.", "VII."]
    assert (told.outcome.answer, told.outcome.finish_reason) == ("VII.", "stop")
    assert told.outcome.model_calls == len(told.of(ModelCallEnd)) == 2


async def test_an_answer_stands_where_no_further_model_call_may_be_made(provide: Provide) -> None:
    hold = asyncio.Event()
    provider, generator = await provide(held(hold))
    async with Going(agent_over(generator), {"max_turns": 1}) as run:
        await eventually(lambda: provider.requests, what="the model call")
        run.send(Say(text="In roman."))
        hold.set()
        told = await run.told()

    assert (told.outcome.status, told.outcome.answer) == ("completed", "It is seven.")
    assert run.data("said") == []
    reason = "the run may make no further model call"
    assert run.data("command_refused") == [{"command": "say", "reason": reason}]


async def test_what_is_said_beyond_max_turns_is_not_left_without_an_answer_in_history(
    provide: Provide,
) -> None:
    async def look() -> str:
        """Looks."""
        run.send(Say(text="Hurry."))
        return "seen"

    _, generator = await provide([call_turn(("look", {})), text_turn("never")])
    async with Going(agent_over(generator, tools=[look]), {"max_turns": 1}) as run:
        told = await run.told()
    assert (told.code, told.roles) == ("max_turns", ["assistant", "tool"])
    assert run.data("said") == []


async def test_a_run_that_a_hook_ends_does_not_go_on_for_what_was_said(provide: Provide) -> None:
    class Closes(RunHooks):
        async def on_model_call(self, run: HookRun, call: ModelCall) -> Patch | Stop | None:
            going.send(Say(text="Wait!"))
            return Stop("closing time")

    provider, generator = await provide([text_turn("never")])
    async with Going(agent_over(generator, hooks=[Closes()])) as going:
        told = await going.told()
    assert (told.code, provider.requests) == ("stopped", [])


async def test_what_is_said_after_the_end_is_ignored(provide: Provide) -> None:
    _, generator = await provide([text_turn("done")])
    async with Going(agent_over(generator)) as run:
        told = await run.told()
        run.send(Say(text="One more thing."))
    assert run.data("said") == []
    assert told.roles == ["assistant"]
