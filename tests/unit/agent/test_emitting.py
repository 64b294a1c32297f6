"""Several tasks that emit into one run."""

import asyncio

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.settings import RunSettings
from hayrunner_contracts.events import Data, StreamEvent


class Reluctant:
    """Makes every event wait, the first ones longest: whoever may overtake does."""

    def __init__(self) -> None:
        self.taken: list[StreamEvent] = []
        self._turns = 40

    async def emit(self, event: StreamEvent) -> None:
        self._turns = max(0, self._turns - 1)
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self.taken.append(event)


async def test_what_one_task_emits_is_never_overtaken_by_itself() -> None:
    sink = Reluctant()
    run = RunContext(message_id="m", settings=RunSettings(), sink=sink)
    run.share()

    async def emit(name: str) -> None:
        for number in range(0, 12, 3):
            await run.emit(Data(data_type=name, data=number + n) for n in range(3))

    await asyncio.gather(*(emit(name) for name in "abc"))

    for name in "abc":
        told = [e.data for e in sink.taken if isinstance(e, Data) and e.data_type == name]
        assert told == list(range(12))


async def test_events_whose_turn_was_cancelled_are_not_lost() -> None:
    blocked, sink = asyncio.Event(), Reluctant()

    class Blocking(Reluctant):
        async def emit(self, event: StreamEvent) -> None:
            sink.taken.append(event)
            await blocked.wait()

    run = RunContext(message_id="m", settings=RunSettings(), sink=Blocking())
    run.share()
    first = asyncio.ensure_future(run.emit([Data(data_type="a")]))
    second = asyncio.ensure_future(run.emit([Data(data_type="b")]))
    await asyncio.sleep(0)
    second.cancel()
    blocked.set()
    await asyncio.gather(first, second, return_exceptions=True)
    await run.emit([Data(data_type="c")])
    assert [e.data_type for e in sink.taken if isinstance(e, Data)] == ["a", "b", "c"]
