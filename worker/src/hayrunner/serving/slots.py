"""Slots: how many runs this worker takes at once, of one agent and of all together.

Before a request is pulled a slot is reserved for it, so that nothing is fetched that would wait
here. Slots are given out first come, first served, and handed over in the moment they become
free: whoever gives one back cannot be the next to take it while others wait. Only an agent that is
at its own limit is passed over. Open pulls of idle agents hold reservations, for the half second
that a pull lasts; a direct request takes such a slot at once.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

__all__ = ["Reservation", "Slots"]

_running_here: ContextVar[str] = ContextVar("_running_here")
"""The agent whose slot this task, or the one that started it, runs in."""


class Reservation:
    """A slot of an agent, set aside for one pull."""

    def __init__(self, slots: "Slots", agent: str) -> None:
        self.agent = agent
        self._slots = slots
        self.taken_away = False
        """Somebody uses it already."""
        self._used = False

    async def use(self) -> None:
        """A run starts. Waits only where the slot was taken away in the same moment."""
        if self.taken_away:
            await self._slots.wait_for_run(self.agent)
        else:
            self._slots.convert(self)
        self._used = True

    def release(self) -> None:
        """The pull came back empty, or the run is over."""
        if self._used:
            self._slots.leave(self.agent)
        elif not self.taken_away:
            self._slots.unreserve(self)


@dataclass(eq=False)
class _Wait:
    """Somebody in a queue. `granted` is what it waits for, made when its turn comes."""

    agent: str
    turn: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    granted: Reservation | None = None


class Slots:
    """`total` of them. `limits` are those of single agents, which may be missing there.

    `running` counts runs, reservations not included.
    """

    def __init__(self, total: int, limits: Mapping[str, int] | None = None) -> None:
        self.total = total
        self.running = 0
        self._limits = dict(limits or {})
        self._running_of: Counter[str] = Counter()
        self._reserved: list[Reservation] = []
        self._waiting: deque[_Wait] = deque()
        self._starting: deque[_Wait] = deque()

    @property
    def free(self) -> int:
        return self.total - self.running

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for a slot whose own limit would let it have one."""
        return any(not self._is_full(wait.agent) for wait in self._waiting)

    def running_of(self, agent: str) -> int:
        """How many of the runs are the agent's."""
        return self._running_of[agent]

    async def reserve(self, agent: str) -> Reservation:
        """A slot for one pull."""
        wait = _Wait(agent)
        self._waiting.append(wait)
        self._hand_out()
        try:
            await wait.turn
        except asyncio.CancelledError:
            # The turn may have come in the same moment: it belongs to the next one then.
            if wait.granted is not None:
                wait.granted.release()
            else:
                self._waiting.remove(wait)
            raise
        assert wait.granted is not None
        return wait.granted

    def try_run(self, agent: str) -> bool:
        """Take a slot for a direct request, now or not at all; end with `leave`."""
        if not self._may_run(agent):
            return False
        self._begin(agent)
        _running_here.set(agent)
        return True

    def leave(self, agent: str) -> None:
        """A run is over."""
        self.running -= 1
        self._running_of[agent] -= 1
        self._hand_out()

    def convert(self, reservation: Reservation) -> None:
        self._reserved.remove(reservation)
        self.running += 1
        self._running_of[reservation.agent] += 1
        _running_here.set(reservation.agent)

    def unreserve(self, reservation: Reservation) -> None:
        self._reserved.remove(reservation)
        self._hand_out()

    async def wait_for_run(self, agent: str) -> None:
        """A slot for a run that is here already: before all that is still to be pulled."""
        wait = _Wait(agent)
        self._starting.append(wait)
        self._hand_out()
        try:
            await wait.turn
        except asyncio.CancelledError:
            if wait in self._starting:
                self._starting.remove(wait)
            else:
                self.leave(agent)
            raise
        _running_here.set(agent)

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[None]:
        """Give up the slot of a run while it waits for another run, and take one again after.

        Otherwise runs that wait could fill every slot, and the one they wait for never get any.
        """
        agent = _running_here.get()
        self.leave(agent)
        back = False
        try:
            yield
            await self.wait_for_run(agent)
            back = True
        finally:
            if not back:
                # The run ends, and its end gives a slot back.
                self.running += 1
                self._running_of[agent] += 1

    # --- who is next

    def _hand_out(self) -> None:
        """Give what is free to those who wait for it, in their order."""
        for wait in list(self._starting):
            if self._may_run(wait.agent) and not wait.turn.done():
                self._starting.remove(wait)
                self._begin(wait.agent)
                wait.turn.set_result(None)
        for wait in list(self._waiting):
            if self.running + len(self._reserved) >= self.total:
                return
            if self._is_full(wait.agent) or wait.turn.done():
                continue
            self._waiting.remove(wait)
            wait.granted = Reservation(self, wait.agent)
            self._reserved.append(wait.granted)
            wait.turn.set_result(None)

    def _may_run(self, agent: str) -> bool:
        limit = self._limits.get(agent, self.total)
        return self.running < self.total and self._running_of[agent] < limit

    def _begin(self, agent: str) -> None:
        """A run starts that has no reservation: where one is in its way, that is taken away."""
        if self._is_full(agent):
            self._take_away(next(held for held in self._reserved if held.agent == agent))
        elif self.running + len(self._reserved) >= self.total:
            self._take_away(self._reserved[0])
        self.running += 1
        self._running_of[agent] += 1

    def _take_away(self, reservation: Reservation) -> None:
        self._reserved.remove(reservation)
        reservation.taken_away = True

    def _is_full(self, agent: str) -> bool:
        """Whether the agent's own limit is reached, by runs and open pulls together."""
        if agent not in self._limits:
            return False
        reserved = sum(held.agent == agent for held in self._reserved)
        return self._running_of[agent] + reserved >= self._limits[agent]
