"""Requests that no pull will ever bring: for agents nobody serves, and those delivered too often.

Both would wait on the queue for ever. Every worker looks; the claim decides who acts.

A server of a cluster that was away for a moment may still believe that it leads, and tell of
consumers and requests as it last knew them. So nothing is ended on one look: what is missing has to
be missing in two rounds, and a request has to be there when the stream's leader is asked for it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import ClaimLost
from hayrunner.serving.deliveries import Delivery
from hayrunner.serving.failures import failure
from hayrunner.serving.stored import messages_of
from hayrunner.telemetry.logs import cause_of, get_logger, new_ref
from hayrunner_contracts import subjects
from hayrunner_contracts.errors import InvalidRequest, RunFailure

__all__ = ["Sweeper"]

_log = get_logger(__name__)

_INTERVAL_S = 2.0
_GRACE_S = 2.0
_MAX_DELIVERIES = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.AGENT_REQUESTS}.*"
_NAMES = f"$JS.API.CONSUMER.NAMES.{subjects.AGENT_REQUESTS}"


class _Advisory(msgspec.Struct):
    consumer: str
    stream_seq: int


class _Names(msgspec.Struct):
    total: int
    consumers: list[str] | None = None


class _Stray(Delivery):
    """A request read from the stream, not delivered: acked by deleting it."""

    def __init__(self, bus: Bus, **of_delivery: object) -> None:
        super().__init__(None, times_delivered=1, **of_delivery)  # pyright: ignore[reportArgumentType]
        self._bus = bus

    async def ack(self) -> bool:
        self.settled = True
        try:
            await self._bus.js.delete_msg(subjects.AGENT_REQUESTS, self.sequence)
        except NotFoundError:
            return True
        except NatsError:
            # Still there: the next round finds it, and finds its claim closed.
            return False
        return True


@dataclass(kw_only=True)
class Sweeper:
    """Looks every few seconds, and listens for the server's word of requests it gave up on.

    `give_up` ends a request with a failed result and a dead letter.
    """

    bus: Bus
    agents: list[str]
    give_up: Callable[[Delivery, RunFailure], Awaitable[None]]
    interval_s: float = _INTERVAL_S
    _stuck_before: set[int] = field(default_factory=set[int])
    _unserved_before: set[str] = field(default_factory=set[str])

    async def run(self) -> None:
        """Until cancelled."""
        await self.bus.nc.subscribe(
            _MAX_DELIVERIES, queue=f"hayrunner-{self.bus.namespace}", cb=self._on_advisory
        )
        while True:
            # Workers started together should not look together.
            await asyncio.sleep(self.interval_s * random.uniform(0.75, 1.25))
            try:
                if self.bus.link.up:
                    await self.sweep()
            except NatsError as error:
                _log.info("looking for stray requests failed", **cause_of(error))
            # A named supervisor: one bad round must not end the rounds.
            except Exception as error:
                ref = new_ref()
                _log.error("looking for stray requests failed", ref=ref, **cause_of(error))

    async def sweep(self) -> None:
        """One look at the queue of this namespace."""
        pattern = subjects.all_agents_requests(self.bus.namespace)
        info = await self.bus.js.stream_info(subjects.AGENT_REQUESTS, subjects_filter=pattern)
        waiting = info.state.subjects or {}
        if not waiting:
            self._stuck_before.clear()
            self._unserved_before.clear()
            return
        served = await self._consumer_names()
        stuck: set[int] = set()
        unserved: set[str] = set()
        for subject in waiting:
            _, agent = subjects.parse_requests_subject(subject)
            name = self._consumer_of(agent)
            if agent in self.agents and name is not None:
                stuck |= await self._end_stuck(subject, agent, name)
            elif name is None or name not in served:
                unserved.add(subject)
                if subject in self._unserved_before and await self._has_no_consumer(name):
                    await self._end_unserved(subject, agent)
        self._stuck_before, self._unserved_before = stuck, unserved

    async def _has_no_consumer(self, name: str | None) -> bool:
        if name is None:
            return True
        try:
            await self.bus.js.consumer_info(subjects.AGENT_REQUESTS, name)
        except NotFoundError:
            return True
        return False

    async def _end_unserved(self, subject: str, agent: str) -> None:
        cause = failure("unknown_agent", f"no worker ever served an agent {_shown(agent)}")
        async for stray in self._strays(subject, agent):
            # An agent that is just being deployed gets its consumer in a moment.
            if time.time() - stray.requested_at > _GRACE_S:
                await self._end(stray, cause)

    async def _end_stuck(self, subject: str, agent: str, consumer: str) -> set[int]:
        """Requests that an idle consumer passed and that are still there: delivered too often.

        Seen in two rounds, so that one which is being acked just now is not taken for it.
        """
        try:
            info = await self.bus.js.consumer_info(subjects.AGENT_REQUESTS, consumer)
        except NotFoundError:
            # The intake makes it again, or says that it is gone.
            return set()
        if info.num_pending or info.num_ack_pending or info.delivered is None:
            return set()
        passed = info.delivered.stream_seq
        found: set[int] = set()
        async for stray in self._strays(subject, agent):
            if stray.sequence > passed:
                break
            found.add(stray.sequence)
            if stray.sequence in self._stuck_before:
                await self._end(stray, failure("worker_lost"))
        return found

    async def _on_advisory(self, message: Msg) -> None:
        try:
            advisory = msgspec.json.decode(message.data, type=_Advisory)
        except msgspec.DecodeError:
            return
        for agent in self.agents:
            if subjects.consumer_name(self.bus.namespace, agent) == advisory.consumer:
                subject = subjects.requests(self.bus.namespace, agent)
                async for stray in self._strays(subject, agent, start=advisory.stream_seq):
                    if stray.sequence == advisory.stream_seq:
                        await self._end(stray, failure("worker_lost"))
                    break

    async def _end(self, stray: Delivery, cause: RunFailure) -> None:
        try:
            # It was read from whichever replica answered, which may be behind.
            await self.bus.js.get_msg(subjects.AGENT_REQUESTS, stray.sequence)
        except NotFoundError:
            return
        try:
            await self.give_up(stray, cause)
        except ClaimLost:
            # Another worker found it too, and ends it.
            return

    async def _strays(self, subject: str, agent: str, *, start: int = 1) -> AsyncIterator[Delivery]:
        async for message in messages_of(
            self.bus.nc, subjects.AGENT_REQUESTS, subject, start=start
        ):
            yield _Stray(
                self.bus,
                agent=agent,
                subject=subject,
                data=message.data,
                headers=message.headers,
                sequence=message.sequence,
                requested_at=message.stored_at,
            )

    async def _consumer_names(self) -> set[str]:
        names: set[str] = set()
        while True:
            ask = msgspec.json.encode({"offset": len(names)})
            answer = await self.bus.nc.request(_NAMES, ask, timeout=5)
            page = msgspec.json.decode(answer.data, type=_Names)
            names.update(page.consumers or ())
            if not page.consumers or len(names) >= page.total:
                return names

    def _consumer_of(self, agent: str) -> str | None:
        try:
            return subjects.consumer_name(self.bus.namespace, agent)
        except InvalidRequest:
            return None


def _shown(agent: str) -> str:
    return repr(agent[:128]) if agent.isascii() and agent.isprintable() else "of that name"
