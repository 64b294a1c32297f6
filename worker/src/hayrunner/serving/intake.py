"""Pulling requests: a slot first, then one message, heartbeat from receipt, drain at the end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from hayrunner.errors import ConfigurationError
from hayrunner.serving.availability import when_available
from hayrunner.serving.connection import Link
from hayrunner.serving.deliveries import Delivery, Heartbeat
from hayrunner.serving.pulls import EXPIRES_S, Pull, PullFailed
from hayrunner.serving.slots import Reservation, Slots
from hayrunner.telemetry.logs import cause_of, get_logger
from hayrunner_contracts import subjects

__all__ = ["Intake"]

_log = get_logger(__name__)

_LATE_S = 1.0
_BACK_OFF_FIRST_S = 0.1
_BACK_OFF_MOST_S = 2.0
_AWAY_POLL_S = 0.02
_SHORTEST_S = 0.02


@dataclass(kw_only=True)
class Intake:
    """The pull loops of one worker, one per agent.

    `handle` gets every delivery, in a task of its own. `bind` makes sure that an agent's
    consumer is there; it is called at the start and whenever pulling fails.
    """

    nc: Client
    link: Link
    namespace: str
    agents: list[str]
    slots: Slots
    heartbeat: Heartbeat
    handle: Callable[[Delivery], Awaitable[None]]
    bind: Callable[[str], Awaitable[None]]
    draining: bool = False
    _bound: set[str] = field(default_factory=set[str])
    _loops: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _pulls: set[Pull] = field(default_factory=set[Pull])
    _empty: int = 0
    """Pulls since the last one that brought a message."""

    @property
    def ready(self) -> bool:
        """Whether every agent's requests are being pulled."""
        return not self.draining and len(self._bound) == len(self.agents)

    @property
    def running(self) -> set["asyncio.Task[None]"]:
        """The tasks that handle deliveries now."""
        return set(self._running)

    async def start(self) -> None:
        """Bind every agent, then pull. `ConfigurationError` where a consumer cannot be had."""
        for agent in self.agents:
            await when_available(lambda agent=agent: self.bind(agent))
            self._bound.add(agent)
        self.link.when_back(self._pull_again)
        self._loops = [
            asyncio.create_task(self._serve(agent), name=f"pull {agent}") for agent in self.agents
        ]

    async def stop_pulling(self) -> None:
        """Take no more; runs go on. Open pulls end by themselves, and what they still bring is
        put back at once."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXPIRES_S + _LATE_S):
                for pull in list(self._pulls) if self.link.up else ():
                    await pull.closed.wait()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def _pull_again(self) -> None:
        """After a reconnect: the server forgot every open pull."""
        await self.heartbeat.beat()
        for pull in list(self._pulls):
            pull.expire()

    async def _serve(self, agent: str) -> None:
        wait = _BACK_OFF_FIRST_S
        while not self.draining:
            if not self.link.up:
                await asyncio.sleep(_AWAY_POLL_S)
                continue
            reservation = await self.slots.reserve(agent)
            try:
                delivery = await self._pull(agent)
            except asyncio.CancelledError:
                reservation.release()
                raise
            except (NatsError, PullFailed) as error:
                reservation.release()
                await self._back_off(agent, error, wait)
                wait = min(wait * 2, _BACK_OFF_MOST_S)
                continue
            wait = _BACK_OFF_FIRST_S
            if delivery is None:
                reservation.release()
            elif self.draining:
                reservation.release()
                await delivery.nak()
            else:
                self._spawn(delivery, reservation)

    async def _pull(self, agent: str) -> Delivery | None:
        consumer = subjects.consumer_name(self.namespace, agent)
        pull = Pull(self.nc, consumer, expires_s=self._open_for_s())
        await pull.open()
        self._pulls.add(pull)
        try:
            await pull.wait()
        finally:
            # Whatever ended the wait, a message may have come with it.
            self._pulls.discard(pull)
            message = await self._closed(pull, agent)
        self._empty = self._empty + 1 if message is None else 0
        return None if message is None else Delivery.of(message, agent=agent, nc=self.nc)

    def _open_for_s(self) -> float:
        """How long a pull may hold its slot. Where others wait for one, only for a look, so that
        agents without requests cost the others no time; once all have looked in vain, all
        together as long as one would."""
        if not self.slots.crowded:
            return EXPIRES_S
        if self._empty < len(self.agents):
            return 0.0
        return max(_SHORTEST_S, EXPIRES_S / len(self.agents))

    async def _closed(self, pull: Pull, agent: str) -> Msg | None:
        """Close to the end, whoever cancels; what a cancelled loop caught is put back."""
        going = asyncio.current_task()
        assert going is not None
        closing = asyncio.ensure_future(pull.close())
        try:
            message = await asyncio.shield(closing)
        except asyncio.CancelledError:
            message = await closing
            if message is not None:
                await Delivery.of(message, agent=agent, nc=self.nc).nak()
            raise
        if message is not None and going.cancelling():
            await Delivery.of(message, agent=agent, nc=self.nc).nak()
            return None
        return message

    async def _back_off(self, agent: str, error: Exception, wait: float) -> None:
        self._bound.discard(agent)
        status = error.status if isinstance(error, PullFailed) else None
        _log.warning(
            "requests cannot be pulled",
            agent=agent,
            status=status,
            again_in_s=wait,
            **cause_of(error),
        )
        await asyncio.sleep(wait)
        try:
            await self.bind(agent)
        except (NatsError, NotFoundError, ConfigurationError) as problem:
            _log.warning("the consumer cannot be bound", agent=agent, **cause_of(problem))
            return
        self._bound.add(agent)

    def _spawn(self, delivery: Delivery, reservation: Reservation) -> None:
        self.heartbeat.hold(delivery)
        task = asyncio.create_task(self._handle(delivery, reservation), name="run")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, delivery: Delivery, reservation: Reservation) -> None:
        try:
            await reservation.use()
            await self.handle(delivery)
        except asyncio.CancelledError:
            if not delivery.settled:
                await delivery.nak()
            raise
        finally:
            self.heartbeat.let_go(delivery)
            reservation.release()
