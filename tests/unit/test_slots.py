"""Slots of runs that wait for another run."""

import asyncio

import pytest

from hayrunner.serving.slots import Slots
from hayrunner_contracts.testing import eventually


async def test_a_run_that_steps_aside_leaves_its_slot_to_others_and_takes_one_again() -> None:
    slots = Slots(1)
    assert slots.try_run()
    stepped_aside, goes_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        async with slots.aside():
            stepped_aside.set()
            await goes_on.wait()

    waiting = asyncio.create_task(wait())
    await stepped_aside.wait()
    assert slots.try_run()
    goes_on.set()
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.leave()
    await waiting
    assert (slots.running, slots.free) == (1, 0)
    slots.leave()
    assert slots.running == 0


@pytest.mark.parametrize("while_back", [False, True], ids=["aside", "coming back"])
async def test_a_run_that_ends_while_it_is_aside_has_given_back_one_slot(while_back: bool) -> None:
    slots = Slots(1)
    assert slots.try_run()
    goes_on = asyncio.Event()
    if while_back:
        goes_on.set()

    async def wait() -> None:
        try:
            async with slots.aside():
                assert slots.try_run()
                await goes_on.wait()
        finally:
            slots.leave()

    waiting = asyncio.create_task(wait())
    await eventually(lambda: slots.running == 1, what="the other run")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert slots.running == 1
    slots.leave()
    assert slots.running == 0
