"""Runs that go on in another attempt: parked, cancelled meanwhile, over already."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.agents.state import State
from haystack.tools import tool
from tests.unit.agent.conftest import Provide
from tests.unit.agent.kept import (
    RAN,
    Case,
    Steps,
    Turns,
    add_context,
    attempt,
    build,
    built,
    count,
    framed,
    look,
    told,
    with_ids,
)
from tests.unit.agent.runs import MESSAGE_ID, agent_over, call_turn, request, text_turn

from hayrunner.adapted import HaystackAgentAdapter
from hayrunner.adapters.outcome import RunParked
from hayrunner.agent import Agent
from hayrunner.storage.memory import InMemoryThreads
from hayrunner_contracts.commands import Approve
from hayrunner_contracts.events import (
    RunResumed,
    StreamEvent,
    ToolApprovalRequest,
)
from hayrunner_contracts.following import MessageBuilder


def adapted(generator: Any, **more: Any) -> Agent:
    """A Haystack Agent with a State of its own, registered as it is."""
    return HaystackAgentAdapter("support", HaystackAgent(chat_generator=generator, **more))


def looked(*queries: str) -> Turns:
    return with_ids([*(call_turn(("look", {"query": q})) for q in queries), text_turn("done")])


async def test_what_an_author_keeps_in_the_state_is_there_again(provide: Provide) -> None:
    turns = with_ids(
        [call_turn(("count", {"by": 2})), call_turn(("count", {"by": 3})), text_turn("done")]
    )
    _, generator = await provide(turns)
    schema = {"total": {"type": int}}
    RAN.clear()
    first = Steps(ran=RAN)
    agent = adapted(generator, tools=[count], state_schema=schema)
    await attempt(agent, Case([]), first)
    for kept in first.kept:
        steps = Steps(found=kept.data)
        again = adapted(generator, tools=[count], state_schema=schema)
        outcome = await attempt(again, Case([]), steps)
        results = [
            part.tool_call_result.result
            for message in outcome.messages
            for part in message.content
            if part.tool_call_result
        ]
        assert results == ["2", "5"]


async def test_a_state_that_cannot_be_kept_is_told_and_the_run_goes_on_without_checkpoints(
    provide: Provide, caplog: pytest.LogCaptureFixture
) -> None:
    _, generator = await provide(with_ids([call_turn(("mark", {})), text_turn("done")]))

    @tool
    def mark(state: State) -> str:
        """Put something into the State that has no form."""
        state.set("thing", object())
        return "ok"

    first = Steps()
    agent = adapted(generator, tools=[mark], state_schema={"thing": {"type": object}})
    outcome = await attempt(agent, Case([]), first)
    assert outcome.answer == "done"
    assert [kept.phase for kept in first.kept] == ["called"]
    assert "the key thing of its State cannot be kept" in caplog.text


async def test_a_run_that_a_tool_ended_is_over_in_the_next_attempt_too(provide: Provide) -> None:
    provider, generator = await provide(looked("a"))
    RAN.clear()
    first = Steps(ran=RAN)
    outcome = await attempt(
        adapted(generator, tools=[look], exit_conditions=["look"]), Case([]), first
    )
    assert [kept.phase for kept in first.kept] == ["called", "exited"]
    again = await attempt(
        adapted(generator, tools=[look], exit_conditions=["look"]),
        Case([]),
        Steps(found=first.kept[-1].data),
    )
    assert (again.finish_reason, told(again)) == ("tool", told(outcome))
    assert (len(RAN), len(provider.requests)) == (1, 1)


async def test_before_run_hooks_do_not_add_their_messages_twice(provide: Provide) -> None:
    provider, generator = await provide(looked("a", "b"))
    first = Steps()
    hooks: Any = {"before_run": [add_context]}
    await attempt(adapted(generator, tools=[look], hooks=hooks), Case([]), first)
    await attempt(
        adapted(generator, tools=[look], hooks=hooks),
        Case([]),
        Steps(found=first.kept[1].data),
    )
    assert [m.get("content") for m in provider.requests[-1].body["messages"]].count("context") == 1


async def test_a_waiting_run_is_parked_and_goes_on_with_the_decision_without_asking_again(
    provide: Provide,
) -> None:
    turns = with_ids(
        [call_turn(("look", {"query": "a"}), ("look", {"query": "b"})), text_turn("k")]
    )
    _, generator = await provide(turns)
    case = Case(turns, agent={"approvals": ["look"]})
    RAN.clear()
    first = Steps(park_after_s=0.02)
    with pytest.raises(RunParked) as parked:
        await attempt(build(generator, case), case, first)
    asked = [event for event in first.events if isinstance(event, ToolApprovalRequest)]
    assert (len(asked), RAN) == (2, [])
    assert parked.value.wake_at is not None
    assert [kept.phase for kept in first.kept] == ["called", "called"]

    case = replace(case, commands=[Approve(tool_call_id=call.tool_call_id) for call in asked])
    second = Steps(found=first.kept[-1].data, park_after_s=30)
    outcome = await attempt(build(generator, case), case, second)
    assert (outcome.answer, len(RAN)) == ("k", 2)
    assert not [event for event in second.events if isinstance(event, ToolApprovalRequest)]
    resumed = RunResumed(attempt=2, discard_after=first.kept[-1].events + 1)
    built(framed([*first.events, resumed, *second.events]))


async def test_a_parked_run_is_parked_again_until_its_time_is_up(provide: Provide) -> None:
    turns = with_ids([call_turn(("look", {"query": "a"})), text_turn("k")])
    _, generator = await provide(turns)
    case = Case(turns, agent={"approvals": ["look"]})
    first = Steps(park_after_s=0.01)
    with pytest.raises(RunParked) as parked:
        await attempt(build(generator, case), case, first)
    second = Steps(found=first.kept[-1].data, park_after_s=0.01)
    with pytest.raises(RunParked) as again:
        await attempt(build(generator, case), case, second)
    assert again.value.wake_at == parked.value.wake_at

    found = msgspec.json.decode(first.kept[-1].data)
    found["asked"][0]["expires_at"] = 1.0
    RAN.clear()
    third = Steps(found=msgspec.json.encode(found), park_after_s=0.01)
    outcome = await attempt(build(generator, case), case, third)
    assert (outcome.answer, RAN) == ("k", [])


async def test_a_parked_run_that_is_cancelled_closes_what_it_had_open(provide: Provide) -> None:
    turns = with_ids([call_turn(("look", {"query": "a"})), text_turn("k")])
    provider, generator = await provide(turns)
    case = Case(turns, agent={"approvals": ["look"]})
    first = Steps(park_after_s=0.01)
    with pytest.raises(RunParked):
        await attempt(build(generator, case), case, first)
    second = Steps(found=first.kept[-1].data)
    session = build(generator, case).open_session(
        request("hi"), message_id=MESSAGE_ID, sink=second, agent_name="support"
    )
    session.durable(second)
    session.stop("cancelled", "the run was cancelled")
    outcome = await session.run()
    assert (outcome.status, outcome.model_calls, len(provider.requests)) == ("cancelled", 1, 1)
    assert [message.role for message in outcome.messages] == ["assistant", "tool"]
    resumed = RunResumed(attempt=2, discard_after=first.kept[-1].events + 1)
    events = framed([*first.events, resumed, *second.events])
    assert [is_error for _, _, is_error in outputs(events)] == [True]


async def test_memory_is_written_once_as_the_first_attempt_that_ended_had_it(
    provide: Provide,
) -> None:
    provider, generator = await provide([text_turn("first"), text_turn("second")])
    threads = InMemoryThreads()
    agent = agent_over(generator)
    agent.threads = threads
    first = Steps()
    case = Case([], fields={"thread_id": "t"})
    outcome = await attempt(agent, case, first)
    assert [kept.phase for kept in first.kept] == ["ended"]

    second = Steps(found=first.kept[-1].data)
    again = await attempt(agent, case, second)
    assert told(again) == told(outcome)
    assert len(provider.requests) == 1
    stored = await threads.thread("t", agent="support").load()
    assert [message.role for message in stored] == ["user", "assistant"]
    assert [type(event).__name__ for event in second.events] == ["MessageEnd"]


async def test_a_checkpoint_of_another_form_starts_the_run_over(
    provide: Provide, caplog: pytest.LogCaptureFixture
) -> None:
    _, generator = await provide(looked("a"))
    for found in (b'{"version":99,"phase":"settled"}', b'{"phase":', b"[]"):
        outcome = await attempt(build(generator, Case([])), Case([]), Steps(found=found))
        assert outcome.answer == "done"
    assert caplog.text.count("starts over") == 3


def outputs(events: list[StreamEvent]) -> list[tuple[str, Any, bool]]:
    """What came of each call that counts, with `discard_after` followed."""
    message = MessageBuilder()
    for event in events:
        message.add(event)
    return [(call.tool_name, call.output, bool(call.is_error)) for call in message.tool_calls]


async def test_a_tool_is_not_begun_where_the_run_is_another_workers(provide: Provide) -> None:
    calls = call_turn(("look", {"query": "a"}), ("look", {"query": "b"}))
    _, generator = await provide(with_ids([calls, text_turn("never")]))
    RAN.clear()
    asked = asyncio.Event()

    class Lost(Steps):
        async def confirm(self) -> None:
            if RAN:
                asked.set()
                await asyncio.Event().wait()

    steps = Lost()
    running = asyncio.ensure_future(attempt(build(generator, Case([])), Case([]), steps))
    await asyncio.wait_for(asked.wait(), 10)
    assert [name for name, *_ in RAN] == ["look"]
    running.cancel()
    await asyncio.wait([running])
    assert [kept.phase for kept in steps.kept] == ["called"]
