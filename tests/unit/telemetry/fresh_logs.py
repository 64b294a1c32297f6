"""Logging as it is in a new process, for tests that set it up."""

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from hayrunner.telemetry.logs import set_up_logs

SetUp = Callable[..., None]


@pytest.fixture
def set_up(capsys: pytest.CaptureFixture[str]) -> Iterator[SetUp]:
    """`set_up_logs`, undone after the test. `capsys.readouterr().err` has what is logged."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogRecordFactory(), logging.raiseExceptions
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}

    def start(**given: Any) -> None:
        settings: dict[str, Any] = {"form": "json", "level": "DEBUG", **given}
        set_up_logs(**settings)
        # Loggers of modules outlive the test.
        structlog.configure(cache_logger_on_first_use=False)

    with warnings.catch_warnings():
        yield start
    root.handlers, factory = before[0], before[2]
    root.setLevel(before[1])
    logging.setLogRecordFactory(factory)
    logging.raiseExceptions = before[3]
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
    structlog.reset_defaults()
