"""Slots: how many runs this worker takes at once, shared by its agents and direct requests.

Before a request is pulled a slot is reserved for it, so that nothing is fetched that would wait
here. Open pulls of idle agents hold reservations, for the half second that a pull lasts: an
agent that finds none free gets the next one. A direct request takes such a slot at once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Reservation", "Slots"]


class Reservation:
    """A slot set aside for one pull."""

    def __init__(self, slots: "Slots") -> None:
        self._slots = slots
        self.taken_away = False
        """Somebody uses it already."""
        self._used = False

    def take_away(self) -> None:
        self.taken_away = True

    async def use(self) -> None:
        """A run starts. Waits only where the slot was taken away in the same moment."""
        if self.taken_away:
            await self._slots.wait_for_run()
        else:
            self._slots.convert(self)
        self._used = True

    def release(self) -> None:
        """The pull came back empty, or the run is over."""
        if self._used:
            self._slots.leave()
        elif not self.taken_away:
            self._slots.unreserve(self)


class Slots:
    """`total` of them. `running` counts runs, reservations not included."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.running = 0
        self._reserved: list[Reservation] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._starting: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> int:
        return self.total - self.running

    async def reserve(self) -> Reservation:
        """A slot for one pull, first come, first served."""
        while self.running + len(self._reserved) >= self.total or self._starting:
            await self._wait(self._waiting)
        reservation = Reservation(self)
        self._reserved.append(reservation)
        return reservation

    def try_run(self) -> bool:
        """Take a slot for a direct request, now or not at all; end with `leave`."""
        if self.running >= self.total:
            return False
        if self.running + len(self._reserved) >= self.total:
            self._reserved.pop(0).take_away()
        self.running += 1
        return True

    def leave(self) -> None:
        """A run is over."""
        self.running -= 1
        self._wake()

    def convert(self, reservation: Reservation) -> None:
        self._reserved.remove(reservation)
        self.running += 1

    def unreserve(self, reservation: Reservation) -> None:
        self._reserved.remove(reservation)
        self._wake()

    async def wait_for_run(self) -> None:
        while self.running >= self.total:
            await self._wait(self._starting)
        if self.running + len(self._reserved) >= self.total:
            self._reserved.pop(0).take_away()
        self.running += 1

    @asynccontextmanager
    async def aside(self) -> AsyncGenerator[None]:
        """Give up the slot of a run while it waits for another run, and take one again after.

        Otherwise runs that wait could fill every slot, and the one they wait for never get any.
        """
        self.leave()
        back = False
        try:
            yield
            await self.wait_for_run()
            back = True
        finally:
            if not back:
                # The run ends, and its end gives a slot back.
                self.running += 1

    async def _wait(self, queue: deque[asyncio.Future[None]]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # The turn may have come in the same moment: it belongs to the next one then.
            if turn.done() and not turn.cancelled():
                self._wake()
            raise
        finally:
            if turn in queue:
                queue.remove(turn)

    def _wake(self) -> None:
        for queue in (self._starting, self._waiting):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
