"""Runs on a terminal."""

import json

import pytest

from hayrunner.cli.run_commands import Outcome, Verdict
from hayrunner.cli.run_records import RunDetails, RunRecord
from hayrunner.cli.run_views import print_list, print_run
from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import StreamEvent, ToolApprovalRequest, Usage
from hayrunner_contracts.following import MessageBuilder
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.testing import numbered, some_events

AT = "2026-01-02T03:04:05.678Z"
MESSAGE_ID = "01981a60-0000-7000-8000-000000000001"


def record(status: str = "running", **more: object) -> RunRecord:
    fields = {"message_id": MESSAGE_ID, "agent": "support", "updated_at": AT, **more}
    return RunRecord(status=status, **fields)  # pyright: ignore[reportArgumentType]


def details(told: list[StreamEvent], result: RunResult | None = None, **more: object) -> RunDetails:
    message = MessageBuilder()
    for event in told:
        message.add(event)
    return RunDetails(record=record(**more), result=result, message=message)  # pyright: ignore


def test_a_list_has_a_line_for_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_list(
        [
            record(worker="w1", attempts=2),
            record("waiting", parked=True, worker="w1", attempts=1),
            RunRecord(message_id=MESSAGE_ID, status="queued", agent="a\x1b[2J"),
        ],
        as_json=False,
    )
    assert capsys.readouterr().out.splitlines() == [
        f"{AT}  running    {MESSAGE_ID}  support  attempt 2  on w1",
        f"{AT}  parked     {MESSAGE_ID}  support",
        f"{'':24}  queued     {MESSAGE_ID}  a[2J",
    ]


def test_a_run_that_waits_shows_for_what(capsys: pytest.CaptureFixture[str]) -> None:
    request = ToolApprovalRequest(
        tool_call_id="c1", tool_name="refund", tool_input={"order": 7}, step=1
    )
    told = numbered([*some_events("Hello")[:2], request])
    print_run(details(told, status="waiting", parked=True, wakes_at=AT), as_json=False)
    out = capsys.readouterr().out
    assert f"status     waiting for a decision, without a worker, until {AT} at most\n" in out
    assert 'waits for  c1  refund {"order":7}\n' in out
    assert "text       Hello\n" in out
    assert "events     3\n" in out


def test_a_run_that_failed_shows_why(capsys: pytest.CaptureFixture[str]) -> None:
    failure = RunFailure(code="provider_error", message="status 500", retryable=True, ref="r1")
    result = RunResult(
        message_id=MESSAGE_ID,
        agent="support",
        status="failed",
        error=failure,
        usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        thread_id="t1",
    )
    print_run(details([], result, status="failed", attempts=3), as_json=False)
    out = capsys.readouterr().out
    assert "error      provider_error: status 500 (ref r1); trying again may help\n" in out
    assert "usage      1 tokens in, 2 out, 3 in all\n" in out
    assert "attempts   3\n" in out
    assert "thread     t1\n" in out


def test_as_json_a_run_is_one_object(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print_run(details(some_events()), as_json=True)
    shown = json.loads(capsysbinary.readouterr().out)
    assert (shown["message_id"], shown["status"], shown["last_seq"]) == (MESSAGE_ID, "running", 6)
    assert shown["usage"]["total_tokens"] == 15
    assert (shown["approvals"], shown["result"]) == ([], None)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.TAKEN, 0),
        (Verdict.STORED, 0),
        (Verdict.REFUSED, 1),
        (Verdict.UNCONFIRMED, 4),
    ],
)
def test_what_became_of_a_command_is_its_exit_code(verdict: Verdict, code: int) -> None:
    assert Outcome(verdict).exit_code == code
