"""Calls that wait for a person: which ones, how they are asked about, what each decision does."""

from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.unit.agent.files import Files, approve, deletes
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.hooks import HookRun, PendingCall
from hayrunner_contracts.commands import Deny, Modify
from hayrunner_contracts.events import ToolApprovalRequest, ToolExecutionCommitted, ToolOutput

TURNS = [deletes("/a"), text_turn("done")]


async def test_a_tool_marked_requires_approval_yields_a_request_and_waits(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(TURNS, kind)
    files = Files()
    run = await driver.start(agent_over(generator, tools=files.tools()))
    await run.shows(ToolApprovalRequest)
    [asked] = run.of(ToolApprovalRequest)
    assert (asked.tool_call_id, asked.tool_name, asked.tool_input) == (
        "call_0",
        "delete",
        {"path": "/a"},
    )
    assert (files.done, len(provider.requests)) == ([], 1)
    await run.send(approve())
    told = await run.told()
    assert (told.answer, files.done) == ("done", ["delete /a"])


async def test_other_tools_are_not_asked_about(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([call_turn(("read", {"path": "/a"})), text_turn("done")])
    files = Files()
    told = await driver.tell(agent_over(generator, tools=files.tools()))
    assert (told.of(ToolApprovalRequest), files.done) == ([], ["read /a"])


def by_method(_: Any, call: PendingCall, run: HookRun) -> bool:
    return call.tool_input["path"] == "/secret"


async def by_coroutine(_: Any, call: PendingCall, run: HookRun) -> bool:
    return by_method(_, call, run)


@pytest.mark.parametrize("policy", [by_method, by_coroutine])
async def test_a_call_matched_by_a_policy_yields_a_request(
    driver: Driver, provide: Provide, agent_over: AgentOver, policy: Any
) -> None:
    calls = call_turn(("read", {"path": "/open"}), ("read", {"path": "/secret"}))
    _, generator = await provide([calls, text_turn("done")])
    files = Files()
    run = await driver.start(agent_over(generator, tools=files.tools(), approval_policy=policy))
    await run.shows(ToolApprovalRequest)
    await run.send(approve(1))
    told = await run.told()
    assert [asked.tool_call_id for asked in told.of(ToolApprovalRequest)] == ["call_1"]
    assert files.done == ["read /open", "read /secret"]


async def test_a_tool_named_in_approvals_yields_a_request(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([call_turn(("read", {"path": "/a"})), text_turn("done")])
    files = Files()
    run = await driver.start(agent_over(generator, tools=files.tools(), approvals=["read"]))
    await run.shows(ToolApprovalRequest)
    assert files.done == []
    await run.send(approve())
    assert ((await run.told()).answer, files.done) == ("done", ["read /a"])


async def test_on_approve_the_run_continues_with_the_call_as_it_was_shown(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(TURNS)
    run = await driver.start(agent_over(generator, tools=Files().tools()))
    await run.shows(ToolApprovalRequest)
    await run.send(approve())
    told = await run.told()
    assert told.tool_results == [("call_0", "deleted /a", False)]
    assert (told.roles, told.answer) == (["assistant", "tool", "assistant"], "done")
    if driver.streams:
        assert [e.tool_input for e in told.of(ToolExecutionCommitted)] == [{"path": "/a"}]


async def test_on_deny_the_run_continues_with_the_feedback_in_the_calls_place(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(TURNS)
    files = Files()
    run = await driver.start(agent_over(generator, tools=files.tools()))
    await run.shows(ToolApprovalRequest)
    await run.send(Deny(tool_call_id="call_0", feedback="It is still needed."))
    told = await run.told()
    denied = "This call was not approved, and was not run. It is still needed."
    assert told.tool_results == [("call_0", denied, True)]
    assert provider.requests[1].body["messages"][-1]["content"] == denied
    assert (told.answer, files.done) == ("done", [])
    # Its output is all there is of it.
    assert told.of(ToolExecutionCommitted) == []
    assert len(told.of(ToolOutput)) == int(driver.streams)


async def test_on_modify_the_run_continues_with_other_arguments_and_the_model_is_told(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(TURNS)
    files = Files()
    run = await driver.start(agent_over(generator, tools=files.tools()))
    await run.shows(ToolApprovalRequest)
    await run.send(Modify(tool_call_id="call_0", tool_input={"path": "/b"}, feedback="Not /a."))
    told = await run.told()
    assert (told.answer, files.done) == ("done", ["delete /b"])
    assert told.tool_results == [("call_0", "deleted /b", False)]
    note = 'Your call of delete was run with other arguments: {"path":"/b"}. Not /a.'
    assert provider.requests[1].body["messages"][-1]["content"] == note
    if driver.streams:
        assert [e.tool_input for e in told.of(ToolExecutionCommitted)] == [{"path": "/b"}]


async def test_several_pending_calls_are_asked_at_once_and_decided_in_any_order(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([deletes("/a", "/b", "/c"), text_turn("done")])
    files = Files()
    run = await driver.start(agent_over(generator, tools=files.tools()))
    await run.shows(ToolApprovalRequest, 3)
    assert [one.tool_call_id for one in run.of(ToolApprovalRequest)] == [
        f"call_{number}" for number in range(3)
    ]
    assert files.done == []
    await run.send(approve(2), Deny(tool_call_id="call_1"), approve(0))
    told = await run.told()
    assert files.done == ["delete /a", "delete /c"]
    assert [(call, is_error) for call, _, is_error in told.tool_results] == [
        ("call_0", False),
        ("call_1", True),
        ("call_2", False),
    ]


async def test_a_run_that_waits_can_be_cancelled_and_its_history_is_valid(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([deletes("/a", "/b"), text_turn("never")])
    files = Files()
    run = await driver.start(agent_over(generator, tools=files.tools()))
    await run.shows(ToolApprovalRequest, 2)
    await run.send(approve(0))
    await run.cancel()
    told = await run.told()
    assert (told.result.status, files.done) == ("cancelled", [])
    assert [is_error for *_, is_error in told.tool_results] == [True, True]
