"""Asking whoever sits at the terminal."""

import asyncio
import os
import sys

__all__ = ["has_terminal", "read_line"]


def has_terminal() -> bool:
    """Whether a question can be put on standard error and answered on standard input."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def read_line() -> str:
    """A line, without a thread that would hold the process up after a second Ctrl-C. Empty at the
    end of input. Only one reader at a time."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    number = sys.stdin.fileno()
    loop.add_reader(number, lambda: readable.done() or readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(number)
    # A terminal gives a line at a time, at most 4,096 bytes of it.
    return os.read(number, 4096).decode(errors="replace")
