"""How a command ends: its exit code, and one line that says what to do.

0 done · 1 the run failed · 2 usage or configuration · 3 NATS cannot be reached · 4 timeout ·
130 interrupted · 141 whoever read the output went away
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import Any

import msgspec
import typer

from hayrunner.errors import ConfigurationError, HayrunnerError, LossRefused
from hayrunner_contracts.errors import (
    ClientTimeout,
    DeadlineExceeded,
    InvalidRequest,
    PayloadTooLarge,
    RunError,
    UnknownAgent,
)
from hayrunner_contracts.following import EventsLost

__all__ = ["ExitCode", "Unreachable", "at_end", "finish", "run", "say", "show_tracebacks"]


class ExitCode(IntEnum):
    DONE = 0
    RUN_FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    TIMED_OUT = 4
    INTERRUPTED = 130
    NO_READER = 141


_debugging = False
_at_end: list[Callable[[], None]] = []


class Unreachable(ConnectionError):
    """NATS cannot be reached; the message says how it could."""


_USAGE = (ConfigurationError, InvalidRequest, PayloadTooLarge, UnknownAgent)
_TIMED_OUT = (ClientTimeout, TimeoutError, DeadlineExceeded)
_RUN_FAILED = (RunError, EventsLost, HayrunnerError)


def show_tracebacks(wanted: bool) -> None:
    """For the rest of this process: unexpected errors come out as they are."""
    global _debugging
    _debugging = wanted


def run(work: Coroutine[Any, Any, ExitCode], *, as_json: bool = False) -> None:
    """Run a command's coroutine on a loop of its own and leave with its code."""
    finish(lambda: asyncio.run(work), as_json=as_json)


def finish(work: Callable[[], ExitCode | None], *, as_json: bool = False) -> None:
    """Do `work` and leave with its code; an exception is told in one line on standard error."""
    try:
        code = work() or ExitCode.DONE
    except BrokenPipeError:
        # Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.NO_READER
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    # Policy: the outermost boundary; whatever comes here is told in a line, never a traceback,
    # unless somebody asked for one.
    except Exception as error:
        if _debugging:
            raise
        code = _code_of(error)
        for line in error.problems if isinstance(error, LossRefused) else (_line_of(error),):
            say(line, as_json=as_json, exit_code=code)
    finally:
        while _at_end:
            _at_end.pop()()
    raise typer.Exit(int(code))


def at_end(do: Callable[[], None]) -> None:
    """`do` before this process leaves, whatever the command comes to."""
    _at_end.append(do)


def say(message: str, *, as_json: bool = False, exit_code: int | None = None) -> None:
    """One line on standard error."""
    if as_json:
        line: dict[str, Any] = {"error": message}
        if exit_code is not None:
            line["exit_code"] = int(exit_code)
        message = msgspec.json.encode(line).decode()
    else:
        message = f"hayrunner: {message}"
    print(message, file=sys.stderr, flush=True)


def _code_of(error: Exception) -> ExitCode:
    if isinstance(error, _USAGE):
        return ExitCode.USAGE
    # TimeoutError is an OSError, as ConnectionError is: first the narrow ones.
    if isinstance(error, _TIMED_OUT):
        return ExitCode.TIMED_OUT
    if isinstance(error, ConnectionError):
        return ExitCode.UNREACHABLE
    return ExitCode.RUN_FAILED


def _line_of(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, RunError):
        reference = f" (ref {error.ref})" if error.ref else ""
        return f"{error.code}: {text}{reference}"
    if isinstance(error, (*_USAGE, *_TIMED_OUT, *_RUN_FAILED, ConnectionError)):
        return text or type(error).__name__
    return f"unexpected {type(error).__name__}; set HAYRUNNER_DEBUG=1 for the traceback"
