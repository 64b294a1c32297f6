"""One delivery of one request, and the heartbeat that keeps all held ones alive."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from hayrunner.serving.connection import Link
from hayrunner.telemetry.logs import get_logger

__all__ = ["Delivery", "Heartbeat"]

_log = get_logger(__name__)

_ACK_TRIES = 5
_ACK_TIMEOUT_S = 2.0
_BEATS_PER_ACK_WAIT = 4
_IN_PROGRESS = b"+WPI"


class Delivery:
    """A request as the server handed it over. Ends in exactly one `ack` or `nak`.

    `sequence` is the request's in `AGENT_REQUESTS`, `requested_at` when that took it, in seconds
    since the epoch.
    """

    def __init__(
        self,
        message: Msg | None,
        *,
        agent: str,
        subject: str,
        data: bytes,
        headers: dict[str, str],
        sequence: int,
        requested_at: float,
        times_delivered: int,
        nc: Client | None = None,
    ) -> None:
        self.agent = agent
        self.subject = subject
        self.data = data
        self.headers = headers
        self.sequence = sequence
        self.requested_at = requested_at
        self.times_delivered = times_delivered
        self.settled = False
        self.lease_s = float("inf")
        """How long after `confirmed_at` nobody else can have been given the request."""
        self.confirmed_at = time.monotonic()
        """When the server was last known to count it as this worker's, on the monotonic clock."""
        self._message = message
        self._nc = nc

    @classmethod
    def of(cls, message: Msg, *, agent: str, nc: Client | None = None) -> "Delivery":
        """A message that was pulled, over the connection `nc`."""
        metadata = message.metadata
        return cls(
            message,
            agent=agent,
            subject=message.subject,
            data=message.data,
            headers=dict(message.headers or {}),
            sequence=metadata.sequence.stream,
            requested_at=metadata.timestamp.timestamp(),
            times_delivered=metadata.num_delivered,
            nc=nc,
        )

    def adopt(self, newer: "Delivery") -> None:
        """The same request came again, to the worker that is running it: go on with that."""
        self._message = newer._message
        self.confirmed_at = newer.confirmed_at
        self.times_delivered = newer.times_delivered
        newer.settled = True

    async def ack(self) -> bool:
        """Take the request off the queue, confirmed by the server; whether it was confirmed.

        Where it was not, the request comes again and is answered from its stored result.
        """
        self.settled = True
        if self._message is None:
            return False
        for _ in range(_ACK_TRIES):
            try:
                await self._message.ack_sync(timeout=_ACK_TIMEOUT_S)
                return True
            except NatsError:
                await asyncio.sleep(0.1)
        _log.warning("an ack was not confirmed", agent=self.agent, sequence=self.sequence)
        return False

    async def nak(self, delay_s: float | None = None) -> None:
        """Put the request back, for any worker, after `delay_s` seconds or at once."""
        self.settled = True
        if self._message is None:
            return
        try:
            await self._message.nak(delay=delay_s)
        except NatsError:
            # Without it, the request comes back when its ack deadline is over.
            _log.warning("a nak was not sent", agent=self.agent, sequence=self.sequence)

    @property
    def overdue(self) -> bool:
        """Whether another worker may have been given the request by now: this process stood
        still, or the server it is connected to has lost the others."""
        return time.monotonic() - self.confirmed_at > self.lease_s

    def confirm(self) -> None:
        """The request is known to be this worker's just now."""
        self.confirmed_at = time.monotonic()

    async def in_progress(self, timeout_s: float) -> None:
        """Extend the ack deadline, confirmed by the server. `nats.errors.Error` where it is not
        within `timeout_s`."""
        if self._message is None or self._nc is None:
            return
        sent_at = time.monotonic()
        await self._nc.request(self._message.reply, _IN_PROGRESS, timeout=timeout_s)
        self.confirmed_at = sent_at


class Heartbeat:
    """Extends the ack deadline of every held delivery, at a quarter of `ack_wait`, from the
    moment of receipt to the end, whatever the handlers do.

    `on_overdue` is called after a pause of this process in which deadlines may have passed;
    `on_miss` counts.
    """

    def __init__(
        self,
        ack_wait_s: float,
        link: Link,
        *,
        on_miss: Callable[[], None],
        on_overdue: Callable[[], Awaitable[None]],
    ) -> None:
        self._interval = ack_wait_s / _BEATS_PER_ACK_WAIT
        self._ack_wait = ack_wait_s
        self._link = link
        self._on_miss = on_miss
        self._on_overdue = on_overdue
        self._held: set[Delivery] = set()
        self._looking: asyncio.Future[None] | None = None

    def hold(self, delivery: Delivery) -> None:
        delivery.lease_s = self._ack_wait - self._interval
        self._held.add(delivery)

    def let_go(self, delivery: Delivery) -> None:
        self._held.discard(delivery)

    @property
    def held(self) -> int:
        return len(self._held)

    async def beat(self) -> None:
        """One heartbeat for each; nothing while the connection is away, so that no stale ones
        queue up in its buffer."""
        if not self._link.up:
            for _ in self._held:
                self._on_miss()
            return
        await asyncio.gather(*(self._beat(delivery) for delivery in list(self._held)))

    async def _beat(self, delivery: Delivery) -> None:
        if delivery.settled:
            return
        try:
            await delivery.in_progress(self._interval)
        except NatsError:
            self._on_miss()

    async def run(self) -> None:
        """Beat until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, last + self._interval - time.monotonic()))
            now = time.monotonic()
            if now - last > 2 * self._interval:
                self._on_miss()
            if now - last > self._ack_wait - self._interval:
                self._look_what_is_lost()
            last = now
            await self.beat()

    def _look_what_is_lost(self) -> None:
        """Others may have been given our runs: end those that are theirs."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._on_overdue())
