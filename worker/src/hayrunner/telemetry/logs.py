"""Logs, set up in one place: structlog over the standard library, JSON or for a terminal.

No record holds content, at any level of any logger: `log_records` reduces those of other
libraries, the worker's own are made of a closed set of fields, and exceptions are logged as their
type and place in the code, never their message.
"""

import logging
import secrets
import sys
from collections.abc import Collection
from typing import Literal

import msgspec
import structlog

from hayrunner.telemetry.log_fields import with_context
from hayrunner.telemetry.log_records import cause_of, guard_records, with_place
from hayrunner.telemetry.unhandled import log_unhandled

__all__ = ["cause_of", "get_logger", "guard_records", "new_ref", "set_up_logs"]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

# What these say below a warning is one line and more for each request, chunk or connection, of
# which nothing would be left but the place.
_TALKATIVE = (
    *("aiohttp", "httpcore", "httpcore2", "httpx", "httpx2", "urllib3"),
    *("anthropic", "nats", "openai", "uvicorn"),
)
# Say at INFO what is worth knowing only to who looks for a mistake. They also attach handlers of
# their own when they are imported, which would show a record twice.
_WITH_HANDLERS = ("faststream", "haystack", "haystack_experimental", "haystack_integrations")


def set_up_logs(
    *,
    form: Literal["json", "console"] = "console",
    level: LogLevel = "INFO",
    trusted: Collection[str] = (),
) -> None:
    """Send the log of this process to standard error; call it at the start of a process, and
    again once everything is imported. `trusted`: see `guard_records`."""
    guard_records(trusted)
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        with_context,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                with_place,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _renderer(form),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    _quiet_libraries(level)
    log_unhandled()


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module. Events are short sentences, everything else is a key."""
    return structlog.stdlib.get_logger(name)


def new_ref() -> str:
    """An id that joins what a requester is told to the log line with the cause."""
    return secrets.token_hex(5)


def _renderer(form: Literal["json", "console"]) -> structlog.typing.Processor:
    if form == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())


def _quiet_libraries(level: LogLevel) -> None:
    least = "ERROR" if level == "ERROR" else "WARNING"
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(least)
    for name in _WITH_HANDLERS:
        logging.getLogger(name).setLevel("DEBUG" if level == "DEBUG" else least)
    # Says at every start and end that a server process started and ended: ours, which says so.
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _WITH_HANDLERS:
            library = logging.getLogger(name)
            library.handlers, library.propagate = [], True


class _Handler(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """To standard error. Of a record that cannot be shown, the place is."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        # Policy: a mistake in a log call must neither fail what was logged nor be printed by the
        # standard library, which shows the arguments.
        except Exception as error:
            told = {
                "event": "a record cannot be shown",
                "level": "error",
                "logger": record.name,
                "place": f"{record.pathname}:{record.lineno}",
                "error_type": type(error).__qualname__,
            }
            return msgspec.json.encode(told).decode()
