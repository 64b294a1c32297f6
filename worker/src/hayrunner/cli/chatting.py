"""A conversation: a line, an answer, a line.

Every message is asked by an `Asker`, as `hayrunner ask` does: whatever that shows or asks while a
run goes on is the same here.
"""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from hayrunner.cli.approving import Answer
from hayrunner.cli.asker import Asker
from hayrunner.cli.asking import Question
from hayrunner.cli.exits import ExitCode, say
from hayrunner.cli.interrupts import OnInterrupt
from hayrunner.cli.lines import Lines
from hayrunner.cli.rendering import make_console, safe_text
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import ClientTimeout, RunError
from hayrunner_contracts.following import EventsLost

__all__ = ["Chat"]

_HELP = "/exit ends the conversation, /thread says its id; every other line is a message."
_PROMPT = "> "


class Chat:
    """Reads lines and asks. A run that fails does not end the conversation."""

    def __init__(
        self,
        client: RunClient,
        agent: str,
        given: dict[str, Any],
        *,
        options: Sequence[str],
        timeout_s: float | None,
        direct: bool,
        as_json: bool,
        on_interrupt: OnInterrupt,
        approvals: Answer = Answer.ASK,
    ) -> None:
        self._client = client
        self._agent = agent
        self._given = given
        self._options = options
        self._timeout_s = timeout_s
        self._direct = direct
        self._as_json = as_json
        self._on_interrupt = on_interrupt
        self._approvals = approvals
        self._console = make_console()

    async def talk(self) -> ExitCode:
        """Until /exit or the end of input. Where nobody sits there, the code of the last run."""
        at_terminal = sys.stdin.isatty() and not self._as_json
        if at_terminal:
            self._note(f"{self._agent} · thread {self._given['thread_id']} · {_HELP}")
        lines = Lines(_PROMPT if at_terminal else "")
        last = ExitCode.DONE
        while (line := await lines.read()) is not None:
            text = line.strip()
            if text == "/exit":
                break
            if text.startswith("/"):
                self._command(text)
            elif text:
                last = await self._ask(text)
        return ExitCode.DONE if at_terminal else last

    async def _ask(self, text: str) -> ExitCode:
        question = Question.of(
            self._agent,
            text,
            mode="stream",
            tools=False,
            timeout_s=self._timeout_s,
            given=self._given,
            options=self._options,
        )
        asker = Asker(
            self._client,
            question,
            direct=self._direct,
            as_json=self._as_json,
            approvals=self._approvals,
        )
        try:
            return await asker.stream(self._on_interrupt)
        except (RunError, ClientTimeout, EventsLost) as error:
            code = error.code if isinstance(error, RunError) else type(error).__name__
            say(f"{code}: {safe_text(str(error))}", as_json=self._as_json)
            return ExitCode.RUN_FAILED

    def _command(self, text: str) -> None:
        thread_id = self._given["thread_id"]
        if text != "/thread":
            say(_HELP if text == "/help" else f"no such command; {_HELP}", as_json=self._as_json)
        elif self._as_json:
            sys.stdout.buffer.write(msgspec.json.encode({"thread_id": thread_id}) + b"\n")
            sys.stdout.buffer.flush()
        else:
            print(thread_id, flush=True)

    def _note(self, text: str) -> None:
        self._console.out(text, style="dim", highlight=False)
