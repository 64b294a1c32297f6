"""Approvals on the command line, in processes of their own."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.processes import Finished, Run, Serve, Start

from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.events import StreamEvent, ToolApprovalRequest, ToolOutput
from hayrunner_contracts.testing import assert_valid_stream

PROMPT = "Refund order 1042"


def events_of(out: str) -> list[Any]:
    events = [decode_event(line.encode()) for line in out.splitlines()]
    assert_valid_stream(events)
    return events


def outputs_of(events: list[StreamEvent]) -> list[tuple[Any, bool]]:
    return [(e.tool_output, e.is_error) for e in events if isinstance(e, ToolOutput)]


@pytest.fixture
def command(hayrunner: str, nats_server: EmbeddedServer) -> Callable[..., tuple[str, ...]]:
    def command(*arguments: str) -> tuple[str, ...]:
        return (hayrunner, *arguments, "--nats", nats_server.url)

    return command


async def test_calls_are_decided_by_flags_or_from_elsewhere(
    run: Run,
    start: Start,
    serve: Serve,
    examples: Path,
    command: Callable[..., tuple[str, ...]],
) -> None:
    """One worker for all of it: starting it is what takes time."""
    await serve(examples / "approvals.py")
    paid = ("Order 1042: 31.5 euros were paid back.", False)

    async def ask(*arguments: str) -> Finished:
        done = await run(*command("ask", "cashier", PROMPT, *arguments))
        assert done.code == 0, done
        return done

    approved, denied, answered, shown = await asyncio.gather(
        ask("--json", "--approve-all"),
        ask("--json", "--direct", "--deny-all"),
        ask("--answer", "--tools", "--approve-all"),
        ask("--approve-all"),
    )
    assert outputs_of(events_of(approved.out)) == [paid]
    text = "This call was not approved, and was not run. Denied from the command line."
    assert outputs_of(events_of(denied.out)) == [(text, True)]
    assert "31.5 euros were paid back" in answered.out
    assert '? refund {"order_number":1042} waits for approval' in shown.out

    waiting = await start(*command("ask", "cashier", PROMPT, "--json"))
    told = (await waiting.read_until(b'"tool_approval_request"') + b"").decode()
    told += (await waiting.read_until(b"\n")).decode()
    events = [decode_event(line.encode()) for line in told.splitlines()]
    message_id = json.loads(told.splitlines()[0])["message_id"]
    asked = events[-1]
    assert isinstance(asked, ToolApprovalRequest)
    call = asked.tool_call_id
    await waiting.said(f"hayrunner runs approve {message_id} {call}")

    said = await run(*command("runs", "say", message_id, "Thank you."))
    assert (said.code, said.out) == (0, "say stored\n"), said
    sent = await run(*command("runs", "approve", message_id, call, "--json"))
    assert json.loads(sent.out) == {
        "sent": "approve", "message_id": message_id, "outcome": "taken"
    }  # fmt: skip

    assert await waiting.ended() == 0
    assert waiting.process.stdout is not None
    told += (await waiting.process.stdout.read()).decode()
    assert outputs_of(events_of(told)) == [paid]
    assert '"said"' in told


async def test_what_cannot_be_sent_is_refused_in_one_line(
    run: Run, command: Callable[..., tuple[str, ...]]
) -> None:
    message_id = "01981a60-0000-7000-8000-000000000001"
    await run(*command("init"))
    for arguments, said in (
        (("approve", "nonsense", "c1"), "message_id"),
        (("approve", message_id, "c1", "--input", "[1]"), "--input takes a JSON object"),
        (("deny", message_id, ""), "tool_call_id: must not be empty"),
        (("deny", message_id, "c1"), "no run"),
        (("cancel", message_id), "no run"),
        (("tail", message_id), "no run"),
        (("show", message_id), "no run"),
        (("show", "nonsense"), "message_id"),
        (("list", "--status", "sleeping"), "--status takes one of"),
    ):
        done = await run(*command("runs", *arguments))
        assert done.code == 2, done
        assert said in done.err
        assert done.err.count("\n") == 1
    cancelled = await run(*command("runs", "cancel", message_id, "--wait", "0"))
    assert (cancelled.code, cancelled.out) == (0, "cancel stored\n"), cancelled
