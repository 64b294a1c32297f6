"""Ctrl-C while watching."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator

import pytest
from tests.unit.cli.conftest import Terminal

from hayrunner.cli.interrupts import Interrupts, OnInterrupt, Verdict, decide, watch
from hayrunner_contracts.testing import eventually


async def endless(closed: list[bool]) -> AsyncGenerator[int, None]:
    try:
        for number in range(3):
            yield number
        await asyncio.Event().wait()
    finally:
        closed.append(True)


async def test_items_pass_and_an_interrupt_ends_the_watching() -> None:
    closed: list[bool] = []
    seen: list[int] = []

    async def stop() -> bool:
        return False

    with Interrupts() as interrupts:
        async for number in watch(endless(closed), interrupts, stop):
            seen.append(number)
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)
    assert seen == [0, 1, 2]
    assert closed == [True]


async def test_watching_can_go_on_after_an_interrupt_without_losing_an_item() -> None:
    asked: list[int] = []

    async def go_on() -> bool:
        asked.append(1)
        return True

    async def items() -> AsyncGenerator[int, None]:
        for number in range(5):
            await asyncio.sleep(0)
            yield number

    with Interrupts() as interrupts:
        seen: list[int] = []
        async for number in watch(items(), interrupts, go_on):
            seen.append(number)
            if number == 1:
                os.kill(os.getpid(), signal.SIGINT)
    assert seen == [0, 1, 2, 3, 4]
    assert asked == [1]


async def test_what_the_items_raise_comes_through() -> None:
    async def broken() -> AsyncGenerator[int, None]:
        yield 1
        raise ConnectionError("gone")

    async def go_on() -> bool:
        return True

    with Interrupts() as interrupts, pytest.raises(ConnectionError):
        async for _ in watch(broken(), interrupts, go_on):
            pass


async def test_without_a_terminal_the_run_is_left_alone() -> None:
    with Interrupts() as interrupts:
        assert await decide(OnInterrupt.ASK, interrupts) is Verdict.LEAVE
        assert await decide(OnInterrupt.LEAVE, interrupts) is Verdict.LEAVE
        assert await decide(OnInterrupt.CANCEL, interrupts) is Verdict.CANCEL


@pytest.mark.parametrize(
    ("typed", "verdict"),
    [
        (b"c\n", Verdict.CANCEL),
        (b"l\n", Verdict.LEAVE),
        (b"\n", Verdict.GO_ON),
        (b"\x04", Verdict.LEAVE),
    ],
)
async def test_a_terminal_is_asked(terminal: Terminal, typed: bytes, verdict: Verdict) -> None:
    terminal.attach()
    with Interrupts() as interrupts:
        os.write(terminal.keyboard, typed)
        assert await asyncio.wait_for(decide(OnInterrupt.ASK, interrupts), 5) is verdict


async def test_a_second_interrupt_leaves_without_an_answer(terminal: Terminal) -> None:
    terminal.attach()
    with Interrupts() as interrupts:
        deciding = asyncio.ensure_future(decide(OnInterrupt.ASK, interrupts))
        await eventually(lambda: terminal.has_output(), 5, what="the question")
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(deciding, 5) is Verdict.LEAVE
