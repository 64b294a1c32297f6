"""Commands to a run, and what became of them: told by its events and its result, within a bound."""

import asyncio
from contextlib import aclosing
from enum import StrEnum
from typing import Any, NamedTuple, cast

from hayrunner.cli.exits import ExitCode
from hayrunner.cli.run_records import FINAL, RunDetails, RunRecords
from hayrunner.cli.run_views import pending_calls
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.commands import COMMAND_REFUSED, Approve, Deny, Modify
from hayrunner_contracts.errors import ClientTimeout
from hayrunner_contracts.events import Data, ToolCallStart, ToolExecutionCommitted, ToolOutput
from hayrunner_contracts.following import Event, MessageBuilder
from hayrunner_contracts.results import RunResult

__all__ = ["Decision", "Outcome", "Verdict", "cancel", "decide"]

Decision = Approve | Deny | Modify


class Verdict(StrEnum):
    """What became of a command."""

    TAKEN = "taken"
    STORED = "stored"
    """It is stored, and it is no wonder that nothing is seen of it yet."""
    REFUSED = "refused"
    UNCONFIRMED = "unconfirmed"
    """It is stored, and nothing was seen of it in time."""


class Outcome(NamedTuple):
    """What became of a command, in a word and in a line."""

    verdict: Verdict
    reason: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """0 taken, or stored as it should be; 1 not taken; 4 not known in time."""
        if self.verdict is Verdict.UNCONFIRMED:
            return ExitCode.TIMED_OUT
        return ExitCode.RUN_FAILED if self.verdict is Verdict.REFUSED else ExitCode.DONE


async def cancel(client: RunClient, run_id: str, reason: str, *, wait_s: float) -> Outcome:
    """Cancel a run, and wait for its end at most `wait_s` seconds; 0 waits for nothing and asks
    nothing first. `ConfigurationError` where there is no such run."""
    if wait_s <= 0:
        await client.cancel(run_id, reason)
        return Outcome(Verdict.STORED)
    found = await RunRecords(client).find(run_id)
    if found.result is not None:
        return _ended(found.result, "had already ended")
    await client.cancel(run_id, reason)
    try:
        result = await client.result(run_id, timeout=wait_s)
    except ClientTimeout:
        where = {
            "queued": "the run is queued, and ends when a worker comes to it",
            "waiting": "the run waits, and ends when a worker goes on with it",
        }.get(found.record.status, "the run has not ended; is its worker up?")
        return Outcome(Verdict.UNCONFIRMED, f"stored, not seen within {wait_s:g} s: {where}")
    return _ended(result, "ended before it was cancelled")


def _ended(result: RunResult, how: str) -> Outcome:
    if result.status == "cancelled":
        return Outcome(Verdict.TAKEN)
    return Outcome(Verdict.REFUSED, f"the run {how}: {result.status}")


async def decide(client: RunClient, run_id: str, decision: Decision, *, wait_s: float) -> Outcome:
    """Send a decision on a call that waits for one, and look for at most `wait_s` seconds for what
    becomes of it; 0 looks for nothing, and asks nothing first. `ConfigurationError` where there is
    no such run, or no such call."""
    if wait_s <= 0:
        await client.send_command(run_id, decision)
        return Outcome(Verdict.STORED)
    found = await RunRecords(client).find(run_id)
    waiting = _check_call(found, decision.tool_call_id)
    if waiting is not None:
        return waiting
    await client.send_command(run_id, decision)
    following = _Following(found.message, decision)
    try:
        async with asyncio.timeout(wait_s):
            return await following.until_told(client, run_id)
    except TimeoutError:
        return following.untold(wait_s)


def _check_call(found: RunDetails, call_id: str) -> Outcome | None:
    """Why there is nothing to decide; None where the call waits."""
    if found.record.status in FINAL:
        return Outcome(Verdict.REFUSED, f"the run has ended: {found.record.status}")
    waiting = [request.tool_call_id for request in pending_calls(found.message)]
    if call_id in waiting:
        return None
    if any(call.tool_call_id == call_id for call in found.message.tool_calls):
        return Outcome(Verdict.REFUSED, "the call does not wait for a decision any more")
    calls = f"; waiting: {', '.join(waiting)}" if waiting else "; none waits"
    raise ConfigurationError(
        f"no call {call_id} waits for a decision in this run{calls} (--wait 0 decides ahead)"
    )


class _Following:
    """What the events say of one decision."""

    def __init__(self, message: MessageBuilder, decision: Decision) -> None:
        self._message = message
        self._decision = decision
        # A run in mode `answer` tells of its calls only that they wait.
        self._is_told = any(
            isinstance(event, ToolCallStart) and event.tool_call_id == decision.tool_call_id
            for event in message.events
        )

    async def until_told(self, client: RunClient, run_id: str) -> Outcome:
        """Read on until it is known."""
        message = self._message
        reading = client.attach_wire(run_id, message.last_seq, attempt=message.attempt)
        async with aclosing(reading):
            async for event, _ in reading:
                message.add(event)
                if (outcome := self._told(event)) is not None:
                    return outcome
        if not self._is_told:
            return Outcome(Verdict.STORED, "the run has ended; it does not tell of its calls")
        return Outcome(Verdict.REFUSED, "the run ended without it")

    def untold(self, wait_s: float) -> Outcome:
        """Why nothing was seen, as far as it can be known."""
        others = [
            request.tool_call_id
            for request in pending_calls(self._message)
            if request.tool_call_id != self._decision.tool_call_id
        ]
        if others:
            return Outcome(Verdict.STORED, f"the step goes on after a decision on {others[0]}")
        if not self._is_told:
            return Outcome(Verdict.STORED, "the run does not tell of its calls")
        return Outcome(
            Verdict.UNCONFIRMED,
            f"stored; nothing seen of it within {wait_s:g} s: the tool still runs, or no worker is"
            " up",
        )

    def _told(self, event: Event) -> Outcome | None:
        call_id = self._decision.tool_call_id
        if isinstance(event, Data) and event.data_type == COMMAND_REFUSED:
            refused = cast("dict[str, Any]", event.data)
            if refused.get("tool_call_id") == call_id:
                return Outcome(Verdict.REFUSED, str(refused.get("reason")))
        if not isinstance(event, ToolExecutionCommitted | ToolOutput):
            return None
        if event.tool_call_id != call_id:
            return None
        ran = isinstance(event, ToolExecutionCommitted)
        if ran is not isinstance(self._decision, Deny):
            return Outcome(Verdict.TAKEN)
        return Outcome(
            Verdict.REFUSED,
            "somebody else approved the call" if ran else "the call was denied, or came too late",
        )
