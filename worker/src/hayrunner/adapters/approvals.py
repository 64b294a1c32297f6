"""Asking people about tool calls, and what becomes of a call that they decided on."""

import asyncio
import copy
import inspect
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from hayrunner.adapters.call_checks import schema_faults
from hayrunner.adapters.context import RunContext
from hayrunner.approvals import is_marked
from hayrunner.errors import ApprovalExpired, HookFailed
from hayrunner.hooks import PendingCall
from hayrunner.run_inbox import Decision
from hayrunner_contracts.commands import COMMAND_REFUSED, Approve, Deny
from hayrunner_contracts.events import Data, ToolApprovalRequest

__all__ = ["Refused", "ask_people", "may_be_asked_about", "needs_approval", "pending_call"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refused:
    """A call that is not run; the text is its output, an error."""

    text: str


def pending_call(call: ToolCall) -> PendingCall:
    """What hooks and policies see of a call: a copy, so that they cannot change it unseen."""
    return PendingCall(
        tool_call_id=call.id or "",
        tool_name=call.tool_name,
        tool_input=copy.deepcopy(call.arguments),
    )


def may_be_asked_about(run: RunContext, tool: Tool) -> bool:
    """Whether some call of this tool may need an approval, whatever its arguments."""
    return run.approvals.policy is not None or _always(run, tool)


def _always(run: RunContext, tool: Tool) -> bool:
    return is_marked(tool) or tool.name in run.approvals.names


async def needs_approval(run: RunContext, call: ToolCall, tool: Tool) -> bool:
    """Whether this call waits for a person. Raises `HookFailed` where the agent's policy fails:
    a broken policy lets nothing through."""
    policy = run.approvals.policy
    if policy is None or _always(run, tool):
        return _always(run, tool)
    try:
        answer: Any = policy(pending_call(call), run.hooks.hook_run())
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        # Policy: fail closed. The exception's text may hold content: the log gets its type.
        ref = uuid.uuid4().hex[:12]
        logger.error("the approval policy raised %s (ref %s)", type(error).__qualname__, ref)
        raise HookFailed(f"the approval policy failed (ref {ref})") from error
    if not isinstance(answer, bool):
        raise HookFailed(f"the approval policy returned {type(answer).__name__}, not a bool")
    return answer


async def ask_people(
    run: RunContext, calls: Sequence[ToolCall], tools: Mapping[str, Tool]
) -> list[ToolCall | Refused]:
    """Ask about all of `calls` at once and wait until each is decided: the calls as they are to
    run, in the same order.

    Where time is up, what is left is denied; `ApprovalExpired` where the agent wants the run to
    end instead.
    """
    rules, loop = run.approvals, asyncio.get_running_loop()
    timeout_s = rules.timeout_s
    if run.inbox is None or not run.inbox.attended:
        return _undecided(run, "nobody can be asked in this run", calls, {})
    ends = None if timeout_s is None else loop.time() + timeout_s
    await run.emit(_requests(run, calls))
    waiting = {call.id or "": call for call in calls}
    decided: dict[str, ToolCall | Refused] = {}
    while waiting:
        try:
            async with asyncio.timeout_at(ends):
                decision = await run.inbox.decision(waiting)
        except TimeoutError:
            for call_id in waiting:
                run.inbox.settle(call_id)
            return _undecided(run, f"no decision came within {timeout_s:g} s", calls, decided)
        call = waiting[decision.tool_call_id]
        outcome, fault = _decide(run, decision, call, tools[call.tool_name])
        if fault is not None:
            await run.emit([_refusal(run, decision, fault)])
            continue
        decided[decision.tool_call_id] = outcome
        del waiting[decision.tool_call_id]
        run.inbox.settle(decision.tool_call_id)
    return [decided[call.id or ""] for call in calls]


def _requests(run: RunContext, calls: Sequence[ToolCall]) -> list[ToolApprovalRequest]:
    timeout_s = run.approvals.timeout_s
    expires_at = None
    if timeout_s is not None:
        moment = datetime.fromtimestamp(time.time() + timeout_s, UTC)
        expires_at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [
        ToolApprovalRequest(
            tool_call_id=call.id or "",
            tool_name=call.tool_name,
            tool_input=copy.deepcopy(call.arguments),
            expires_at=expires_at,
            step=run.normalizer.step,
        )
        for call in calls
    ]


def _undecided(
    run: RunContext,
    why: str,
    calls: Sequence[ToolCall],
    decided: Mapping[str, ToolCall | Refused],
) -> list[ToolCall | Refused]:
    if run.approvals.on_timeout == "stop":
        raise ApprovalExpired(f"a tool call was not approved: {why}", messages=run.new_messages)
    refused = Refused(f"This call was not run: it needs an approval, and {why}.")
    return [decided.get(call.id or "", refused) for call in calls]


def _decide(
    run: RunContext, decision: Decision, call: ToolCall, tool: Tool
) -> tuple[ToolCall | Refused, str | None]:
    """What becomes of the call, and what is wrong with the decision, if anything is."""
    if isinstance(decision, Deny):
        feedback = f" {decision.feedback}" if decision.feedback else ""
        return Refused(f"This call was not approved, and was not run.{feedback}"), None
    if isinstance(decision, Approve):
        if decision.feedback:
            run.notes.append(f"About your call of {call.tool_name}: {decision.feedback}")
        return call, None
    if (faults := schema_faults(tool, decision.tool_input)) is not None:
        return call, f"the arguments do not satisfy the tool's schema: {faults}"
    changed = msgspec.json.encode(decision.tool_input).decode()
    feedback = f" {decision.feedback}" if decision.feedback else ""
    run.notes.append(
        f"Your call of {call.tool_name} was run with other arguments: {changed}.{feedback}"
    )
    arguments = copy.deepcopy(decision.tool_input)
    return (
        ToolCall(tool_name=call.tool_name, arguments=arguments, id=call.id, extra=call.extra),
        None,
    )


def _refusal(run: RunContext, decision: Decision, reason: str) -> Data:
    kind = type(decision).__struct_config__.tag
    told = {"command": kind, "tool_call_id": decision.tool_call_id, "reason": reason}
    return Data(data_type=COMMAND_REFUSED, data=told, step=run.normalizer.step)
