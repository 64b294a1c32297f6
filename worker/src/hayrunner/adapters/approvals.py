"""Asking people about tool calls, and what becomes of a call that they decided on."""

import asyncio
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
from hayrunner.adapters.checkpoints import AskedCall
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.kept_steps import keep_asked
from hayrunner.adapters.outcome import RunParked
from hayrunner.adapters.plain_values import copied
from hayrunner.approvals import is_marked
from hayrunner.errors import ApprovalExpired, HookFailed
from hayrunner.hooks import PendingCall
from hayrunner.run_inbox import Decision
from hayrunner_contracts.commands import COMMAND_REFUSED, Approve, Deny
from hayrunner_contracts.events import Data, ToolApprovalRequest

__all__ = ["Refused", "ask_people", "may_be_asked_about", "needs_approval"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refused:
    """A call that is not run; the text is its output, an error."""

    text: str


def _pending_call(call: ToolCall) -> PendingCall:
    """A call as a policy sees it: a copy, so that it cannot be changed unseen."""
    return PendingCall(
        tool_call_id=call.id or "",
        tool_name=call.tool_name,
        tool_input=copied(call.arguments),
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
        answer: Any = policy(_pending_call(call), run.hooks.hook_run())
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        # Policy: fail closed. The exception's text may hold content: the log gets its type.
        ref = uuid.uuid4().hex[:12]
        logger.error("the approval policy raised %s (ref %s)", type(error).__qualname__, ref)
        raise HookFailed(f"the approval policy failed (ref {ref})", ref=ref) from error
    if not isinstance(answer, bool):
        raise HookFailed(f"the approval policy returned {type(answer).__name__}, not a bool")
    return answer


async def ask_people(
    run: RunContext, calls: Sequence[ToolCall], tools: Mapping[str, Tool]
) -> list[ToolCall | Refused]:
    """Ask about all of `calls` at once and wait until each is decided: the calls as they are to
    run, in the same order.

    Where time is up, what is left is denied; `ApprovalExpired` where the agent wants the run to
    end instead. `RunParked` where a durable run has waited for long enough to give up its place.
    """
    if run.inbox is None or not run.inbox.attended:
        return _undecided(run, "nobody can be asked in this run", calls, {})
    patience = await _ask(run, calls)
    waiting = {call.id or "": call for call in calls}
    decided: dict[str, ToolCall | Refused] = {}
    while waiting:
        try:
            async with asyncio.timeout_at(patience.until):
                decision = await run.inbox.decision(waiting)
        except TimeoutError:
            if run.inbox.has_decision(waiting):
                continue
            if patience.parks and run.steps is not None:
                run.steps.parks()
                raise RunParked(patience.wake_at) from None
            for call_id in waiting:
                run.inbox.settle(call_id)
            why = f"no decision came within {run.approvals.timeout_s:g} s"
            return _undecided(run, why, calls, decided)
        call = waiting[decision.tool_call_id]
        outcome, fault = _decide(run, decision, call, tools[call.tool_name])
        if fault is not None:
            await run.emit([_refusal(run, decision, fault)])
            continue
        decided[decision.tool_call_id] = outcome
        del waiting[decision.tool_call_id]
        run.inbox.settle(decision.tool_call_id)
    return [decided[call.id or ""] for call in calls]


@dataclass(frozen=True, kw_only=True)
class _Patience:
    """How long a run waits. `until` is a time of the loop's clock, `wake_at` of the epoch;
    `parks` says what comes then."""

    until: float | None
    parks: bool
    wake_at: float | None


async def _ask(run: RunContext, calls: Sequence[ToolCall]) -> _Patience:
    """Ask about the calls that nobody was asked about yet, by an earlier attempt at this run."""
    now, timeout_s = time.time(), run.approvals.timeout_s
    known = {one.id: one for one in (run.called and run.called.asked) or ()}
    expires_at = None if timeout_s is None else now + timeout_s
    expiries = [one.expires_at for one in known.values() if one.expires_at is not None]
    if expiries:
        expires_at = min(expiries)
    new = [call for call in calls if call.id not in known]
    if new:
        await run.emit(_requests(run, new, expires_at))
        asked = [AskedCall(id=call.id or "", expires_at=expires_at) for call in calls]
        kept = await keep_asked(run, asked)
    else:
        kept = True
    ends = [moment for moment in (expires_at, run.deadline) if moment is not None]
    wake_at = min(ends, default=None)
    left = None if expires_at is None else expires_at - now
    park_after_s = run.steps.park_after_s if kept and run.steps is not None else None
    parks = park_after_s is not None and (left is None or park_after_s < left)
    wait_s = park_after_s if parks else left
    until = None if wait_s is None else asyncio.get_running_loop().time() + wait_s
    return _Patience(until=until, parks=parks, wake_at=wake_at)


def _requests(
    run: RunContext, calls: Sequence[ToolCall], expires: float | None
) -> list[ToolApprovalRequest]:
    expires_at = None
    if expires is not None:
        moment = datetime.fromtimestamp(expires, UTC)
        expires_at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [
        ToolApprovalRequest(
            tool_call_id=call.id or "",
            tool_name=call.tool_name,
            tool_input=copied(call.arguments),
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
    arguments = copied(decision.tool_input)
    return (
        ToolCall(tool_name=call.tool_name, arguments=arguments, id=call.id, extra=call.extra),
        None,
    )


def _refusal(run: RunContext, decision: Decision, reason: str) -> Data:
    kind = type(decision).__struct_config__.tag
    told = {"command": kind, "tool_call_id": decision.tool_call_id, "reason": reason}
    return Data(data_type=COMMAND_REFUSED, data=told, step=run.normalizer.step)
