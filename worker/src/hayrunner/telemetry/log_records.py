"""What a log record may hold, decided where it is made.

Libraries log what they work on: Haystack tool arguments and pipeline inputs, HTTP clients bodies
and headers, NATS subjects and texts of the server, asyncio the exception of a forgotten task. So
every record that is not the worker's own is reduced while it is made, before any handler sees it:
its arguments, and the text of its exception, are gone. Its message stays where it is a literal in
the code that logs, which no content can be; anything put together at run time does not.
"""

import inspect
import logging
import re
import sys
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import structlog
from structlog.typing import EventDict

from hayrunner.telemetry.log_fields import with_context

__all__ = ["WITHHELD", "cause_of", "guard_records", "with_place"]

WITHHELD = "(text withheld)"

_OWN = ("hayrunner", "hayrunner_contracts")
_FRAMES_MOST = 40
_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True)
_LIBRARIES = re.compile(r".*[/\\](site-packages|python3\.\d+)[/\\]")
_CAUSE = "hayrunner_cause"
_FOREIGN = "hayrunner_foreign"
# How structlog's formatter knows its own.
_OF_STRUCTLOG = ("_logger", "_name")

# Beginnings of messages that are put together at run time; of such a one, the beginning is shown.
_BEGINNINGS: Mapping[str, tuple[str, ...]] = {
    "asyncio": (
        "Task exception was never retrieved",
        "Future exception was never retrieved",
        "Task was destroyed but it is pending!",
        "Exception in callback",
        "Unclosed client session",
        "Unclosed connection",
        "Unclosed connector",
        "unhandled exception during asyncio.run() shutdown",
    ),
}


def guard_records(trusted: Collection[str] = ()) -> None:
    """From now on, in the whole process, no record but the worker's own holds anything that was
    not written into the code. Loggers named in `trusted`, and those below them, keep their
    messages and arguments; the text of exceptions nobody does. Calling it again replaces
    `trusted`."""
    made = logging.getLogRecordFactory()
    plain = made.plain if isinstance(made, _Guard) else made
    logging.setLogRecordFactory(_Guard(plain, frozenset((*_OWN, *trusted))))
    # Else a record that cannot be formatted is printed with its arguments, by whatever handler.
    logging.raiseExceptions = False


def cause_of(error: BaseException) -> dict[str, str]:
    """What a log line may say of an exception: its type and where it was raised.

    Not its message, nor those of its causes: they repeat tool arguments and provider bodies.
    """
    frames = list(traceback.walk_tb(error.__traceback__))[-3:]
    places = [f"{_short(f.f_code.co_filename)}:{line} {f.f_code.co_name}" for f, line in frames]
    kind = type(error)
    return {
        "error_type": f"{kind.__module__}.{kind.__qualname__}",
        "raised_at": " < ".join(reversed(places)),
    }


def with_place(logger: object, method: str, event: EventDict) -> EventDict:
    """A structlog processor for a `ProcessorFormatter`: where a reduced record was made, and the
    cause that stands in place of an exception."""
    record: Any = event.get("_record")
    if getattr(record, _FOREIGN, False):
        event["place"] = f"{_short(record.pathname)}:{record.lineno}"
    info = event.pop("exc_info", None)
    event.update(getattr(record, _CAUSE, None) or _cause(info))
    for name in ("exception", "stack_info", "stack"):
        event.pop(name, None)
    return event


class _Guard:
    """A record factory over another one."""

    def __init__(self, plain: Any, trusted: frozenset[str]) -> None:
        self.plain = plain
        self._trusted = trusted
        self._known: dict[str, bool] = {}

    def __call__(
        self,
        name: str,
        level: int,
        fn: str,
        lno: int,
        msg: Any,
        args: Any,
        exc_info: Any,
        func: str | None = None,
        sinfo: str | None = None,
        **more: Any,
    ) -> logging.LogRecord:
        # What comes out of structlog is a dictionary.
        fields: dict[str, Any] = msg if isinstance(msg, dict) else {"event": msg}
        cause = _cause(exc_info or fields.get("exc_info")) or _cause(fields.get("event"))
        foreign = not self._trusts(str(name))
        if foreign:
            shown = _shown(name, fields.get("event"), fn, func)
            msg = _event(name, level, shown) if fields is msg else shown
            args = _kept_arguments(args)
        error = _kept_exception(exc_info)
        record = self.plain(name, level, fn, lno, msg, args, error, func, None, **more)
        record.__dict__.update({_CAUSE: cause, _FOREIGN: foreign})
        if foreign:
            record.__dict__ = _with_kept_extras(record.__dict__)
        return record

    def _trusts(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            parts = name.split(".")
            above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
            # Names are those of loggers, which are kept for ever, too.
            known = self._known[name] = not above.isdisjoint(self._trusted)
        return known


# Each of these is a gate of its own: without it, one kind of thing gets through, and no other.


def _kept_arguments(args: Any) -> Any:
    """None of a foreign record's."""
    return ()


def _kept_exception(info: Any) -> Any:
    """None of any record: handlers print texts, causes and notes. See `cause_of`."""
    return None


def _with_kept_extras(attributes: dict[str, Any]) -> dict[str, Any]:
    """A foreign record's attributes, which from now on take no values of extra fields."""
    return _WithoutExtras(attributes)


class _WithoutExtras(dict[str, Any]):
    """The attributes of a record. `extra` is written into them by item, after the factory is done,
    and nothing else is: handlers set attributes."""

    def __setitem__(self, key: str, value: Any) -> None:
        # Kept as names, so that a format that asks for one can still be filled in.
        super().__setitem__(key, value if key in _OF_STRUCTLOG else WITHHELD)


def _event(name: str, level: int, shown: str) -> EventDict:
    """A record for structlog's formatter with nothing in it that its maker put there."""
    event: EventDict = {"event": shown, "level": logging.getLevelName(level).lower()}
    return with_context(None, "", _STAMP(None, "", event | {"logger": name}))


def _cause(info: Any) -> dict[str, str]:
    if info is True:
        info = sys.exc_info()
    error = info[1] if isinstance(info, tuple) and len(info) > 1 else info
    return cause_of(error) if isinstance(error, BaseException) else {}


def _shown(name: str, text: Any, path: str, func: str | None) -> str:
    """The message of a foreign record as far as it is no content."""
    if type(text) is not str:
        return WITHHELD
    if _is_literal(text, path, func):
        # Nothing is put into it any more: the percent signs are only shown.
        return text
    for beginning in _BEGINNINGS.get(name, ()):
        if text.startswith(beginning):
            return beginning
    return WITHHELD


def _is_literal(text: str, path: str, func: str | None) -> bool:
    """Whether the function that logs has this text among its constants."""
    frame = inspect.currentframe()
    for _ in range(_FRAMES_MOST):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_filename == path and code.co_name == func:
            return any(type(known) is str and known == text for known in code.co_consts)
        frame = frame.f_back
    return False


def _short(path: str) -> str:
    """The path below the folder that packages are in, or the standard library."""
    return _LIBRARIES.sub("", path)
