"""Ways to watch a run, good and bad ones. Whatever the way, the list of events is the stream's."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec
from tests.chaos.plan import ConsumerKind, PlannedRun

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import ClientTimeout, RunError
from hayrunner_contracts.events import MessageStart, RunResumed, UnknownEvent
from hayrunner_contracts.following import Event, EventsLost

__all__ = ["Seen", "consume"]

_READ_S = 120.0
_TRY_AGAIN_S = 0.1
_RECONNECTS = 10
_LATE_S = 1.5
_SLOWER = 10
_SLOW_MOST_S = 25.0


class Seen(msgspec.Struct, kw_only=True):
    """What one consumer was given: events as their bytes, and what it was told went wrong."""

    run: int
    kind: ConsumerKind
    events: list[bytes] = []
    whole: bool = False
    """It came to the end."""
    error: str | None = None
    last: int = 0
    attempt: int | None = None
    """The highest one it was told of."""
    longest_pause_s: float = 0.0
    """Between two events that came one after the other."""
    taken_at: float | None = None

    def take(self, event: Event) -> None:
        self.events.append(event.raw if isinstance(event, UnknownEvent) else encode(event))
        self.last = event.seq
        if isinstance(event, MessageStart | RunResumed):
            self.attempt = max(self.attempt or 0, event.attempt)
        now = time.monotonic()
        if self.taken_at is not None:
            self.longest_pause_s = max(self.longest_pause_s, now - self.taken_at)
        self.taken_at = now


async def consume(
    run: PlannedRun,
    client: RunClient,
    connect: Callable[[], Awaitable[RunClient]],
    seen: Seen,
) -> None:
    """Watch a run in its own way, to the end or as far as that way goes."""
    ways = {
        "live": lambda: _live(run, client, seen),
        "late": lambda: _late(run, client, seen),
        "slow": lambda: _slow(run, connect, seen),
        "reconnecting": lambda: _reconnecting(run, connect, seen),
        "vanishing": lambda: _vanishing(run, client, seen),
    }
    if run.consumer == "result":
        return
    try:
        await ways[run.consumer]()
    except (ClientTimeout, EventsLost, RunError) as error:
        seen.error = f"{type(error).__name__}: {error}"


async def _live(run: PlannedRun, client: RunClient, seen: Seen) -> None:
    while not seen.whole:
        try:
            events = client.attach(run.message_id, seen.last, attempt=seen.attempt, timeout=_READ_S)
            async for event in events:
                seen.take(event)
            seen.whole = True
        except ConnectionError:
            await asyncio.sleep(_TRY_AGAIN_S)


async def _late(run: PlannedRun, client: RunClient, seen: Seen) -> None:
    await asyncio.sleep(_LATE_S)
    await _live(run, client, seen)


async def _connected(connect: Callable[[], Awaitable[RunClient]]) -> RunClient:
    while True:
        try:
            return await connect()
        except ConnectionError:
            await asyncio.sleep(_TRY_AGAIN_S)


async def _slow(run: PlannedRun, connect: Callable[[], Awaitable[RunClient]], seen: Seen) -> None:
    """A tenth of the run's own speed; but not for ever: then as fast as it can."""
    client = await _connected(connect)
    pause = min(_SLOWER * max(step.pace_s for step in run.steps), 1.0)
    loop = asyncio.get_running_loop()
    ends = loop.time() + _SLOW_MOST_S
    try:
        async for event in client.attach(run.message_id, timeout=_READ_S):
            seen.take(event)
            if loop.time() < ends:
                await asyncio.sleep(pause)
        seen.whole = True
    finally:
        await client.close()


async def _reconnecting(
    run: PlannedRun, connect: Callable[[], Awaitable[RunClient]], seen: Seen
) -> None:
    """A new connection every few events, each going on after the last event it had."""
    for number in range(_RECONNECTS + 1):
        client = await _connected(connect)
        most = number + 1 if number < _RECONNECTS else None
        try:
            seen.whole = await _some(run, client, seen, most)
        finally:
            await client.close()
        if seen.whole:
            return


async def _some(run: PlannedRun, client: RunClient, seen: Seen, most: int | None) -> bool:
    """Read at most so many events; whether they were the last."""
    taken = 0
    reading = client.attach(run.message_id, seen.last, attempt=seen.attempt, timeout=_READ_S)
    async with aclosing(reading) as events:
        async for event in events:
            seen.take(event)
            taken += 1
            if taken == most:
                return False
    return True


async def _vanishing(run: PlannedRun, client: RunClient, seen: Seen) -> None:
    await _some(run, client, seen, 1 + run.number % 7)
