"""What a subscription delivered and nobody has read yet."""

import asyncio
from collections import deque

from nats.aio.msg import Msg

__all__ = ["Mailbox"]


class Mailbox:
    """A bounded buffer between a subscription's callback and one reader.

    Full, it drops what comes and says so in `overflowed`: the reader gets it from the stream.
    No task and no timeout object per message: at 20,000 messages a second those would be most of
    the work.
    """

    def __init__(self, *, messages: int = 0, size: int = 0) -> None:
        self.overflowed = False
        self._messages = messages
        self._size = size
        self._held: deque[Msg] = deque()
        self._held_size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False

    async def deliver(self, message: Msg) -> None:
        """The callback for the subscription."""
        size = len(message.data)
        if (self._messages and len(self._held) >= self._messages) or (
            self._size and self._held_size + size > self._size and self._held
        ):
            self.overflowed = True
            return
        self._held.append(message)
        self._held_size += size
        self._release()

    def wake(self) -> None:
        """End the wait that is going on, or the next one."""
        self._woken = True
        self._release()

    def clear(self) -> None:
        """Drop what is held, as if it had not fitted in."""
        if self._held:
            self.overflowed = True
        self._held.clear()
        self._held_size = 0

    def take(self) -> Msg | None:
        """The next message, if there is one."""
        if not self._held:
            return None
        message = self._held.popleft()
        self._held_size -= len(message.data)
        return message

    async def wait(self, seconds: float, *, for_messages: bool = True) -> None:
        """Wait until there is a message or somebody wakes, at most `seconds`. Not
        `for_messages`: what is held does not end the wait."""
        if not (self._held and for_messages) and not self._woken and seconds > 0:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._release)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._woken = False

    async def next(self, seconds: float) -> Msg | None:
        """The next message; None if none came within `seconds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            message = self.take()
            if message is not None or loop.time() >= end:
                return message
            await self.wait(end - loop.time())

    def _release(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
