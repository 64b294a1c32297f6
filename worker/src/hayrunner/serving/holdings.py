"""The runs this worker holds, and what it says when another one asks for them.

A run comes again while it is still going on here when the server was away longer than
`ack_wait`. The worker that gets it asks first, and this is the answering side, and the asking.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from hayrunner.serving.claims import Claim, Claims
from hayrunner.serving.connection import Link
from hayrunner.serving.deliveries import Delivery
from hayrunner.telemetry.logs import get_logger
from hayrunner_contracts import subjects

__all__ = ["HeldRun", "Holdings", "ask_holder"]

_log = get_logger(__name__)

_ANSWER_S = 1.0
# After a server restart workers come back one after the other: silence means less then.
_PATIENCE_AFTER_RECONNECT_S = 4.0
_RECENT_S = 10.0
_YES = b"1"
_NO = b"0"


@dataclass(eq=False)
class HeldRun:
    """One run this worker is working on. `end_here` stops the work without another word.

    `in_tools` while tools of a step run; `leaving`: end at the border of the step.
    """

    claim: Claim
    delivery: Delivery
    end_here: Callable[[], None]
    lost: bool = False
    in_tools: bool = False
    leaving: bool = False

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            _log.warning("the claim of a run was lost", message_id=self.claim.message_id)
            self.end_here()


class Holdings:
    """By claim key."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._runs: dict[str, HeldRun] = {}
        self._claiming: set[str] = set()
        self._direct: set[str] = set()

    @contextmanager
    def claiming(self, key: str) -> Generator[bool]:
        """While a claim is being written; gives False where another task here is doing so."""
        if key in self._claiming:
            yield False
            return
        self._claiming.add(key)
        try:
            yield True
        finally:
            self._claiming.discard(key)

    @contextmanager
    def direct(self, message_id: str) -> Generator[None]:
        """While a direct request is run, which has no claim."""
        key = self._claims.key(message_id)
        self._direct.add(key)
        try:
            yield
        finally:
            self._direct.discard(key)

    def holds(self, key: str) -> bool:
        """Whether this worker runs, or is about to run, what has that claim key."""
        return self.get(key) is not None or key in self._claiming or key in self._direct

    def add(self, run: HeldRun) -> None:
        self._runs[run.claim.key] = run

    def remove(self, run: HeldRun) -> None:
        if self._runs.get(run.claim.key) is run:
            del self._runs[run.claim.key]

    def get(self, key: str) -> HeldRun | None:
        run = self._runs.get(key)
        return None if run is None or run.lost else run

    def answer(self, key: bytes) -> bytes:
        """Whether this worker holds the run of that claim key, for the one who asked."""
        name = key.decode(errors="replace")
        return _YES if self.holds(name) else _NO

    async def still_held(self, run: HeldRun) -> bool:
        """Ask the bucket, as long as it takes; a run that is lost is ended here."""
        wait = 0.05
        while not run.lost:
            try:
                if await self._claims.still_held(run.claim):
                    run.delivery.confirm()
                else:
                    run.lose()
                break
            except NatsError:
                await asyncio.sleep(wait)
                wait = min(1.0, wait * 2)
        return not run.lost

    def leave_at_border(self) -> int:
        """This worker goes away: runs in the middle of a model call end at once, those whose
        tools are running when these have settled. How many of the latter there are."""
        in_tools = 0
        for run in list(self._runs.values()):
            run.leaving = True
            if run.in_tools:
                in_tools += 1
            else:
                run.end_here()
        return in_tools

    async def check_all(self) -> None:
        """After an outage: find out which runs were taken over meanwhile."""
        for run in list(self._runs.values()):
            await self.still_held(run)


async def ask_holder(nc: Client, link: Link, worker: str, key: str) -> bool:
    """Whether `worker` is alive and holds the run; silence for a second means no."""
    subject = subjects.worker_holds(worker)
    recently = time.monotonic() - link.connected_at < _RECENT_S and link.outages > 0
    patience = _PATIENCE_AFTER_RECONNECT_S if recently else _ANSWER_S
    end = time.monotonic() + patience
    while (left := end - time.monotonic()) > 0:
        try:
            answer = await nc.request(subject, key.encode(), timeout=left)
            return answer.data == _YES
        except NoRespondersError:
            if not recently:
                return False
            await asyncio.sleep(0.1)
        except NatsError:
            break
    return False
