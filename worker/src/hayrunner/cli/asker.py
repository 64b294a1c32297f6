"""Asking one question over NATS, and printing what comes."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator

from hayrunner.cli.approving import Answer, Approver
from hayrunner.cli.asking import Question
from hayrunner.cli.exits import ExitCode, say
from hayrunner.cli.interrupts import Interrupts, OnInterrupt, Verdict, decide, watch
from hayrunner.cli.rendering import RunView, make_console, safe_text
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import RunError
from hayrunner_contracts.events import Error, MessageEnd, UnknownEvent
from hayrunner_contracts.following import Event
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.runs import error_of

__all__ = ["GRACE_S", "Asker", "Ending", "write_event", "write_wire"]

GRACE_S = 5.0
"""The worker ends a run at its deadline and says so: how much longer the client waits for that."""

_NO_TIMEOUT_S = 86_400.0


class Ending:
    """How a run ended, from its events."""

    def __init__(self) -> None:
        self._code = ExitCode.DONE

    def note(self, event: Event) -> None:
        """Take an event in; most say nothing of the end."""
        if isinstance(event, Error):
            timed_out = event.error_code == "deadline_exceeded"
            self._code = ExitCode.TIMED_OUT if timed_out else ExitCode.RUN_FAILED
        elif (
            isinstance(event, MessageEnd)
            and event.finish_reason in ("error", "cancelled")
            and self._code is ExitCode.DONE
        ):
            self._code = ExitCode.RUN_FAILED

    @property
    def exit_code(self) -> ExitCode:
        """What a command leaves with that showed this run."""
        return self._code


class Asker:
    """Asks one question and prints what comes."""

    def __init__(
        self,
        client: RunClient,
        question: Question,
        *,
        direct: bool,
        as_json: bool,
        approvals: Answer = Answer.ASK,
    ) -> None:
        self._client = client
        self._question = question
        self._direct = direct
        self._as_json = as_json
        self._approvals = approvals

    async def answer(self) -> ExitCode:
        """Print the answer, or the whole result as JSON; raises the error of a run that failed,
        after what there was of an answer."""
        try:
            result = await self._result()
        except asyncio.CancelledError:
            say(f"no longer waiting; the run is {self._question.message_id}", as_json=self._as_json)
            raise
        if self._as_json:
            _write_line(encode(result))
        elif isinstance(result.answer, str):
            print(safe_text(result.answer), flush=True)
        elif result.answer is not None:
            _write_line(encode(result.answer))
        error = error_of(result)
        if error is None:
            return ExitCode.DONE
        if not self._as_json:
            raise error
        return ExitCode.TIMED_OUT if error.code == "deadline_exceeded" else ExitCode.RUN_FAILED

    async def _result(self) -> RunResult:
        asked = self._question
        try:
            if self._direct:
                return await self._client.ask(
                    asked.agent,
                    asked.prompt,
                    tools=asked.tools,
                    timeout=self._patience_s,
                    **asked.arguments,
                )
            handle = await self._client.submit(
                asked.agent, asked.prompt, mode="answer", tools=asked.tools, **asked.arguments
            )
            if not asked.tools:
                return await handle.result(timeout=self._patience_s)
            async with self._approver() as approver:
                # An answer run tells no more of its tools than which of them wait.
                async for event in handle.events(timeout=self._patience_s):
                    approver.note(event)
                return await handle.result(timeout=self._patience_s)
        except RunError as error:
            if error.result is None:
                raise
            return error.result

    async def stream(self, on_interrupt: OnInterrupt) -> ExitCode:
        """Print the events as they come."""
        async with self._approver() as approver:
            return await self._watch(on_interrupt, approver)

    def _approver(self) -> Approver:
        run = self._client.attached(self._question.message_id)
        return Approver(run, answer=self._approvals, as_json=self._as_json)

    async def _watch(self, on_interrupt: OnInterrupt, approver: Approver) -> ExitCode:
        view, ending = RunView(make_console()), Ending()
        with Interrupts() as interrupts:
            watching = _Watching(self._client, self._question.message_id, interrupts)

            async def go_on() -> bool:
                async with approver.paused():
                    return await watching.interrupted(on_interrupt, as_json=self._as_json)

            async with contextlib.aclosing(watch(self._events(), interrupts, go_on)) as events:
                async for event, data in events:
                    if self._as_json:
                        write_wire(data)
                    else:
                        view.show(event)
                    ending.note(event)
                    approver.note(event)
        return ExitCode.INTERRUPTED if watching.was_interrupted else ending.exit_code

    @property
    def _patience_s(self) -> float:
        timeout_s = self._question.timeout_s
        return _NO_TIMEOUT_S if timeout_s is None else timeout_s + GRACE_S

    async def _events(self) -> AsyncGenerator[tuple[Event, bytes], None]:
        """The events, with the bytes of the wire. A direct request's are stored nowhere, and are
        written anew."""
        asked = self._question
        if self._direct:
            direct = self._client.ask_stream(
                asked.agent, asked.prompt, timeout=self._patience_s, **asked.arguments
            )
            async with contextlib.aclosing(direct):
                async for event in direct:
                    yield event, event.raw if isinstance(event, UnknownEvent) else encode(event)
            return
        stored = self._client.stream_wire(
            asked.agent, asked.prompt, timeout=self._patience_s, **asked.arguments
        )
        async with contextlib.aclosing(stored):
            async for item in stored:
                yield item


class _Watching:
    """What Ctrl-C did so far."""

    def __init__(self, client: RunClient, message_id: str, interrupts: Interrupts) -> None:
        self.was_interrupted = False
        self._client = client
        self._message_id = message_id
        self._interrupts = interrupts

    async def interrupted(self, wanted: OnInterrupt, *, as_json: bool) -> bool:
        """Whether to go on watching. After a cancel the end of the run is still shown, unless
        somebody is in a hurry."""
        if self.was_interrupted:
            return False
        verdict = await decide(wanted, self._interrupts)
        if verdict is Verdict.GO_ON:
            return True
        self.was_interrupted = True
        if verdict is Verdict.CANCEL:
            await self._client.cancel(self._message_id, "cancelled from the command line")
            return True
        if sys.stdout.isatty():
            print(flush=True)  # the text stopped somewhere in its line
        say(f"no longer watching; the run goes on: {self._message_id}", as_json=as_json)
        return False


def write_event(event: Event) -> None:
    """One event as a line of JSON, as it stands on the wire."""
    _write_line(event.raw if isinstance(event, UnknownEvent) else encode(event))


def write_wire(data: bytes) -> None:
    """An event's bytes as a line, unchanged."""
    _write_line(data)


def _write_line(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()
