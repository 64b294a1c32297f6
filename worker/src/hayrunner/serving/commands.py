"""Commands to one run: those sent while it is going on, and those sent before it began."""

import asyncio
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from hayrunner.serving.bus import Bus
from hayrunner.serving.stored import count_of, messages_of
from hayrunner.telemetry.logs import get_logger
from hayrunner_contracts import subjects
from hayrunner_contracts.codec import decode_command
from hayrunner_contracts.commands import Cancel, RunCommand
from hayrunner_contracts.errors import RunError

__all__ = ["CommandInbox"]

_log = get_logger(__name__)

_REPLICA_WAITS_S = (0.0, 0.02, 0.1, 0.3)


class CommandInbox:
    """Listens to one run's commands subject and acts on what it understands.

    `on_cancel` is called for every cancel, however often it comes. Commands of other kinds are
    for runs that wait for them, and no run here does yet: they are logged and left alone.
    """

    def __init__(self, bus: Bus, message_id: str, *, on_cancel: Callable[[], None]) -> None:
        self._bus = bus
        self._message_id = message_id
        self._subject = subjects.commands(bus.namespace, message_id)
        self._on_cancel = on_cancel
        self._subscription: Subscription | None = None

    async def open(self, *, read_stored: bool) -> None:
        """Subscribe, then act on what was sent before: in this order nothing falls between."""
        self._subscription = await self._bus.nc.subscribe(self._subject, cb=self._live)
        if not read_stored:
            return
        # The leader knows how many there are; what is read may come from a replica behind it.
        wanted = await count_of(self._bus.js, subjects.RUN_COMMANDS, self._subject)
        for wait in _REPLICA_WAITS_S if wanted else ():
            await asyncio.sleep(wait)
            stored = messages_of(self._bus.nc, subjects.RUN_COMMANDS, self._subject)
            found = [message.data async for message in stored]
            if len(found) >= wanted or wait == _REPLICA_WAITS_S[-1]:
                for data in found:
                    self._take(data)
                return

    async def close(self) -> None:
        if self._subscription is not None:
            try:
                await self._subscription.unsubscribe()
            except NatsError:
                # The connection is closed or closing, and the subscription goes with it.
                return

    async def _live(self, message: Msg) -> None:
        self._take(message.data)

    def _take(self, data: bytes) -> None:
        try:
            command: RunCommand = decode_command(data)
        except (msgspec.DecodeError, RunError):
            _log.warning("a command cannot be read", message_id=self._message_id)
            return
        if isinstance(command, Cancel):
            self._on_cancel()
        else:
            kind = type(command).__struct_config__.tag
            _log.info("a command nobody waits for", command=kind, message_id=self._message_id)
