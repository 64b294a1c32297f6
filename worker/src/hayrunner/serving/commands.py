"""Commands to one run: those sent while it is going on, and those sent before it began."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from hayrunner.serving.bus import Bus
from hayrunner.serving.stored import StoredMessage, all_of
from hayrunner.telemetry.logs import get_logger
from hayrunner_contracts import headers, subjects
from hayrunner_contracts.codec import decode_command
from hayrunner_contracts.commands import Cancel, RunCommand
from hayrunner_contracts.errors import RunError

__all__ = ["CommandInbox"]

_log = get_logger(__name__)

_AGAIN_S = 0.5
# As many as the stream keeps for one run.
_IDS_KEPT = 1_000


class CommandInbox:
    """Listens to one run's commands subject and acts on what it understands.

    `on_cancel` gets the reason of every cancel, however often one comes; `on_command` every other
    command, in the order in which they were stored. One with a `Nats-Msg-Id` is taken once,
    however often it was sent.
    """

    def __init__(
        self,
        bus: Bus,
        message_id: str,
        *,
        on_cancel: Callable[[str | None], None],
        on_command: Callable[[RunCommand], None],
    ) -> None:
        self._bus = bus
        self._message_id = message_id
        self._subject = subjects.commands(bus.namespace, message_id)
        self._on_cancel = on_cancel
        self._on_command = on_command
        self.seen = 0
        """How many commands came, each counted once."""
        self._taken: dict[str, None] = {}
        self._without_id: Counter[bytes] = Counter()
        self._live_meanwhile: list[Msg] | None = None
        self._subscription: Subscription | None = None
        self._reads_again = False
        self._reading: asyncio.Task[None] | None = None

    async def open(self, *, read_stored: bool) -> None:
        """Subscribe, then act on what was sent before: in this order nothing falls between. What
        is sent while the connection is away is read when it is back."""
        self._live_meanwhile = [] if read_stored else None
        self._subscription = await self._bus.nc.subscribe(self._subject, cb=self._live)
        if not read_stored:
            return
        self._reads_again = True
        self._bus.link.when_back(self._look_again)
        stored = await self._stored()
        for message in stored:
            self._take(message.data, message.headers)
        # What came while the stored ones were read may be among them; without an id it is known
        # by what it says.
        known = Counter(message.data for message in stored)
        live, self._live_meanwhile = self._live_meanwhile or [], None
        for message in live:
            if known[message.data]:
                known[message.data] -= 1
            else:
                self._take(message.data, message.headers or {})

    async def _look_again(self) -> None:
        """Commands that were sent during an outage were not heard."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._take_missed(), name="read commands")

    async def _take_missed(self) -> None:
        """What is heard meanwhile is acted on at once: a cancel does not wait for the store."""
        while True:
            try:
                stored = await self._stored()
            except NatsError:
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        found: Counter[bytes] = Counter()
        taken = self._without_id.copy()
        for message in stored:
            found[message.data] += 1
            if headers.MSG_ID in message.headers or found[message.data] > taken[message.data]:
                self._take(message.data, message.headers)

    async def _stored(self) -> list[StoredMessage]:
        bus = self._bus
        return await all_of(bus.nc, bus.js, subjects.RUN_COMMANDS, self._subject)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._reads_again:
            self._reads_again = False
            self._bus.link.no_longer_when_back(self._look_again)
        # It refers to this: a cycle that only the garbage collector would end.
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            # Of a connection that is closed or closing: the subscription goes with it.
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def _live(self, message: Msg) -> None:
        if self._live_meanwhile is not None:
            self._live_meanwhile.append(message)
        else:
            self._take(message.data, message.headers or {})

    def _take(self, data: bytes, sent_with: Mapping[str, str]) -> None:
        command_id = sent_with.get(headers.MSG_ID)
        if command_id is not None:
            if command_id in self._taken:
                return
            if len(self._taken) >= _IDS_KEPT:
                del self._taken[next(iter(self._taken))]
            self._taken[command_id] = None
        else:
            self._without_id[data] += 1
        self.seen += 1
        try:
            command: RunCommand = decode_command(data)
        except (msgspec.DecodeError, RunError):
            _log.warning("a command cannot be read", message_id=self._message_id)
            return
        if isinstance(command, Cancel):
            self._on_cancel(command.reason)
        else:
            self._on_command(command)
