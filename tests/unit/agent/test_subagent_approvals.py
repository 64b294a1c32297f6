"""Approvals that subagents ask for, and what is said to a run that waits for one."""

from tests.unit.agent.conftest import Provide
from tests.unit.agent.files import Files, deletes
from tests.unit.agent.going import Going
from tests.unit.agent.runs import agent_over, call_turn, outputs_of, text_turn

from hayrunner_contracts.commands import Approve, Deny, Say
from hayrunner_contracts.events import ToolApprovalRequest, ToolExecutionCommitted

ASK = call_turn(("cleaner", {"task": "clean"}))


async def test_a_subagents_call_is_decided_on_in_the_run_that_called_it(provide: Provide) -> None:
    both = call_turn(("cleaner", {"task": "left"}), ("cleaner", {"task": "right"}))
    _, parent = await provide([both, text_turn("ok")])
    _, child = await provide([deletes("/a"), text_turn("clean")])
    files = Files()
    cleaner = agent_over(child, tools=files.tools())
    cleaner.name = "cleaner"

    async with Going(agent_over(parent, subagents=[cleaner], tool_concurrency=2)) as run:
        first, second = await run.asks(2)
        assert (first.agent, first.tool_name, first.step) == ("cleaner", "delete", 1)
        assert first.tool_call_id != second.tool_call_id
        run.send(Deny(tool_call_id=second.tool_call_id), Approve(tool_call_id=first.tool_call_id))
        told = await run.told()

    assert files.done == ["delete /a"]
    assert [is_error for _, is_error in outputs_of(told.events)].count(True) == 1
    (committed,) = (e for e in told.of(ToolExecutionCommitted) if e.agent)
    assert committed.tool_call_id == first.tool_call_id


async def test_what_is_said_meanwhile_is_for_the_run_and_not_for_its_subagent(
    provide: Provide,
) -> None:
    parent_side, parent = await provide([ASK, text_turn("ok")])
    child_side, child = await provide([deletes("/a"), text_turn("clean")])
    cleaner = agent_over(child, tools=Files().tools())
    cleaner.name = "cleaner"

    async with Going(agent_over(parent, subagents=[cleaner])) as run:
        (asked,) = await run.asks()
        run.send(Say(text="And be quick."), Approve(tool_call_id=asked.tool_call_id))
        told = await run.told()

    assert "And be quick." in str(parent_side.requests[1].body["messages"])
    assert not any("And be quick." in str(r.body["messages"]) for r in child_side.requests)
    assert len(told.of(ToolApprovalRequest)) == 1


async def test_a_subagent_itself_may_need_an_approval(provide: Provide) -> None:
    _, parent = await provide([ASK, text_turn("ok")])
    child_side, child = await provide([text_turn("clean")])
    cleaner = agent_over(child)
    cleaner.name = "cleaner"

    async with Going(agent_over(parent, subagents=[cleaner], approvals=["cleaner"])) as run:
        (asked,) = await run.asks()
        assert child_side.requests == []
        run.send(Approve(tool_call_id=asked.tool_call_id))
        told = await run.told()

    assert outputs_of(told.events) == [("clean", False)]
