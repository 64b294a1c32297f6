"""What a run leaves behind in its worker: nothing that only the garbage collector would find.

A cycle from each run to itself costs nothing when it is made. It is found hundreds of runs later,
all of them at once, and every stream of the worker stood still for a quarter of a second.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.worker.conftest import Requester, Serving
from tests.integration.worker.test_subagents import Provide, named, provide
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.testing import eventually

__all__ = ["provide"]

RUNS = 3


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def says(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """It does what it is asked for in a word."""
    word = body["messages"][-1]["content"] if body["messages"][-1]["role"] == "user" else ""
    calls = {
        "tools": ("add", {"a": 1, "b": 2}),
        "bad arguments": ("add", {"a": 1}),
        "no such tool": ("subtract", {}),
        "ask another": ("other", {"task": "text"}),
    }
    return iter(call_turn(calls[word]) if word in calls else text_turn("a", "b", "c"))


def left_behind() -> Counter[str]:
    """Types of this project's, and of its connection's, that are in cycles that nobody has."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    found = Counter(
        f"{type(item).__module__}.{type(item).__qualname__}"
        for item in gc.garbage
        if type(item).__module__.startswith(("hayrunner", "nats."))
    )
    gc.garbage.clear()
    return found


@pytest.fixture
def no_collection() -> Iterator[Callable[[], Counter[str]]]:
    """Nothing is collected from here on but by `left_behind`."""
    gc.collect()
    gc.disable()
    yield left_behind
    gc.enable()


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        ("text", {}),
        ("tools", {}),
        ("bad arguments", {}),
        ("no such tool", {}),
        ("ask another", {}),
        ("text", {"mode": "answer"}),
        ("text", {"thread_id": "t"}),
        ("tools", {"thread_id": "t"}),
        ("tools", {"options": {"max_turns": 1}}),
    ],
)
async def test_a_run_leaves_no_cycles(
    provide: Provide,
    serving: Serving,
    requester: Requester,
    no_collection: Callable[[], Counter[str]],
    prompt: str,
    fields: dict[str, Any],
) -> None:
    _, generator = await provide(says)
    _, other = await provide(says)
    await serving(named(generator, "support", tools=[add], subagents=["other"]))
    await serving(named(other, "other"))

    async def run() -> None:
        await requester.ended(await requester.publish(prompt=prompt, **fields))
        await eventually(requester.queue_is_empty, what="an empty queue")

    # What is made once, for the first of them, is not what is looked for.
    await run()
    no_collection()
    for _ in range(RUNS):
        await run()
    assert no_collection() == Counter()


async def test_nor_does_a_client_that_read_it(
    provide: Provide,
    serving: Serving,
    client: RunClient,
    no_collection: Callable[[], Counter[str]],
) -> None:
    _, generator = await provide(says)
    await serving(named(generator, "support", tools=[add]))

    async def run() -> None:
        assert [event async for event in client.stream("support", "tools")]
        assert await client.run("support", "text") == "abc"

    await run()
    no_collection()
    for _ in range(RUNS):
        await run()
    assert no_collection() == Counter()
