"""What a tool can learn of the run it is called in, and tell its consumer."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from hayrunner_contracts.events import Data

__all__ = ["ToolCallInfo", "current_tool_call", "reset_tool_call", "set_tool_call"]


class ToolCallInfo(Struct, frozen=True, kw_only=True):
    """The call that a tool is running for.

    `tool_context` is this call's own copy of what the request gave under that name. The
    `idempotency_key` is the same whenever this call is run again, so that a tool can make
    whatever it does happen once.
    """

    message_id: str
    agent: str
    step: int
    tool_call_id: str
    tool_name: str
    thread_id: str | None = None
    user: str | None = None
    tool_context: dict[str, Any] = {}
    publish: Callable[[Data], Awaitable[None]] | None = None
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def idempotency_key(self) -> str:
        return f"{self.message_id}:{self.step}:{self.tool_call_id}"

    async def emit(self, data_type: str, data: Any = None) -> None:
        """Publish a `data` event to the run's consumers, from an async tool. Nothing is published
        once the run has ended."""
        if self.publish is not None:
            await self.publish(Data(data_type=data_type, data=data, step=self.step))

    def emit_from_thread(self, data_type: str, data: Any = None) -> None:
        """The same from a sync tool, which runs in a thread: returns once it was taken.

        `RuntimeError` on the event loop's own thread, which would wait for itself.
        """
        if self.loop is None:
            return
        if self.loop is asyncio._get_running_loop():  # pyright: ignore[reportPrivateUsage]
            raise RuntimeError("an async tool publishes with `await emit(...)`")
        asyncio.run_coroutine_threadsafe(self.emit(data_type, data), self.loop).result()


_current: contextvars.ContextVar[ToolCallInfo] = contextvars.ContextVar("hayrunner_tool_call")


def current_tool_call() -> ToolCallInfo:
    """The call that the running tool was called for; `LookupError` outside of one."""
    return _current.get()


def set_tool_call(info: ToolCallInfo) -> contextvars.Token[ToolCallInfo]:
    """For the loop: make `info` the current call of this task."""
    return _current.set(info)


def reset_tool_call(token: contextvars.Token[ToolCallInfo]) -> None:
    """For the loop: the call is over."""
    _current.reset(token)
