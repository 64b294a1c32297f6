"""One pull: a request to the server for the next message, open for half a second at most.

Each pull has an inbox of its own, and is left to end by itself, by a message or by the server's
word that its time is over. Ended early, by withdrawing interest in the inbox, it can lose a
message that the server has counted as delivered and not sent yet: a round trip does not show it,
and it comes back only after `ack_wait`.
"""

import asyncio
import contextlib

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from hayrunner_contracts import subjects

__all__ = ["EXPIRES_S", "Pull", "PullFailed"]

EXPIRES_S = 0.5
_OVERDUE_S = 3.0
_CLOSE_S = 2.0
_ENDINGS = {"404", "408"}


class PullFailed(Exception):
    """The server says that this consumer cannot be pulled from. `status` is its number."""

    def __init__(self, status: str, description: str) -> None:
        super().__init__(f"{status} {description}")
        self.status = status


class Pull:
    """`open`, `wait`, then `close`, which may still bring a message.

    `expires_s`: how long it stays open, at most `EXPIRES_S`; 0 for no longer than a look.
    """

    def __init__(self, nc: Client, consumer: str, *, expires_s: float = EXPIRES_S) -> None:
        self._nc = nc
        self._expires_s = expires_s
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.AGENT_REQUESTS}.{consumer}"
        self.closed = asyncio.Event()
        self._ended = asyncio.Event()
        self._beat = asyncio.Event()
        self._expired = False
        self._message: Msg | None = None
        self._failure: PullFailed | None = None

    async def open(self) -> None:
        inbox = self._nc.new_inbox()
        self._subscription = await self._nc.subscribe(inbox, cb=self._take)
        request: dict[str, int | bool] = {"batch": 1}
        if self._expires_s:
            request["expires"] = int(self._expires_s * 1e9)
        else:
            request["no_wait"] = True
        await self._nc.publish(self._subject, msgspec.json.encode(request), reply=inbox)

    async def wait(self) -> None:
        """Return when a message came, the pull ended, or its server went silent; `PullFailed`."""
        while not (self._ended.is_set() or self._expired):
            self._beat.clear()
            try:
                await asyncio.wait_for(self._beat.wait(), EXPIRES_S + _OVERDUE_S)
            except TimeoutError:
                # The server forgot the pull: it was restarted, or has a new leader.
                return
        if self._failure is not None:
            raise self._failure

    def expire(self) -> None:
        """Make `wait` return: the server forgot the pull."""
        self._expired = True
        self._beat.set()

    async def close(self) -> Msg | None:
        """End the pull, once. A message that came in the last moment is returned."""
        with contextlib.suppress(NatsError, TimeoutError):
            if self._ended.is_set() or not self._nc.is_connected:
                await self._subscription.unsubscribe()
            else:
                await asyncio.wait_for(self._subscription.drain(), _CLOSE_S)
        # It refers to this: a cycle that only the garbage collector would end.
        del self._subscription
        self.closed.set()
        return self._message

    async def _take(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status") if not message.data else None
        if status is None:
            self._message = message
            self._ended.set()
        elif status in _ENDINGS:
            self._ended.set()
        elif status != "100":
            description = (message.headers or {}).get("Description", "")
            self._failure = PullFailed(status, description)
            self._ended.set()
        self._beat.set()
