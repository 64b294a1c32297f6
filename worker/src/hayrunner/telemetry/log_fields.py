"""What every record of a run says of it: which one, whose, the how-manieth attempt, its trace.

Kept in a context variable of the worker's own and not in structlog's: an agent's code may put
anything into that one, and it would stand in the worker's records from then on.
"""

import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from structlog.typing import EventDict

__all__ = ["bind", "bound", "with_context"]

# Made of a subject that anybody may have published to.
_AGENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
# Garbage is collected, and a task's forgotten exception told, in whatever run allocates just then.
_OF_NO_RUN = frozenset({"asyncio", "hayrunner.telemetry.unhandled"})

_NOTHING: Mapping[str, str | int] = {}
_fields: ContextVar[Mapping[str, str | int]] = ContextVar("hayrunner_log_fields", default=_NOTHING)


@contextmanager
def bound(
    *, message_id: str | None = None, agent: str | None = None, attempt: int | None = None
) -> Generator[None]:
    """Records made in this block, in tasks and tool threads that start in it, and after a `bind`
    in it, have these fields. Afterwards what was bound before counts again."""
    token = _fields.set(_more(message_id, agent, attempt))
    try:
        yield
    finally:
        _fields.reset(token)


def bind(
    *, message_id: str | None = None, agent: str | None = None, attempt: int | None = None
) -> None:
    """The same up to the end of the `bound` block around it, or of the task."""
    _fields.set(_more(message_id, agent, attempt))


def with_context(logger: object, method: str, event: EventDict) -> EventDict:
    """A structlog processor: the fields that are bound, and the ids of the current span, if any.
    What the record itself says of a field stands."""
    if event.get("logger") in _OF_NO_RUN:
        return event
    for name, value in _fields.get().items():
        event.setdefault(name, value)
    for name, value in _trace().items():
        event.setdefault(name, value)
    return event


def _more(
    message_id: str | None, agent: str | None, attempt: int | None
) -> Mapping[str, str | int]:
    if agent is not None and not _AGENT_NAME.fullmatch(agent):
        agent = "_OTHER"
    given = {"message_id": message_id, "agent": agent, "attempt": attempt}
    return {**_fields.get(), **{name: value for name, value in given.items() if value is not None}}


def _trace() -> Mapping[str, str]:
    # Looked up, not imported: where nobody has loaded it, nobody traces.
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
