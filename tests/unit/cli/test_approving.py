"""Requests for approval on the command line."""

from typing import Any, cast

import pytest
from tests.unit.cli.conftest import Terminal

from hayrunner.cli.approving import Answer, Approver
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.commands import Approve, Deny, Modify, RunCommand
from hayrunner_contracts.errors import ClientTimeout
from hayrunner_contracts.events import Data, MessageEnd, ToolApprovalRequest, ToolOutput
from hayrunner_contracts.runs import Run
from hayrunner_contracts.testing import eventually


class FakeRun:
    """Keeps what is sent to it."""

    message_id = "run-1"

    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[RunCommand] = []
        self._error = error

    async def send(self, command: RunCommand) -> None:
        if self._error is not None:
            raise self._error
        self.sent.append(command)

    async def has(self, *commands: RunCommand) -> None:
        await eventually(lambda: len(self.sent) >= len(commands), 5, what=f"{commands}")
        assert self.sent == list(commands)


def approver(run: FakeRun, **settings: Any) -> Approver:
    return Approver(cast("Run", run), **settings)


def asked(call_id: str = "c1", **tool_input: Any) -> ToolApprovalRequest:
    return ToolApprovalRequest(tool_call_id=call_id, tool_name="delete", tool_input=tool_input)


async def test_all_are_approved_or_denied_where_a_flag_says_so() -> None:
    run = FakeRun()
    async with approver(run, answer=Answer.of(approve_all=True, deny_all=False)) as answering:
        answering.note(asked("c1"))
        answering.note(asked("c2"))
        await run.has(Approve(tool_call_id="c1"), Approve(tool_call_id="c2"))

    run = FakeRun()
    async with approver(run, answer=Answer.of(approve_all=False, deny_all=True)) as answering:
        answering.note(asked())
        await run.has(Deny(tool_call_id="c1", feedback="Denied from the command line."))


def test_both_flags_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        Answer.of(approve_all=True, deny_all=True)


@pytest.mark.parametrize("as_json", [False, True])
async def test_without_a_terminal_it_is_told_how_to_decide(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    run, told = FakeRun(), ""

    def is_told() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return told.endswith("\n")

    async with approver(run, as_json=as_json) as answering:
        answering.note(asked("c 1"))
        await eventually(is_told, 5, what="the advice")
    assert run.sent == []
    assert "delete waits for approval: hayrunner runs approve run-1 'c 1'" in told
    assert told.startswith("{") is as_json


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        (["y"], Approve(tool_call_id="c1")),
        (["n", ""], Deny(tool_call_id="c1")),
        (["no", "Not today."], Deny(tool_call_id="c1", feedback="Not today.")),
        (["what?", "y"], Approve(tool_call_id="c1")),
        (["e", '{"path": "/b"}'], Modify(tool_call_id="c1", tool_input={"path": "/b"})),
        (["e", "[1]", "n", ""], Deny(tool_call_id="c1")),
    ],
)
async def test_a_terminal_is_asked(
    terminal: Terminal, typed: list[str], command: RunCommand
) -> None:
    terminal.attach()
    run = FakeRun()
    async with approver(run) as answering:
        answering.note(asked(path="/a"))
        await terminal.printed('Run delete with {"path":"/a"}?')
        for line in typed:
            terminal.type(line)
        await run.has(command)


async def test_an_empty_line_leaves_the_call_waiting(terminal: Terminal) -> None:
    terminal.attach()
    run = FakeRun()
    async with approver(run) as answering:
        answering.note(asked())
        await terminal.printed("leave it waiting? ")
        terminal.type("")
        await terminal.printed("hayrunner runs deny run-1 c1")
    assert run.sent == []


async def test_hidden_characters_are_seen(terminal: Terminal) -> None:
    terminal.attach()
    async with approver(FakeRun()) as answering:
        answering.note(asked(path="/a\u202e\u200btxt"))
        await terminal.printed('{"path":"/a\\u202e\\u200btxt"}?')


async def test_a_call_decided_elsewhere_is_not_asked_about_any_more(terminal: Terminal) -> None:
    terminal.attach()
    run = FakeRun()
    async with approver(run) as answering:
        answering.note(asked("c1", path="/a"))
        answering.note(asked("c2", path="/b"))
        await terminal.printed('{"path":"/a"}?')
        answering.note(ToolOutput(tool_call_id="c1", tool_output="denied", is_error=True))
        await terminal.printed('{"path":"/b"}?')
        terminal.type("y")
        await run.has(Approve(tool_call_id="c2"))
        answering.note(asked("c3", path="/c"))
        await terminal.printed('{"path":"/c"}?')
        answering.note(MessageEnd(finish_reason="cancelled"))
        terminal.type("y")
    assert len(run.sent) == 1


async def test_a_question_waits_while_somebody_else_has_the_terminal(terminal: Terminal) -> None:
    terminal.attach()
    run = FakeRun()
    async with approver(run) as answering:
        answering.note(asked(path="/a"))
        await terminal.printed('{"path":"/a"}?')
        async with answering.paused():
            answering.note(asked("c2", path="/b"))
        await terminal.printed('{"path":"/a"}?')
        terminal.type("y")
        await terminal.printed('{"path":"/b"}?')
        terminal.type("y")
        await run.has(Approve(tool_call_id="c1"), Approve(tool_call_id="c2"))


async def test_a_decision_that_the_run_refuses_is_asked_for_again(terminal: Terminal) -> None:
    terminal.attach()
    run = FakeRun()
    async with approver(run) as answering:
        answering.note(asked(path="/a"))
        terminal.type("e")
        terminal.type('{"path": 7}')
        await run.has(Modify(tool_call_id="c1", tool_input={"path": 7}))
        refused = {"command": "modify", "tool_call_id": "c1", "reason": "7 is no text"}
        answering.note(Data(data_type="command_refused", data=refused))
        await terminal.printed("not taken: 7 is no text")
        terminal.type("y")
        await run.has(Modify(tool_call_id="c1", tool_input={"path": 7}), Approve(tool_call_id="c1"))


async def test_a_decision_that_cannot_be_sent_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = ""

    def is_told() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return "runs approve" in told

    run = FakeRun(ClientTimeout("not stored within 10 s"))
    async with approver(run, answer=Answer.APPROVE_ALL) as answering:
        answering.note(asked())
        await eventually(is_told, 5, what="the advice")
    assert "not sent: not stored within 10 s" in told
