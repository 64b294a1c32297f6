"""Logs, set up in one place: structlog over the standard library, JSON or for a terminal.

No record holds content. Haystack and HTTP clients print tool arguments, prompts and bodies when
something fails, so their loggers get a level of their own, and every exception is logged as its
type and place in the code, never its message.
"""

import logging
import secrets
import sys
import traceback
from typing import Literal

import structlog

__all__ = ["cause_of", "get_logger", "new_ref", "set_up_logs"]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_TALKATIVE = {
    # Prints tool names, arguments and results on failures, pipeline inputs at DEBUG.
    "haystack": logging.CRITICAL,
    # Print URLs, headers and bodies at DEBUG and INFO.
    "openai": logging.ERROR,
    "httpx": logging.ERROR,
    "httpcore": logging.ERROR,
    "aiohttp": logging.ERROR,
    # Prints every message's subject at INFO, exception text on handler failures.
    "faststream": logging.ERROR,
    "nats": logging.ERROR,
    "uvicorn.access": logging.CRITICAL,
    # Says at every start and end that a server process started and ended: ours, which says so.
    "uvicorn.error": logging.WARNING,
}


def set_up_logs(*, form: Literal["json", "console"] = "console", level: LogLevel = "INFO") -> None:
    """Send the worker's log to standard error; call once, at the start of a process."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _without_exception_text],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name, least in _TALKATIVE.items():
        logging.getLogger(name).setLevel(least)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module. Events are short sentences, everything else is a key."""
    return structlog.stdlib.get_logger(name)


def new_ref() -> str:
    """An id that joins what a requester is told to the log line with the cause."""
    return secrets.token_hex(5)


def cause_of(error: BaseException) -> dict[str, str]:
    """What a log line may say of an exception: its type and where it was raised.

    Not its message, nor those of its causes: they repeat tool arguments and provider bodies.
    """
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-3:]]
    kind = type(error)
    return {
        "error_type": f"{kind.__module__}.{kind.__qualname__}",
        "raised_at": " < ".join(reversed(places)),
    }


def _without_exception_text(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Foreign records that carry an exception keep its type and place only."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event.update(cause_of(error))
    return event
