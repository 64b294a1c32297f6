"""Making things break, as planned, and writing down when they did."""

import asyncio
import contextlib
import signal
from collections.abc import Mapping

from tests.chaos.fleet import Fleet
from tests.chaos.journal import Journal
from tests.chaos.plan import Fault, Plan
from tests.chaos.sites import Breaking, Site

__all__ = ["Faults"]


class Faults:
    """Carries out a plan's faults. Each has a line in the journal when it begins, and one when
    what it took away is back."""

    def __init__(self, plan: Plan, fleet: Fleet, site: Site, journal: Journal) -> None:
        self._plan = plan
        self._fleet = fleet
        self._journal = journal
        self._on_servers = site.breaking
        self._on_workers: Mapping[str, Breaking] = {
            "kill_worker": self._kill_worker,
            "stop_worker": self._stop_worker,
            "roll_worker": self._roll_worker,
        }
        self.begun = 0
        self._server_lock = asyncio.Lock()
        self._place_locks = [asyncio.Lock() for _ in fleet.workers]

    async def run(self, began: float) -> None:
        """All of them, each at its time after `began` on the loop's clock."""
        loop = asyncio.get_running_loop()

        async def at_its_time(fault: Fault) -> None:
            await asyncio.sleep(max(0.0, began + fault.at_s - loop.time()))
            await self._carry_out(fault)

        async with asyncio.TaskGroup() as tasks:
            for fault in self._plan.faults:
                tasks.create_task(at_its_time(fault))

    async def _carry_out(self, fault: Fault) -> None:
        # One thing at a time breaks in one place: a server that is stopped cannot be killed.
        if (breaking := self._on_servers.get(fault.kind)) is not None:
            async with self._server_lock:
                self._note("fault", fault)
                await breaking(fault)
                self._note("back", fault)
        else:
            async with self._place_locks[fault.target]:
                await self._on_workers[fault.kind](fault)

    def _note(self, what: str, fault: Fault, worker: str | None = None) -> None:
        self.begun += what == "fault"
        self._journal.write(what, kind=fault.kind, worker=worker, seconds=fault.seconds)

    async def _kill_worker(self, fault: Fault) -> None:
        worker = self._fleet.workers[fault.target]
        self._note("fault", fault, worker.name)
        worker.send(signal.SIGKILL)
        await self._fleet.replace(fault.target)
        with contextlib.suppress(RuntimeError):
            await self._fleet.workers[fault.target].ready()
        self._note("back", fault, worker.name)

    async def _stop_worker(self, fault: Fault) -> None:
        worker = self._fleet.workers[fault.target]
        self._note("fault", fault, worker.name)
        worker.send(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        worker.send(signal.SIGCONT)
        self._note("back", fault, worker.name)

    async def _roll_worker(self, fault: Fault) -> None:
        """The new one first, as a rolling deployment does."""
        worker = self._fleet.workers[fault.target]
        await self._fleet.replace(fault.target)
        await self._fleet.workers[fault.target].ready()
        self._note("fault", fault, worker.name)
        worker.send(signal.SIGTERM)
        self._fleet.exit_codes[worker.name] = await worker.ended()
        self._note("back", fault, worker.name)
