"""Tool calls that wait for a person."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.files import Files, approve, deletes
from tests.unit.agent.going import Going
from tests.unit.agent.runs import agent_over, call_turn, outputs_of, text_turn

from hayrunner.run_inbox import RunInbox
from hayrunner_contracts.commands import Approve, Deny, Modify
from hayrunner_contracts.events import (
    Data,
    StreamEvent,
    ToolApprovalRequest,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
)
from hayrunner_contracts.testing import eventually

MODES: list[dict[str, Any]] = [{"mode": "stream"}, {"mode": "answer", "tools": True}]


@pytest.mark.parametrize("fields", MODES)
async def test_an_approved_call_runs_as_it_was_shown(
    provide: Provide, fields: dict[str, Any]
) -> None:
    provider, generator = await provide([deletes("/a"), text_turn("done")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools()), **fields) as run:
        (asked,) = await run.asks()
        assert (asked.tool_call_id, asked.tool_name) == ("call_0", "delete")
        assert (asked.tool_input, asked.step) == ({"path": "/a"}, 1)
        assert asked.expires_at is not None
        assert asked.expires_at.endswith("Z")
        left = datetime.fromisoformat(asked.expires_at) - datetime.now(UTC)
        assert timedelta(minutes=59) < left <= timedelta(hours=1)
        assert files.done == []
        assert len(provider.requests) == 1

        run.send(approve())
        told = await run.told()

    assert files.done == ["delete /a"]
    assert outputs_of(told.events) == [("deleted /a", False)]
    assert told.outcome.answer == "done"
    assert told.roles == ["assistant", "tool", "assistant"]


async def test_parallel_calls_are_asked_at_once_and_decided_in_any_order(
    provide: Provide,
) -> None:
    _, generator = await provide([deletes("/a", "/b", "/c"), text_turn("done")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools())) as run:
        asked = await run.asks(3)
        assert [one.tool_call_id for one in asked] == ["call_0", "call_1", "call_2"]
        for number in (2, 1):
            run.send(approve(number))
        await asyncio.sleep(0)
        assert files.done == []
        run.send(approve(0))
        told = await run.told()

    assert files.done == ["delete /a", "delete /b", "delete /c"]
    kinds = (ToolInputComplete, ToolApprovalRequest, ToolExecutionCommitted, ToolOutput)
    seen = [(type(e).__name__, e.tool_call_id) for e in told.events if isinstance(e, kinds)]
    ids = ["call_0", "call_1", "call_2"]
    assert seen == [
        *(("ToolInputComplete", one) for one in ids),
        *(("ToolApprovalRequest", one) for one in ids),
        *(pair for i in ids for pair in (("ToolExecutionCommitted", i), ("ToolOutput", i))),
    ]


async def test_siblings_that_need_no_approval_wait_for_those_that_do(provide: Provide) -> None:
    calls = call_turn(("read", {"path": "/r"}), ("delete", {"path": "/a"}))
    _, generator = await provide([calls, text_turn("done")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools(), tool_concurrency=2)) as run:
        (asked,) = await run.asks()
        assert asked.tool_call_id == "call_1"
        assert files.done == []
        run.send(Deny(tool_call_id="call_1"))
        told = await run.told()

    assert files.done == ["read /r"]
    assert [error for _, error in outputs_of(told.events)] == [False, True]


async def test_a_denied_call_has_an_output_only_and_the_model_gets_the_feedback(
    provide: Provide,
) -> None:
    provider, generator = await provide([deletes("/a", "/b"), text_turn("as you wish")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools())) as run:
        await run.asks(2)
        run.send(Deny(tool_call_id="call_0", feedback="It is still needed."), approve(1))
        told = await run.told()

    assert files.done == ["delete /b"]
    (denied, was_error), other = outputs_of(told.events)
    assert denied == "This call was not approved, and was not run. It is still needed."
    assert was_error
    assert other == ("deleted /b", False)
    assert [e.tool_call_id for e in told.of(ToolExecutionCommitted)] == ["call_1"]
    sent = [m["content"] for m in provider.requests[1].body["messages"] if m["role"] == "tool"]
    assert sent == [denied, "deleted /b"]
    assert told.outcome.answer == "as you wish"


async def test_modified_arguments_are_run_and_the_model_is_told(provide: Provide) -> None:
    provider, generator = await provide([deletes("/a"), text_turn("done")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools())) as run:
        await run.asks()
        run.send(Modify(tool_call_id="call_0", tool_input={"path": "/b"}, feedback="Not /a."))
        told = await run.told()

    assert files.done == ["delete /b"]
    assert [e.tool_input for e in told.of(ToolInputComplete)] == [{"path": "/a"}]
    assert [e.tool_input for e in told.of(ToolExecutionCommitted)] == [{"path": "/b"}]
    last = provider.requests[1].body["messages"][-1]
    note = 'Your call of delete was run with other arguments: {"path":"/b"}. Not /a.'
    assert last == {"role": "user", "content": note}
    assert told.roles == ["assistant", "tool", "user", "assistant"]


async def test_feedback_on_an_approval_reaches_the_model_after_the_output(
    provide: Provide,
) -> None:
    provider, generator = await provide([deletes("/a"), text_turn("done")])
    async with Going(agent_over(generator, tools=Files().tools())) as run:
        await run.asks()
        run.send(Approve(tool_call_id="call_0", feedback="The last one today."))
        await run.told()

    roles = [message["role"] for message in provider.requests[1].body["messages"]]
    assert roles == ["user", "assistant", "tool", "user"]
    last = provider.requests[1].body["messages"][-1]["content"]
    assert last == "About your call of delete: The last one today."


async def test_a_modification_that_the_schema_refuses_leaves_the_call_waiting(
    provide: Provide,
) -> None:
    _, generator = await provide([deletes("/a"), text_turn("done")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools())) as run:
        await run.asks()
        run.send(Modify(tool_call_id="call_0", tool_input={"path": 7}))
        await eventually(lambda: run.data("command_refused"), what="the refusal")
        assert files.done == []
        run.send(Modify(tool_call_id="call_0", tool_input={"path": "/b"}))
        told = await run.told()

    (refused,) = run.data("command_refused")
    assert (refused["command"], refused["tool_call_id"]) == ("modify", "call_0")
    assert "do not satisfy the tool's schema: at path" in refused["reason"]
    assert files.done == ["delete /b"]
    assert outputs_of(told.events) == [("deleted /b", False)]


async def test_the_first_decision_counts_and_a_second_one_changes_nothing(
    provide: Provide,
) -> None:
    _, generator = await provide([deletes("/a", "/b"), text_turn("done")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools())) as run:
        await run.asks(2)
        run.send(approve(0), approve(0), Deny(tool_call_id="call_0"))
        await asyncio.sleep(0)
        run.send(Deny(tool_call_id="call_0"), approve(1))
        told = await run.told()
        run.send(approve(0), approve(1))

    assert files.done == ["delete /a", "delete /b"]
    assert run.data("command_refused") == []
    assert len(told.of(ToolOutput)) == 2


async def test_a_decision_on_an_unknown_call_changes_nothing(provide: Provide) -> None:
    _, generator = await provide([deletes("/a"), text_turn("done")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools())) as run:
        await run.asks()
        run.send(approve(5), Deny(tool_call_id="nonsense"))
        await asyncio.sleep(0)
        assert files.done == []
        run.send(approve())
        await run.told()
    assert files.done == ["delete /a"]


async def test_a_decision_that_comes_before_its_request_is_kept_for_it(provide: Provide) -> None:
    _, generator = await provide([deletes("/a", "/b"), text_turn("done")])
    files = Files()
    run = Going(agent_over(generator, tools=files.tools()))
    run.send(Deny(tool_call_id="call_1"), approve(0))
    async with run:
        told = await run.told()

    # Asked about all the same: whoever watches sees what was decided on.
    assert len(told.of(ToolApprovalRequest)) == 2
    assert files.done == ["delete /a"]


async def test_too_many_decisions_on_nothing_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    inbox = RunInbox("run-1")
    for number in range(1_000):
        inbox.take(Deny(tool_call_id=f"call_{number}", feedback="private"))
    assert (await inbox.decision(["call_255"])).tool_call_id == "call_255"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await inbox.decision(["call_256"])
    assert "run-1: a command came too late or too often: deny" in caplog.text
    assert "private" not in caplog.text


async def test_a_call_nobody_decides_on_is_denied_when_time_is_up(provide: Provide) -> None:
    _, generator = await provide([deletes("/a", "/b"), text_turn("then not")])
    files = Files()
    agent = agent_over(generator, tools=files.tools(), approval_timeout_s=0.05)
    run = Going(agent)
    run.send(approve(0))
    async with run:
        told = await run.told()

    assert files.done == ["delete /a"]
    feedback = "This call was not run: it needs an approval, and no decision came within 0.05 s."
    assert outputs_of(told.events) == [("deleted /a", False), (feedback, True)]
    assert told.outcome.answer == "then not"


async def test_a_run_may_end_when_nobody_decides(provide: Provide) -> None:
    provider, generator = await provide([deletes("/a", "/b"), text_turn("never")])
    files = Files()
    agent = agent_over(
        generator, tools=files.tools(), approval_timeout_s=0.05, on_approval_timeout="stop"
    )
    run = Going(agent)
    run.send(approve(0))
    async with run:
        told = await run.told()

    assert files.done == []
    assert (told.code, told.outcome.finish_reason) == ("stopped", "stopped")
    assert told.outcome.error is not None
    assert told.outcome.error.message == (
        "a tool call was not approved: no decision came within 0.05 s"
    )
    assert [error for _, error in outputs_of(told.events)] == [True, True]
    assert told.roles == ["assistant", "tool", "tool"]
    assert len(provider.requests) == 1


async def test_without_a_timeout_the_request_does_not_expire(provide: Provide) -> None:
    _, generator = await provide([deletes("/a"), text_turn("done")])
    agent = agent_over(generator, tools=Files().tools(), approval_timeout_s=None)
    async with Going(agent) as run:
        (asked,) = await run.asks()
        assert asked.expires_at is None
        run.send(approve())
        await run.told()


@pytest.mark.parametrize("fields", MODES)
@pytest.mark.parametrize(
    ("code", "status"), [("cancelled", "cancelled"), ("deadline_exceeded", "failed")]
)
async def test_a_run_that_ends_while_it_waits_has_outputs_for_its_calls(
    provide: Provide, code: Any, status: str, fields: dict[str, Any]
) -> None:
    _, generator = await provide([deletes("/a", "/b"), text_turn("never")])
    files = Files()
    async with Going(agent_over(generator, tools=files.tools()), **fields) as run:
        await run.asks(2)
        run.send(approve(0))
        run.stop(code)
        told = await run.told()

    assert files.done == []
    assert (told.outcome.status, told.code) == (status, code)
    why = f"This call has no result: the run ended first ({code})."
    assert outputs_of(told.events) == [(why, True), (why, True)]
    assert told.of(ToolExecutionCommitted) == []
    assert told.roles == ["assistant", "tool", "tool"]


async def test_in_plain_python_the_inbox_takes_the_decision(provide: Provide) -> None:
    _, generator = await provide([deletes("/a"), text_turn("done")])
    files = Files()
    agent, inbox = agent_over(generator, tools=files.tools()), RunInbox()
    seen: list[StreamEvent] = []
    async for event in agent.stream("hi", inbox=inbox):
        seen.append(event)
        if isinstance(event, ToolApprovalRequest):
            inbox.take(Approve(tool_call_id=event.tool_call_id))
    assert files.done == ["delete /a"]

    inbox = RunInbox()
    inbox.take(approve())
    assert await agent.run("hi", tools=True, inbox=inbox) == "done"
    assert files.done == ["delete /a", "delete /a"]


async def test_where_nobody_can_be_asked_a_call_is_denied_at_once(provide: Provide) -> None:
    provider, generator = await provide([deletes("/a"), text_turn("then not")])
    files = Files()
    agent = agent_over(generator, tools=files.tools())

    assert await agent.run("hi", tools=True) == "then not"

    assert files.done == []
    sent = provider.requests[1].body["messages"][-1]["content"]
    assert sent == (
        "This call was not run: it needs an approval, and nobody can be asked in this run."
    )
    session = Going(agent, mode="answer", tools=True)
    session.session.unattended()
    async with session as run:
        told = await run.told()
    assert told.of(ToolApprovalRequest) == []
    assert [error for _, error in outputs_of(told.events)] == [True]
    assert [e for e in told.of(Data) if e.data_type == "command_refused"] == []
