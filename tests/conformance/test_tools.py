"""`tool_context`, and what a tool knows of the call it runs for."""

import asyncio
import threading
from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver, Told, new_thread
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.tool_context import ToolCallInfo, current_tool_call
from hayrunner_contracts.events import Data, StreamEnd

CALLS = [call_turn(("note", {"n": 0}), ("note", {"n": 1})), text_turn("done")]


@pytest.fixture(params=["async", "sync"])
def sort(request: pytest.FixtureRequest) -> str:
    return request.param


class Notes:
    """A tool in either form that notes the call it is called for."""

    def __init__(self, sort: str) -> None:
        self.calls: list[ToolCallInfo] = []
        self.threads: list[str] = []
        self.tool: Any = self._async() if sort == "async" else self._sync()

    def _note(self) -> ToolCallInfo:
        call = current_tool_call()
        self.calls.append(call)
        self.threads.append(threading.current_thread().name)
        return call

    def _async(self) -> Any:
        async def note(n: int) -> str:
            """Notes."""
            call = self._note()
            await call.emit("progress", {"n": n})
            return "noted"

        return note

    def _sync(self) -> Any:
        def note(n: int) -> str:
            """Notes."""
            call = self._note()
            call.emit_from_thread("progress", {"n": n})
            return "noted"

        return note


async def test_it_is_given_to_tools_and_never_to_the_model(
    driver: Driver, provide: Provide, agent_over: AgentOver, sort: str
) -> None:
    provider, generator = await provide(CALLS)
    notes = Notes(sort)
    context = {"tenant": "sentinel-4711", "list": [1]}
    await driver.tell(agent_over(generator, tools=[notes.tool]), options={"tool_context": context})
    assert [call.tool_context for call in notes.calls] == [context, context]
    assert not any("sentinel-4711" in str(request.body) for request in provider.requests)


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_each_tool_call_sees_its_own_copy(
    driver: Driver, provide: Provide, agent_over: AgentOver, concurrency: int
) -> None:
    _, generator = await provide(CALLS)
    seen: list[Any] = []

    async def note(n: int) -> str:
        """Spoils what it is given."""
        context = current_tool_call().tool_context
        context["list"].append(n)
        await asyncio.sleep(0)
        seen.append(context["list"])
        return "noted"

    await driver.tell(
        agent_over(generator, tools=[note]),
        options={"tool_context": {"list": []}, "tool_concurrency": concurrency},
    )
    assert sorted(seen) == [[0], [1]]


async def test_a_tool_knows_the_call_it_runs_for(
    driver: Driver, provide: Provide, agent_over: AgentOver, sort: str
) -> None:
    _, generator = await provide(CALLS)
    notes = Notes(sort)
    agent = agent_over(generator, tools=[notes.tool])
    thread = new_thread()
    told = await driver.tell(agent, thread_id=thread, user="ann", options={"tool_concurrency": 2})
    message_id = told.result.message_id
    assert len(notes.calls) == 2
    for number, call in enumerate(sorted(notes.calls, key=lambda call: call.tool_call_id)):
        assert (call.message_id, call.agent, call.step) == (message_id, "stage", 1)
        assert (call.tool_call_id, call.tool_name) == (f"call_{number}", "note")
        assert (call.thread_id, call.user) == (thread, "ann")
        assert call.idempotency_key == f"{message_id}:1:call_{number}"


async def test_there_is_no_call_outside_of_one() -> None:
    with pytest.raises(LookupError):
        current_tool_call()


async def test_a_tool_emits_data_events(
    streaming: Driver, provide: Provide, agent_over: AgentOver, sort: str
) -> None:
    _, generator = await provide(CALLS)
    told: Told = await streaming.tell(agent_over(generator, tools=[Notes(sort).tool]))
    data = [(event.data_type, event.data, event.step) for event in told.of(Data)]
    assert data == [("progress", {"n": 0}, 1), ("progress", {"n": 1}, 1)]


async def test_an_async_tool_that_emits_like_a_thread_fails_instead_of_waiting_for_itself(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(CALLS)

    async def note(n: int) -> str:
        """Would wait for ever."""
        current_tool_call().emit_from_thread("progress")
        return "noted"

    told = await driver.tell(agent_over(generator, tools=[note]))
    assert [is_error for *_, is_error in told.tool_results] == [True, True]
    assert told.answer == "done"


async def test_sync_tools_run_in_threads_of_the_agents_own(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(CALLS)
    notes = Notes("sync")
    await driver.tell(agent_over(generator, tools=[notes.tool]))
    assert all(name.startswith("tools-stage") for name in notes.threads)


async def test_a_tool_that_blocks_a_thread_does_not_stall_other_runs(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    def choose(body: dict[str, Any]) -> Any:
        asked = body["messages"][0]["content"]
        if any(message["role"] == "tool" for message in body["messages"]):
            return text_turn("done")
        return call_turn((asked, {}))

    _, generator = await provide(choose)
    release, blocked = threading.Event(), threading.Semaphore(0)

    def block() -> str:
        """Blocks its thread."""
        blocked.release()
        release.wait(30)
        return "released"

    def quick() -> str:
        """Is quick."""
        return "quick"

    agent = agent_over(generator, tools=[block, quick])
    try:
        # More than the loop's own threads, of which there are as many as processors and four.
        blocking = [await driver.start(agent, "block") for _ in range(20)]
        for _ in blocking:
            await asyncio.to_thread(blocked.acquire, timeout=20)
        told = await driver.tell(agent, "quick")
        assert [result for _, result, _ in told.tool_results] == ["quick"]
    finally:
        release.set()
    for running in blocking:
        assert (await running.told()).answer == "done"


async def test_a_thread_that_outlives_its_run_is_not_heard(
    streaming: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(CALLS)
    begun, release, over = threading.Event(), threading.Event(), threading.Event()

    def note(n: int) -> str:
        """Goes on when its run has ended."""
        begun.set()
        release.wait(30)
        current_tool_call().emit_from_thread("late")
        over.set()
        return "noted"

    running = await streaming.start(agent_over(generator, tools=[note]))
    await asyncio.to_thread(begun.wait, 20)
    await running.cancel()
    told = await running.told()
    release.set()
    assert await asyncio.to_thread(over.wait, 20)
    assert told.of(Data) == []
    assert isinstance(running.events[-1], StreamEnd)
