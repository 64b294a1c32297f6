"""Logging of a process as `hayrunner serve` sets it up, caught: twice by the worker's own handler,
once by one that a library attached before; every logger at DEBUG."""

import io
import logging
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import structlog
from tests.sweep.capture import Captured, RecordKeeper

from hayrunner.telemetry import logs

__all__ = ["caught_logs", "everything_at_debug"]


@contextmanager
def caught_logs(captured: Captured) -> Generator[None]:
    """Everything that is logged, warned of and printed meanwhile goes into `captured`."""
    output = io.StringIO()
    with _logging_as_it_was(), _standard_streams(output), warnings.catch_warnings():
        warnings.simplefilter("always")
        keeper = RecordKeeper(captured)
        printed = {form: _set_up(form) for form in ("console", "json")}
        root = logging.getLogger()
        root.handlers = [handler for handler, _ in printed.values()] + [keeper]
        everything_at_debug(keeper)
        yield
    for form, channel in (("json", "log, as JSON"), ("console", "log, as text")):
        for line in printed[form][1].getvalue().splitlines():
            captured.add(channel, "line", line)
    for line in output.getvalue().splitlines():
        captured.add("process output", "line", line)


def everything_at_debug(keeper: logging.Handler | None = None) -> None:
    """Every logger there is now, also those that were quieted, and those that pass nothing on."""
    logging.getLogger().setLevel(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        if keeper is not None and not logger.propagate and keeper not in logger.handlers:
            logger.addHandler(keeper)


def _set_up(form: Any) -> tuple[logging.Handler, io.StringIO]:
    """The handler that the worker's own set-up makes, writing into a text of its own."""
    stream, stderr = io.StringIO(), sys.stderr
    sys.stderr = stream
    try:
        logs.set_up_logs(form=form, level="DEBUG")
    finally:
        sys.stderr = stderr
    # Loggers of modules outlive the test.
    structlog.configure(cache_logger_on_first_use=False)
    return logging.getLogger().handlers[0], stream


@contextmanager
def _standard_streams(output: io.StringIO) -> Generator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = output
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def _logging_as_it_was() -> Generator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogRecordFactory(), logging.raiseExceptions
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    known = [n for n in logging.root.manager.loggerDict]
    levels = {name: logging.getLogger(name).level for name in known}
    try:
        yield
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
        logging.setLogRecordFactory(before[2])
        logging.raiseExceptions = before[3]
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        for name in list(logging.root.manager.loggerDict):
            logger = logging.getLogger(name)
            logger.setLevel(levels.get(name, logging.NOTSET))
            logger.handlers = [h for h in logger.handlers if not isinstance(h, RecordKeeper)]
        structlog.reset_defaults()
