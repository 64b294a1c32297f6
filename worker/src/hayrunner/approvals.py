"""Tools that a person is asked about before they run: how they are marked, what an agent says of
them."""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from hayrunner.errors import ConfigurationError
from hayrunner.hooks import HookRun, PendingCall

__all__ = [
    "ApprovalPolicy",
    "ApprovalRules",
    "OnApprovalTimeout",
    "is_marked",
    "requires_approval",
]

T = TypeVar("T")

ApprovalPolicy = Callable[[PendingCall, HookRun], bool | Awaitable[bool]]
OnApprovalTimeout = Literal["deny", "stop"]

_MARK = "_hayrunner_requires_approval"


def requires_approval(tool: T) -> T:
    """Mark a function or a Haystack `Tool`: none of its calls runs before a person approved it.

    As a decorator it works above Haystack's `@tool` and below it. The mark of a function holds for
    every tool that is made of it, the mark of a `Tool` for that object alone; neither is part of
    what Haystack serializes. Raises `ConfigurationError` for anything that cannot be marked: the
    tools of a toolset are marked one by one, or named in `Agent.approvals`.
    """
    if not callable(tool) and not hasattr(tool, "parameters"):
        raise ConfigurationError(
            f"requires_approval marks functions and tools, not {type(tool).__name__}; "
            "tools of a toolset can be named in Agent.approvals"
        )
    try:
        setattr(tool, _MARK, True)
    except AttributeError:
        raise ConfigurationError(
            f"{type(tool).__name__} cannot be marked: mark the function it is made of"
        ) from None
    return tool


def is_marked(tool: Any) -> bool:
    """Whether a tool is marked, or the function that it calls."""
    parts = [tool, getattr(tool, "function", None), getattr(tool, "async_function", None)]
    return any(_has_mark(part) for part in parts)


def _has_mark(part: Any) -> bool:
    while part is not None:
        if getattr(part, _MARK, False) is True:
            return True
        part = part.func if isinstance(part, functools.partial) else None
    return False


@dataclass(frozen=True, kw_only=True)
class ApprovalRules:
    """Which calls of an agent need an approval beside those of marked tools, and how long a run
    waits for one: seconds, None for as long as the run may last."""

    names: frozenset[str] = frozenset()
    policy: ApprovalPolicy | None = None
    timeout_s: float | None = 3600.0
    on_timeout: OnApprovalTimeout = "deny"

    def __post_init__(self) -> None:
        if self.on_timeout not in ("deny", "stop"):
            raise ConfigurationError('on_approval_timeout is "deny" or "stop"')
        if self.timeout_s is not None and self.timeout_s < 0:
            raise ConfigurationError("approval_timeout_s must not be negative")
