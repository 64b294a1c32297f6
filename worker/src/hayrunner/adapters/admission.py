"""Which calls of a step are run, and with which arguments: hooks are asked first, then people."""

from collections.abc import Mapping, Sequence

from haystack.dataclasses import ToolCall
from haystack.tools import Tool

from hayrunner.adapters.approvals import (
    Refused,
    ask_people,
    may_be_asked_about,
    needs_approval,
    pending_call,
)
from hayrunner.adapters.context import RunContext
from hayrunner.hooks import Skip

__all__ = ["Refused", "admit", "ask_hooks"]


async def ask_hooks(run: RunContext, call: ToolCall) -> ToolCall | Refused:
    """The call as `on_tool_call` hooks want it run. Raises `HookStopped`."""
    if not run.hooks.watches("on_tool_call"):
        return call
    decided = await run.hooks.tool_call(pending_call(call))
    if isinstance(decided, Skip):
        return Refused(decided.reason)
    return ToolCall(
        tool_name=call.tool_name,
        arguments=dict(decided.tool_input),
        id=call.id,
        extra=call.extra,
    )


async def admit(
    run: RunContext, calls: Sequence[ToolCall], tools: Mapping[str, Tool]
) -> list[ToolCall | Refused] | None:
    """What is to be done with each of a step's calls, in call order; None where no approval can
    be needed, and hooks are asked as each call's turn comes.

    People see the arguments that would really be used, so hooks are asked about the whole step
    before anything of it runs; and nothing of it runs before every decision is there. Raises
    `HookStopped` and `ApprovalExpired`, with nothing run.
    """
    if not any(may_be_asked_about(run, tools[call.tool_name]) for call in calls):
        return None
    admitted = [await ask_hooks(run, call) for call in calls]
    waiting: dict[int, ToolCall] = {}
    for position, call in enumerate(admitted):
        if isinstance(call, ToolCall) and await needs_approval(run, call, tools[call.tool_name]):
            waiting[position] = call
    if waiting:
        decided = await ask_people(run, list(waiting.values()), tools)
        for position, outcome in zip(waiting, decided, strict=True):
            admitted[position] = outcome
    return admitted
