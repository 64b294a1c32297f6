"""Ctrl-C while a run is watched: end the run, or only the watching?

A consumer that goes away does not cancel a run, so without a terminal to ask on Ctrl-C only ends
the watching.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from enum import StrEnum
from typing import Self, TypeVar

from hayrunner.cli.terminal import has_terminal, read_line

__all__ = ["Interrupts", "OnInterrupt", "Verdict", "decide", "watch"]

T = TypeVar("T")

_QUESTION = "\nThe run goes on. [c]ancel it, [l]eave it running, Enter: go on watching? "


class OnInterrupt(StrEnum):
    """What Ctrl-C does."""

    ASK = "ask"
    CANCEL = "cancel"
    LEAVE = "leave"


class Verdict(StrEnum):
    """What is to be done now."""

    CANCEL = "cancel"
    LEAVE = "leave"
    GO_ON = "go on"


class Interrupts:
    """SIGINT as something to wait for, inside its block."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._came.set)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def wait(self) -> None:
        """Until the next one."""
        await self._came.wait()
        self._came.clear()


async def watch(
    items: AsyncGenerator[T, None],
    interrupts: Interrupts,
    on_interrupt: Callable[[], Awaitable[bool]],
) -> AsyncGenerator[T, None]:
    """The items; at an interrupt `on_interrupt` is asked whether to go on."""
    following = asyncio.ensure_future(anext(items))
    interrupt = asyncio.ensure_future(interrupts.wait())
    try:
        while True:
            await asyncio.wait({following, interrupt}, return_when=asyncio.FIRST_COMPLETED)
            if interrupt.done():
                if not await on_interrupt():
                    return
                interrupt = asyncio.ensure_future(interrupts.wait())
                continue
            try:
                item = following.result()
            except StopAsyncIteration:
                return
            yield item
            following = asyncio.ensure_future(anext(items))
    finally:
        interrupt.cancel()
        following.cancel()
        await asyncio.gather(interrupt, following, return_exceptions=True)
        await items.aclose()


async def decide(wanted: OnInterrupt, interrupts: Interrupts) -> Verdict:
    """What to do about an interrupt; a second one while the question stands leaves the run."""
    if wanted is OnInterrupt.CANCEL:
        return Verdict.CANCEL
    if wanted is OnInterrupt.LEAVE or not has_terminal():
        return Verdict.LEAVE
    print(_QUESTION, end="", file=sys.stderr, flush=True)
    answer = asyncio.ensure_future(read_line())
    again = asyncio.ensure_future(interrupts.wait())
    try:
        await asyncio.wait({answer, again}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return Verdict.LEAVE
        return _verdict(answer.result())
    finally:
        answer.cancel()
        again.cancel()


def _verdict(line: str) -> Verdict:
    if not line or line.strip().lower().startswith("l"):
        return Verdict.LEAVE  # an empty read is the end of input
    if line.strip().lower().startswith("c"):
        return Verdict.CANCEL
    return Verdict.GO_ON
