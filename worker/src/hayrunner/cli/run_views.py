"""Runs on a terminal, and as JSON."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from hayrunner.cli.rendering import safe_text, usage_line
from hayrunner.cli.run_records import RunDetails, RunRecord
from hayrunner_contracts.events import ModelCallEnd, StreamEvent, ToolApprovalRequest, Usage
from hayrunner_contracts.following import MessageBuilder

__all__ = ["pending_calls", "print_list", "print_run", "write_json"]

_LONGEST = 2_000
_NO_USAGE = Usage()


def print_list(records: Sequence[RunRecord], *, as_json: bool) -> None:
    """A line for each; as JSON one object a line."""
    if as_json:
        for record in records:
            write_json(record)
        return
    for record in records:
        at = record.updated_at or record.created_at or ""
        attempts = f"  attempt {record.attempts}" if record.attempts > 1 else ""
        where = f"  on {record.worker}" if record.worker and record.status == "running" else ""
        line = f"{at:<24}  {_status(record):<9}  {record.message_id}  {record.agent}"
        print(safe_text(f"{line}{attempts}{where}"))


def print_run(run: RunDetails, *, as_json: bool) -> None:
    """All that is known of a run."""
    if as_json:
        write_json(_as_object(run))
        return
    for name, value in _lines(run):
        print(f"{name:<11}{safe_text(value)}")


def pending_calls(message: MessageBuilder) -> list[ToolApprovalRequest]:
    """The requests for approval that nobody has decided on, as far as the events tell."""
    waiting = {call.tool_call_id for call in message.tool_calls if call.awaits_approval}
    asked = [event for event in message.events if isinstance(event, ToolApprovalRequest)]
    latest = {event.tool_call_id: event for event in asked if event.tool_call_id in waiting}
    return list(latest.values())


def write_json(value: Any) -> None:
    """One line of JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def _status(record: RunRecord) -> str:
    return "parked" if record.parked else record.status


def _lines(run: RunDetails) -> list[tuple[str, str]]:
    record, result, message = run.record, run.result, run.message
    found = [("run", record.message_id), ("agent", record.agent), ("status", _status(record))]
    if record.parked:
        until = f", until {record.wakes_at} at most" if record.wakes_at else ""
        found[-1] = ("status", f"waiting for a decision, without a worker{until}")
    optional = (
        ("thread", message.thread_id or (result.thread_id if result else None)),
        ("attempts", str(record.attempts) if record.attempts else None),
        ("worker", record.worker),
        ("requested", result.requested_at if result else None),
        ("created", record.created_at),
        ("updated", record.updated_at),
        ("step", str(step) if (step := _step(run)) else None),
        ("events", str(message.last_seq) if message.last_seq else None),
        ("usage", usage_line(usage) if (usage := _usage(run)) else None),
    )
    found += [(name, value) for name, value in optional if value]
    if result is not None and result.error is not None:
        again = "; trying again may help" if result.error.retryable else ""
        reference = f" (ref {result.error.ref})" if result.error.ref else ""
        found.append(("error", f"{result.error.code}: {result.error.message}{reference}{again}"))
    for call in pending_calls(message):
        shown = _short(msgspec.json.encode(call.tool_input).decode())
        found.append(("waits for", f"{call.tool_call_id}  {call.tool_name} {shown}"))
    answer = result.answer if result is not None else None
    if answer is not None:
        shown = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        found.append(("answer", _short(shown)))
    elif message.text:
        found.append(("text", _short(message.text)))
    return found


def _as_object(run: RunDetails) -> dict[str, Any]:
    found = msgspec.to_builtins(run.record)
    found |= {
        "step": _step(run),
        "last_seq": run.message.last_seq,
        "usage": _usage(run),
        "approvals": pending_calls(run.message),
        "result": run.result,
    }
    return found


def _step(run: RunDetails) -> int | None:
    told = [event.step or 0 for event in run.message.events if isinstance(event, StreamEvent)]
    return max([run.record.step or 0, *told]) or None


def _usage(run: RunDetails) -> Usage | None:
    if run.result is not None and run.result.usage is not None:
        return run.result.usage
    calls = [e.usage for e in run.message.events if isinstance(e, ModelCallEnd) and e.usage]
    return sum(calls, _NO_USAGE) if calls else None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters)"
