"""Requests for approval of a run that is watched: asked on the terminal, answered all alike, or
told how to be answered from elsewhere."""

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Any, Self, cast

import msgspec

from hayrunner.cli.exits import say
from hayrunner.cli.terminal import has_terminal, read_line
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.commands import COMMAND_REFUSED, Approve, Deny, Modify
from hayrunner_contracts.errors import ClientTimeout, RunError
from hayrunner_contracts.events import (
    Data,
    MessageEnd,
    RunResumed,
    ToolApprovalRequest,
    ToolExecutionCommitted,
    ToolOutput,
)
from hayrunner_contracts.following import Event
from hayrunner_contracts.runs import Run

__all__ = ["Answer", "Approver"]

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_CHOICES = "[y]es, [n]o, [e]dit the arguments, Enter: leave it waiting? "
_FEEDBACK = "Denied from the command line."

_Decision = Approve | Deny | Modify


class Answer(StrEnum):
    """How requests for approval are answered."""

    ASK = "ask"
    APPROVE_ALL = "approve all"
    DENY_ALL = "deny all"

    @classmethod
    def of(cls, *, approve_all: bool, deny_all: bool) -> "Answer":
        """What two flags say; `ConfigurationError` where they contradict each other."""
        if approve_all and deny_all:
            raise ConfigurationError("--approve-all and --deny-all cannot both be given")
        return cls.APPROVE_ALL if approve_all else cls.DENY_ALL if deny_all else cls.ASK


class Approver:
    """Answers the requests of one run while its block lasts, beside whoever shows its events.

        async with Approver(client.attached(message_id)) as approver:
            async for event in events:
                show(event)
                approver.note(event)

    With `Answer.ASK` the terminal is asked, one call after the other; a question whose call was
    decided elsewhere is withdrawn. Without a terminal, or where it is not answered, the call goes
    on waiting, and how to decide on it is printed.
    """

    def __init__(self, run: Run, *, answer: Answer = Answer.ASK, as_json: bool = False) -> None:
        self._run = run
        self._answer = answer
        self._as_json = as_json
        self._known: dict[str, ToolApprovalRequest] = {}
        self._open: dict[str, ToolApprovalRequest] = {}
        self._news = asyncio.Event()
        self._paused = False
        self._question: asyncio.Task[_Decision | None] | None = None
        self._work: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._work = asyncio.create_task(self._answer_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
            if not self._work.cancelled():
                self._work.result()

    def note(self, event: Event) -> None:
        """Take an event of the run in; most say nothing of approvals."""
        match event:
            case ToolApprovalRequest():
                self._known[event.tool_call_id] = self._open[event.tool_call_id] = event
            case ToolExecutionCommitted() | ToolOutput():
                self._withdraw(event.tool_call_id)
            case MessageEnd() | RunResumed():
                for call_id in list(self._open):
                    self._withdraw(call_id)
            case Data(data_type=data_type, data=dict()) if data_type == COMMAND_REFUSED:
                self._ask_again(cast("dict[str, Any]", event.data))
            case _:
                pass
        self._news.set()

    def _withdraw(self, call_id: str) -> None:
        asked = next(iter(self._open), None)
        if self._open.pop(call_id, None) is not None and call_id == asked and self._question:
            self._question.cancel()

    def _ask_again(self, refused: dict[str, Any]) -> None:
        """A decision was not taken: the call still waits."""
        request = self._known.get(str(refused.get("tool_call_id")))
        if request is not None:
            say(f"not taken: {_visible(str(refused.get('reason')))}", as_json=self._as_json)
            self._open[request.tool_call_id] = request

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Nothing is asked meanwhile: somebody else needs the terminal."""
        self._paused = True
        if self._question is not None:
            self._question.cancel()
            await asyncio.wait([self._question])
        try:
            yield
        finally:
            self._paused = False
            self._news.set()

    async def _answer_all(self) -> None:
        while True:
            self._news.clear()
            while self._open and not self._paused:
                await self._answer_next(next(iter(self._open.values())))
            await self._news.wait()

    async def _answer_next(self, request: ToolApprovalRequest) -> None:
        self._question = asyncio.create_task(self._decision(request))
        try:
            await asyncio.wait([self._question])
        finally:
            self._question.cancel()
        if self._question.cancelled():
            return  # decided elsewhere, or to be asked again after a pause
        decision = self._question.result()
        if self._open.pop(request.tool_call_id, None) is None:
            return
        if decision is None:
            self._tell_how(request)
            return
        try:
            await self._run.send(decision)
        except (ClientTimeout, RunError, ConnectionError) as error:
            say(f"not sent: {error}", as_json=self._as_json)
            self._tell_how(request)

    async def _decision(self, request: ToolApprovalRequest) -> _Decision | None:
        call_id = request.tool_call_id
        if self._answer is Answer.APPROVE_ALL:
            return Approve(tool_call_id=call_id)
        if self._answer is Answer.DENY_ALL:
            return Deny(tool_call_id=call_id, feedback=_FEEDBACK)
        return await _asked(request) if has_terminal() else None

    def _tell_how(self, request: ToolApprovalRequest) -> None:
        ids = f"{self._run.message_id} {shlex.quote(_visible(request.tool_call_id))}"
        say(
            f"{_visible(request.tool_name)} waits for approval: hayrunner runs approve {ids}, "
            f"or hayrunner runs deny {ids}",
            as_json=self._as_json,
        )


async def _asked(request: ToolApprovalRequest) -> _Decision | None:
    """What whoever sits at the terminal decides; None for nothing yet."""
    arguments = _visible(msgspec.json.encode(request.tool_input).decode())
    while True:
        _prompt(f"\nRun {_visible(request.tool_name)} with {arguments}?\n{_CHOICES}")
        choice = (await read_line()).strip().lower()
        if choice.startswith("y"):
            return Approve(tool_call_id=request.tool_call_id)
        if choice.startswith("n"):
            _prompt("Why, for the model (Enter: no reason)? ")
            feedback = (await read_line()).strip() or None
            return Deny(tool_call_id=request.tool_call_id, feedback=feedback)
        if not choice:
            return None
        if choice.startswith("e"):
            _prompt("The arguments, as one line of JSON: ")
            if (changed := _object(await read_line())) is not None:
                return Modify(tool_call_id=request.tool_call_id, tool_input=changed)
            _prompt("That is no JSON object.")


def _object(line: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _prompt(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _visible(text: str) -> str:
    """What would not be seen, or would change what is seen, written out: a person decides on what
    stands here."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
