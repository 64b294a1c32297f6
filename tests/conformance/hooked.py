"""Hooks that do what a test says."""

import inspect
from collections.abc import Callable
from typing import Any

from hayrunner.hooks import RunHooks

__all__ = ["POINTS", "hook", "idle_hook"]

POINTS = tuple(name for name in vars(RunHooks) if name.startswith("on_"))


def hook(**answers: Any) -> RunHooks:
    """`hook(on_tool_call=Skip("no"))`: a hook that gives these answers, or, where an answer is a
    function, what that makes of the point's arguments; an exception is raised."""
    methods: dict[str, Any] = {point: _method(answer) for point, answer in answers.items()}
    return type("Scripted", (RunHooks,), methods)()


def _method(answer: Any) -> Callable[..., Any]:
    async def method(self: RunHooks, *args: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        given = answer(*args) if callable(answer) else answer
        return await given if inspect.isawaitable(given) else given

    return method


def idle_hook() -> RunHooks:
    """A hook that has every point and does nothing at any."""
    return hook(**dict.fromkeys(POINTS))
