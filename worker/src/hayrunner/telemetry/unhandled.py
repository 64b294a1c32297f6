"""Exceptions and warnings that nobody handles: Python prints them with their text, which may be
content. As log records they have their type and their place."""

import sys
import threading
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import structlog

from hayrunner.telemetry.log_records import cause_of

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["log_unhandled"]

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


def log_unhandled() -> None:
    """From now on in this process, warnings, and exceptions that end a thread or the process, or
    that are raised where nobody can catch them, are log records without their text."""
    if sys.excepthook is sys.__excepthook__:
        # The command line has one of its own, which shows tracebacks where somebody asked for them.
        sys.excepthook = _ended_the_process
    threading.excepthook = _ended_a_thread
    sys.unraisablehook = _not_raised
    warnings.showwarning = _warned


def _ended_the_process(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _log.critical("an unhandled exception ended the process", **cause_of(error))


def _ended_a_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        _log.error("an unhandled exception ended a thread", **cause_of(args.exc_value))


def _not_raised(args: "UnraisableHookArgs") -> None:
    if args.exc_value is not None:
        _log.error("an exception could not be raised", **cause_of(args.exc_value))


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    # Pydantic and others put the value they warn of into the text.
    kind = f"{category.__module__}.{category.__qualname__}"
    _log.warning("a warning was issued", warning=kind, place=f"{filename}:{lineno}")
