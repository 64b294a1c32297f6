"""Slots: who gets the next one, of one agent and of all, and runs that wait for another run."""

import asyncio
import random
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from hayrunner.serving.slots import Reservation, Slots
from hayrunner_contracts.testing import eventually


async def started(slots: Slots, agent: str = "a") -> Reservation:
    """A run that came by a pull."""
    reservation = await slots.reserve(agent)
    await reservation.use()
    return reservation


async def settle() -> None:
    """Let every task go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_run_that_steps_aside_leaves_its_slot_to_others_and_takes_one_again() -> None:
    slots = Slots(1, {"a": 1})
    stepped_aside, goes_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        assert slots.try_run("a")
        async with slots.aside():
            stepped_aside.set()
            await goes_on.wait()

    waiting = asyncio.create_task(wait())
    await stepped_aside.wait()
    assert slots.try_run("a")
    goes_on.set()
    await settle()
    assert not waiting.done()
    slots.leave("a")
    await waiting
    assert (slots.running, slots.running_of("a"), slots.free) == (1, 1, 0)
    slots.leave("a")
    assert (slots.running, slots.running_of("a")) == (0, 0)


@pytest.mark.parametrize("while_back", [False, True], ids=["aside", "coming back"])
async def test_a_run_that_ends_while_it_is_aside_has_given_back_one_slot(while_back: bool) -> None:
    slots = Slots(1)
    goes_on = asyncio.Event()
    if while_back:
        goes_on.set()
    aside = asyncio.Event()

    async def wait() -> None:
        assert slots.try_run("a")
        try:
            async with slots.aside():
                assert slots.try_run("b")
                aside.set()
                await goes_on.wait()
        finally:
            slots.leave("a")

    waiting = asyncio.create_task(wait())
    await aside.wait()
    await settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (slots.running, slots.running_of("a"), slots.running_of("b")) == (1, 0, 1)
    slots.leave("b")
    assert slots.running == 0


async def test_whoever_gives_a_slot_back_is_not_the_next_while_others_wait() -> None:
    slots = Slots(1)
    first = await slots.reserve("a")
    waiting = asyncio.create_task(slots.reserve("b"))
    await settle()
    assert slots.crowded

    first.release()
    again = asyncio.create_task(slots.reserve("a"))
    (await waiting).release()

    (await again).release()
    assert not slots.crowded


async def test_slots_are_given_out_in_the_order_in_which_they_were_asked_for() -> None:
    slots = Slots(1)
    held = await started(slots)
    order: list[str] = []

    async def take(name: str) -> None:
        reservation = await slots.reserve(name)
        order.append(name)
        reservation.release()

    names = [f"agent-{number}" for number in range(20)]
    tasks = [asyncio.create_task(take(name)) for name in names]
    await settle()
    held.release()
    await asyncio.gather(*tasks)
    assert order == names


async def test_an_agent_at_its_limit_gets_none_and_holds_up_nobody() -> None:
    slots = Slots(4, {"a": 2})
    runs = [await started(slots, "a") for _ in range(2)]
    third = asyncio.create_task(slots.reserve("a"))
    await settle()
    assert not third.done()
    assert not slots.crowded
    assert not slots.try_run("a")

    other = await started(slots, "b")
    assert slots.try_run("b")
    runs[0].release()
    await settle()
    # All four are in use: two of b, one of a, and the one that is set aside for a.
    assert third.done()
    assert (slots.running, slots.running_of("a"), slots.running_of("b")) == (3, 1, 2)
    other.release()
    third.result().release()


async def test_a_direct_request_takes_the_slot_of_the_agents_own_idle_pull() -> None:
    slots = Slots(4, {"a": 1})
    pulling = await slots.reserve("a")
    others = [await slots.reserve("b") for _ in range(2)]

    assert slots.try_run("a")
    assert pulling.taken_away
    assert not any(other.taken_away for other in others)
    # The pull brought something all the same: it waits for the agent's slot, not for any.
    using = asyncio.create_task(pulling.use())
    await settle()
    assert not using.done()
    slots.leave("a")
    await using
    pulling.release()
    assert slots.running == 0


async def test_a_run_that_waits_for_its_agents_slot_holds_up_no_other_agent() -> None:
    slots = Slots(3, {"a": 1})
    assert slots.try_run("a")
    coming_back = asyncio.create_task(slots.wait_for_run("a"))
    await settle()
    assert not coming_back.done()
    await asyncio.wait_for(started(slots, "b"), 1)


class Crowd:
    """Runs that come by pulls and directly, step aside, and are counted."""

    def __init__(self, seed: int, slots: Slots) -> None:
        self.chance = random.Random(seed)
        self.slots = slots
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def pause(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    async def pulled(self, agent: str) -> None:
        reservation = await self.slots.reserve(agent)
        try:
            await self.pause()
            if self.chance.random() < 0.7:
                await reservation.use()
                await self._run(agent)
        finally:
            reservation.release()

    async def direct(self, agent: str) -> None:
        await self.pause()
        if self.slots.try_run(agent):
            try:
                await self._run(agent)
            finally:
                self.slots.leave(agent)

    async def _run(self, agent: str) -> None:
        with self._counted(agent):
            await self.pause()
        if self.chance.random() < 0.3:
            async with self.slots.aside():
                await self.pause()
            with self._counted(agent):
                await self.pause()

    @contextmanager
    def _counted(self, agent: str) -> Generator[None]:
        for name in (agent, "all"):
            self.running[name] += 1
            self.most[name] = max(self.most[name], self.running[name])
        try:
            yield
        finally:
            self.running[agent] -= 1
            self.running["all"] -= 1


@pytest.mark.parametrize("seed", range(20))
async def test_no_slot_is_lost_or_doubled_whatever_is_cancelled(seed: int) -> None:
    slots = Slots(3, {"a": 1, "b": 2})
    crowd = Crowd(seed, slots)
    tasks: list[asyncio.Task[None]] = []
    for _ in range(300):
        kind = crowd.chance.choice([crowd.pulled, crowd.pulled, crowd.direct])
        tasks.append(asyncio.create_task(kind(crowd.chance.choice("abc"))))
        if crowd.chance.random() < 0.3:
            crowd.chance.choice(tasks).cancel()
        await crowd.pause()
    async with asyncio.timeout(10):
        ends = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
    assert (slots.running, slots.free, crowd.running["all"]) == (0, 3, 0)
    assert (crowd.most["a"], crowd.most["b"], crowd.most["all"]) == (1, 2, 3)
    held = [await asyncio.wait_for(slots.reserve("c"), 1) for _ in range(3)]
    assert not any(reservation.taken_away for reservation in held)


async def test_a_slot_that_comes_as_its_waiter_is_cancelled_goes_to_the_next() -> None:
    slots = Slots(1)
    held = await started(slots)
    first, second = (asyncio.create_task(slots.reserve("a")) for _ in range(2))
    await settle()
    held.release()
    first.cancel()
    await eventually(second.done, what="the next one's turn")
    assert first.cancelled()
