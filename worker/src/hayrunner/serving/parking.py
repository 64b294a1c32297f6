"""Parked runs: they wait for a person, and no worker holds them.

A run that is parked keeps its request on the queue, put back with a delay: it comes again by
itself when the wait is over, and now and then before that, so that its claim does not go by age. A
decision brings it back at once: all workers of a namespace read its commands through one durable
consumer, and the one that gets a command for a parked run publishes the request again. That copy
takes the place of the first one.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from hayrunner.serving.blobs import Blobs
from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import ClaimRecord, Claims, Parked
from hayrunner.serving.deliveries import Delivery
from hayrunner.serving.holdings import HeldRun
from hayrunner.serving.stored import count_of, store
from hayrunner.telemetry.logs import cause_of, get_logger
from hayrunner_contracts import headers, subjects
from hayrunner_contracts.codec import decode_command, peek_message_id
from hayrunner_contracts.commands import Say
from hayrunner_contracts.errors import RunError
from hayrunner_contracts.references import reference_of

__all__ = ["Parking"]

_log = get_logger(__name__)

_PARK_PATIENCE_S = 30.0
_WAKE_PATIENCE_S = 2.0
_FULL_AGAIN_S = 5.0
_LEAST_DELAY_S = 0.05
_BATCH = 20
_FETCH_S = 5.0
_BACK_OFF_S = 2.0


@dataclass(kw_only=True)
class Parking:
    """The parked runs of one namespace, as one worker sees them.

    `refresh_s` is how often a parked run is looked at without any news. `deliveries_most` is how
    often its request may be delivered before it is put in anew.
    """

    bus: Bus
    claims: Claims
    refresh_s: float
    deliveries_most: int

    async def park(self, held: HeldRun, *, wake_at: float | None, commands_seen: int) -> None:
        """Give the run up until there is news, and settle its delivery. `ClaimLost`,
        `nats.errors.Error`."""
        parked = Parked(wake_at=wake_at, commands_seen=commands_seen)
        await self.claims.park(held.claim, parked, patience_s=_PARK_PATIENCE_S)
        _log.info("a run waits for a decision", message_id=held.claim.message_id)
        # Whoever sends a command from here on finds the run parked, and wakes it. One that was
        # stored before may have been read by nobody who knew.
        news = await self._has_news(held.claim.message_id, parked)
        await held.delivery.nak(None if news else self._delay_s(parked))

    async def stays(
        self, delivery: Delivery, message_id: str, record: ClaimRecord, revision: int
    ) -> bool:
        """For a parked run whose own request came again: whether it stays parked. The delivery is
        settled then."""
        parked = record.parked
        if parked is None or delivery.sequence != record.sequence:
            return False
        if parked.wake_at is not None and parked.wake_at <= time.time():
            return False
        if await self._has_news(message_id, parked):
            return False
        if delivery.times_delivered >= self.deliveries_most:
            # The server gives a message up that came too often: begin anew with a copy.
            if not await self._put_in(message_id, record):
                return False
            await delivery.ack()
            return True
        touched = await self.claims.touch(message_id, record, revision)
        await self._renew_blobs(delivery, record)
        await delivery.nak(self._delay_s(parked) if touched else _LEAST_DELAY_S)
        return True

    async def _renew_blobs(self, delivery: Delivery, record: ClaimRecord) -> None:
        """What the run needs of the object store would go by age, too."""
        try:
            reference = reference_of(delivery.headers)
            names = [None if reference is None else reference.name]
            names.append(None if record.kept is None else record.kept.blob)
            for name in filter(None, names):
                await Blobs(self.bus).renew(name)
        except (RunError, NatsError) as error:
            # Somebody looks again before it is too late.
            _log.warning("what a parked run needs was not kept anew", **cause_of(error))

    async def forget(self, sequence: int) -> None:
        """The request at this place of the queue was replaced by a copy of it."""
        with contextlib.suppress(NatsError):
            await self.bus.js.delete_msg(subjects.AGENT_REQUESTS, sequence)

    async def run(self) -> None:
        """Wake runs that commands come for, until cancelled."""
        consumer = subjects.commands_consumer_name(self.bus.namespace)
        while True:
            try:
                pulls = await self.bus.js.pull_subscribe_bind(
                    consumer=consumer, stream=subjects.RUN_COMMANDS
                )
                try:
                    await self._read(pulls)
                finally:
                    with contextlib.suppress(NatsError):
                        await pulls.unsubscribe()
            except (NatsError, APIError) as error:
                if self.bus.link.up:
                    _log.warning("commands for parked runs cannot be read", **cause_of(error))
                await asyncio.sleep(_BACK_OFF_S)

    async def _read(self, pulls: JetStreamContext.PullSubscription) -> None:
        while True:
            try:
                messages = await pulls.fetch(_BATCH, timeout=_FETCH_S)
            except NatsTimeout:
                continue
            for message in messages:
                await self._take(message)

    async def _take(self, message: Msg) -> None:
        if _may_wake(message.data):
            message_id = message.subject.split(".")[2]
            found = await self.claims.find(message_id)
            parked = found is not None and found[0].parked is not None
            if found is not None and parked and not await self._put_in(message_id, found[0]):
                await message.nak(delay=_FULL_AGAIN_S)
                return
        await message.ack()

    async def _put_in(self, message_id: str, record: ClaimRecord) -> bool:
        """Put the run's request into the queue again; False where that is full."""
        try:
            request = await self.bus.js.get_msg(subjects.AGENT_REQUESTS, record.sequence)
        except NotFoundError:
            # It was replaced already, or removed by hand.
            return True
        sent_with = dict(request.headers or {})
        sent_with[headers.MSG_ID] = f"{message_id}.wake.{record.attempt}"
        data = request.data or b""
        if peek_message_id(data) is None:
            # Its id came from its place in the queue, which is another now.
            data = msgspec.json.encode({**msgspec.json.decode(data), "message_id": message_id})
        try:
            await store(
                self.bus.js,
                subjects.requests(self.bus.namespace, record.agent),
                data,
                headers=sent_with,
                patience_s=_WAKE_PATIENCE_S,
            )
        except APIError as error:
            _log.warning("a parked run cannot be put into the queue", **cause_of(error))
            return False
        return True

    async def _has_news(self, message_id: str, parked: Parked) -> bool:
        subject = subjects.commands(self.bus.namespace, message_id)
        count = await count_of(self.bus.js, subjects.RUN_COMMANDS, subject)
        return count > parked.commands_seen

    def _delay_s(self, parked: Parked) -> float:
        if parked.wake_at is None:
            return self.refresh_s
        return max(_LEAST_DELAY_S, min(self.refresh_s, parked.wake_at - time.time()))


def _may_wake(data: bytes) -> bool:
    """A further message waits with the run; everything else may be what it waits for."""
    try:
        return not isinstance(decode_command(data), Say)
    except (msgspec.DecodeError, RunError):
        return False
