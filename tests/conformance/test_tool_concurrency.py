"""`tool_concurrency`: tools at once, default 1, 0 counts as 1; the order that shows; and what a
hook that stops the run does to a batch."""

import asyncio
from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.conformance.hooked import hook
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.hooks import HookRun, PendingCall, Rewrite, RewriteResult, Skip, Stop, ToolResult
from hayrunner_contracts.events import (
    ModelCallEnd,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
)

COUNT = 8
IDS = [f"call_{n}" for n in range(COUNT)]
DROPPED = "This call was not run: the run was stopped first."


def turns(count: int = COUNT) -> list[Any]:
    return [call_turn(*(("work", {"n": n}) for n in range(count))), text_turn("done")]


class Works:
    """A tool whose calls end in the order that a test says."""

    def __init__(self, *order: int) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.most = 0
        self._order = order
        self._turn = asyncio.Condition()

    async def work(self, n: int) -> str:
        """Works."""
        self.begun.append(n)
        self.most = max(self.most, len(self.begun) - len(self.ended))
        await asyncio.sleep(0)
        async with self._turn:
            await self._turn.wait_for(lambda: self._may_end(n))
            self.ended.append(n)
            self._turn.notify_all()
        return f"worked {n}"

    def _may_end(self, n: int) -> bool:
        return not self._order or self._order[len(self.ended)] == n


async def test_final_history_is_in_call_order_at_concurrency_8_with_tools_finishing_in_reverse(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(turns(), kind)
    works = Works(*reversed(range(COUNT)))

    told = await driver.tell(
        agent_over(generator, tools=[works.work]), options={"tool_concurrency": 8}
    )

    assert works.ended == list(reversed(range(COUNT)))
    assert works.most == COUNT
    assert told.tool_results == [(f"call_{n}", f"worked {n}", False) for n in range(COUNT)]
    sent = [m for m in provider.requests[1].body["messages"] if m["role"] == "tool"]
    assert [(m["tool_call_id"], m["content"]) for m in sent] == [
        (f"call_{n}", f"worked {n}") for n in range(COUNT)
    ]


@pytest.mark.parametrize(("option", "most"), [(..., 1), (None, 1), (0, 1), (1, 1), (3, 3)])
async def test_the_default_is_1_and_0_counts_as_1(
    driver: Driver, provide: Provide, agent_over: AgentOver, option: Any, most: int
) -> None:
    _, generator = await provide(turns())
    works = Works()
    options = {} if option is ... else {"tool_concurrency": option}
    await driver.tell(agent_over(generator, tools=[works.work]), options=options)
    assert works.most == most
    assert works.begun == list(range(COUNT))


async def test_all_calls_first_then_after_the_batch_committed_and_output_per_call_in_call_order(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    _, generator = await provide(turns(), kind)
    works = Works(*reversed(range(COUNT)))
    told = await streaming.tell(
        agent_over(generator, tools=[works.work]), options={"tool_concurrency": 8}
    )
    shown = (ToolCallStart, ToolInputComplete, ModelCallEnd, ToolExecutionCommitted, ToolOutput)
    seen = [
        (type(event).__name__, getattr(event, "tool_call_id", None))
        for event in told.events
        if isinstance(event, shown)
    ]
    starts = [entry for entry in seen if entry[0] == "ToolCallStart"]
    assert starts == [("ToolCallStart", call) for call in IDS]
    assert seen[COUNT:] == [
        *(("ToolInputComplete", call) for call in IDS),
        ("ModelCallEnd", None),
        *((name, call) for call in IDS for name in ("ToolExecutionCommitted", "ToolOutput")),
        ("ModelCallEnd", None),
    ]


async def test_committed_has_the_arguments_really_used(
    streaming: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(2))
    works = Works()
    rewriting = hook(on_tool_call=lambda run, call: Rewrite({"n": call.tool_input["n"] + 10}))
    told = await streaming.tell(agent_over(generator, tools=[works.work], hooks=[rewriting]))
    assert [event.tool_input for event in told.of(ToolInputComplete)] == [{"n": 0}, {"n": 1}]
    assert [e.tool_input for e in told.of(ToolExecutionCommitted)] == [{"n": 10}, {"n": 11}]
    assert works.begun == [10, 11]


async def test_rejected_or_skipped_calls_have_an_output_only(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(3))
    works = Works()

    def skip_one(run: HookRun, call: PendingCall) -> Skip | None:
        return Skip("not this one") if call.tool_input["n"] == 1 else None

    told = await driver.tell(
        agent_over(generator, tools=[works.work], hooks=[hook(on_tool_call=skip_one)])
    )

    assert works.begun == [0, 2]
    assert told.tool_results == [
        ("call_0", "worked 0", False),
        ("call_1", "not this one", True),
        ("call_2", "worked 2", False),
    ]
    assert told.answer == "done"
    if driver.streams:
        assert [e.tool_call_id for e in told.of(ToolExecutionCommitted)] == ["call_0", "call_2"]
        assert [e.tool_call_id for e in told.of(ToolOutput)] == ["call_0", "call_1", "call_2"]


async def test_a_stop_before_a_tool_drops_unstarted_siblings_and_drains_running_ones(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(turns(6))
    works = Works(1, 0)

    async def stop_the_third(run: HookRun, call: PendingCall) -> Stop | None:
        return Stop("no more") if call.tool_input["n"] == 2 else None

    told = await driver.tell(
        agent_over(generator, tools=[works.work], hooks=[hook(on_tool_call=stop_the_third)]),
        options={"tool_concurrency": 3},
    )

    # Two were running when the third stopped the run; nothing was begun after that.
    assert sorted(works.begun) == sorted(works.ended) == [0, 1]
    assert (told.code, told.why) == ("stopped", "no more")
    assert told.tool_results == [
        ("call_0", "worked 0", False),
        ("call_1", "worked 1", False),
        *((f"call_{n}", DROPPED, True) for n in range(2, 6)),
    ]
    assert len(provider.requests) == 1
    if driver.streams:
        assert [e.tool_call_id for e in told.of(ToolExecutionCommitted)] == ["call_0", "call_1"]
        assert len(told.of(ToolOutput)) == 6


async def test_a_sibling_whose_hooks_are_still_asked_when_the_run_is_stopped_is_dropped(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(2))
    works = Works()
    stopped = asyncio.Event()

    async def ask(run: HookRun, call: PendingCall) -> Stop | None:
        if call.tool_input["n"] == 0:
            await stopped.wait()
            return None
        stopped.set()
        return Stop("no more")

    told = await driver.tell(
        agent_over(generator, tools=[works.work], hooks=[hook(on_tool_call=ask)]),
        options={"tool_concurrency": 2},
    )

    assert works.begun == []
    assert [result for _, result, _ in told.tool_results] == [DROPPED, DROPPED]


async def test_a_stop_after_a_tool_withholds_its_result_and_drops_unstarted_siblings(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(4))
    works = Works(1, 0)

    async def stop_the_second(run: HookRun, result: ToolResult) -> Stop | RewriteResult:
        if result.tool_call_id == "call_1":
            return Stop("seen enough")
        return RewriteResult(output=f"kept {result.output}")

    told = await driver.tell(
        agent_over(generator, tools=[works.work], hooks=[hook(on_tool_result=stop_the_second)]),
        options={"tool_concurrency": 2},
    )

    assert sorted(works.ended) == [0, 1]
    assert (told.code, told.why) == ("stopped", "seen enough")
    withheld = "The result of this call is withheld: the run was stopped."
    assert told.tool_results == [
        ("call_0", "kept worked 0", False),
        ("call_1", withheld, True),
        ("call_2", DROPPED, True),
        ("call_3", DROPPED, True),
    ]
    assert "worked 1" not in told.everything
    if driver.streams:
        assert [e.tool_call_id for e in told.of(ToolExecutionCommitted)] == ["call_0", "call_1"]


@pytest.mark.parametrize("point", ["on_tool_call", "on_tool_result"])
async def test_a_hook_that_raises_in_a_batch_is_no_other_than_one_that_stops_it(
    driver: Driver, provide: Provide, agent_over: AgentOver, point: str
) -> None:
    _, generator = await provide(turns(4))
    works = Works(0)

    def fail(run: HookRun, call: Any) -> None:
        if call.tool_call_id == "call_1":
            raise ValueError("card 4711")

    told = await driver.tell(
        agent_over(generator, tools=[works.work], hooks=[hook(**{point: fail})]),
        options={"tool_concurrency": 1},
    )

    assert told.code == "internal"
    assert "card 4711" not in told.everything
    assert told.tool_results[0] == ("call_0", "worked 0", False)
    assert [is_error for *_, is_error in told.tool_results] == [False, True, True, True]
    assert works.begun == ([0] if point == "on_tool_call" else [0, 1])


@pytest.mark.parametrize("rewrites", [True, False])
async def test_rewrites_chain(
    driver: Driver, provide: Provide, agent_over: AgentOver, rewrites: bool
) -> None:
    _, generator = await provide(turns(1))
    works = Works()
    seen: list[Any] = []

    def add_one(run: HookRun, call: PendingCall) -> Rewrite | None:
        seen.append(dict(call.tool_input))
        # Only what is returned counts.
        call.tool_input["n"] = 99  # pyright: ignore[reportIndexIssue]
        return Rewrite({"n": seen[-1]["n"] + 1}) if rewrites else None

    def louder(run: HookRun, result: ToolResult) -> RewriteResult | None:
        seen.append(result.output)
        return RewriteResult(output=f"{result.output}!") if rewrites else None

    hooks = [hook(on_tool_call=add_one, on_tool_result=louder) for _ in range(2)]
    told = await driver.tell(agent_over(generator, tools=[works.work], hooks=hooks))

    [(_, result, is_error)] = told.tool_results
    assert not is_error
    if rewrites:
        assert seen == [{"n": 0}, {"n": 1}, "worked 2", "worked 2!"]
        assert (works.begun, result) == ([2], "worked 2!!")
    else:
        assert seen == [{"n": 0}, {"n": 0}, "worked 0", "worked 0"]
        assert (works.begun, result) == ([0], "worked 0")


async def test_a_rewritten_result_is_what_the_model_and_the_consumer_see(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(turns(1))
    hooks = [hook(on_tool_result=RewriteResult(output="redacted", is_error=True))]
    told = await driver.tell(agent_over(generator, tools=[Works().work], hooks=hooks))
    assert provider.requests[1].body["messages"][-1]["content"] == "redacted"
    assert told.tool_results == [("call_0", "redacted", True)]
    assert "worked 0" not in told.everything


async def test_a_cancelled_batch_cancels_its_tools_once_and_says_which_were_begun(
    streaming: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(3))
    begun = asyncio.Event()
    cleaned: list[int] = []

    async def work(n: int) -> str:
        """Takes its time to clean up."""
        if n == 1:
            begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02 * (2 - n))
            cleaned.append(n)
        return "never"

    running = await streaming.start(
        agent_over(generator, tools=[work]), options={"tool_concurrency": 2}
    )
    await asyncio.wait_for(begun.wait(), 10)
    await running.cancel()
    told = await running.told()

    assert sorted(cleaned) == [0, 1]
    assert (told.result.status, told.result.finish_reason) == ("cancelled", "cancelled")
    assert [e.tool_call_id for e in told.of(ToolExecutionCommitted)] == ["call_0", "call_1"]
    assert [output.is_error for output in told.of(ToolOutput)] == [True, True, True]
    assert [is_error for *_, is_error in told.tool_results] == [True, True, True]


async def test_a_tool_that_waits_for_something_cancelled_has_failed_and_the_run_goes_on(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(turns(1))

    async def work(n: int) -> str:
        """Waits for a future that is cancelled."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    told = await driver.tell(agent_over(generator, tools=[work]))
    [(_, result, is_error)] = told.tool_results
    assert (is_error, told.answer) == (True, "done")
    assert result.startswith("The tool work failed (ref ")
