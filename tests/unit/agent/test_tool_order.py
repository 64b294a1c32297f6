"""The order of a step's tool events and messages, whatever order the tools finish in."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.tools import create_tool_from_function
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    outputs_of,
    request,
    tell,
    text_turn,
)

from hayrunner.adapted import HaystackAgentAdapter
from hayrunner.adapters.convert import from_wire
from hayrunner_contracts.events import (
    ModelCallEnd,
    StreamEvent,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
)

COUNT = 4
TURNS = [call_turn(*(("work", {"n": n}) for n in range(COUNT))), text_turn("done")]


class Works:
    """Tools that finish last to first where they run at once, and in call order otherwise."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.finished: list[int] = []
        self._gates = [asyncio.Event() for _ in range(COUNT)]
        self._gates[-1].set()

    def tool(self, at_once: int) -> Callable[..., Any]:
        async def work(n: int) -> str:
            """Works."""
            self.running += 1
            self.most = max(self.most, self.running)
            if at_once >= COUNT:
                await self._gates[n].wait()
            else:
                await asyncio.sleep(0)
            self.finished.append(n)
            if n:
                self._gates[n - 1].set()
            self.running -= 1
            return f"worked {n}"

        return work


def tool_ids(events: list[StreamEvent]) -> list[tuple[str, str]]:
    kinds = (ToolCallStart, ToolInputComplete, ToolExecutionCommitted, ToolOutput)
    return [(type(e).__name__, e.tool_call_id) for e in events if isinstance(e, kinds)]


@pytest.mark.parametrize(
    ("option", "at_once"), [(0, 1), (1, 1), (2, 2), (8, COUNT), (None, 1), (..., 1)]
)
async def test_calls_come_first_and_outputs_after_the_batch_in_call_order(
    provide: Provide, option: Any, at_once: int
) -> None:
    _, generator = await provide(TURNS)
    works = Works()
    agent = agent_over(generator, tools=[works.tool(at_once)])

    told = await tell(agent, options={} if option is ... else {"tool_concurrency": option})

    assert works.most == at_once
    expected = list(range(COUNT)) if at_once < COUNT else list(reversed(range(COUNT)))
    assert works.finished == expected
    ids = [f"call_{n}" for n in range(COUNT)]
    assert tool_ids(told.events) == [
        *(("ToolCallStart", call) for call in ids),
        *(("ToolInputComplete", call) for call in ids),
        *(e for c in ids for e in (("ToolExecutionCommitted", c), ("ToolOutput", c))),
    ]
    assert outputs_of(told.events) == [(f"worked {n}", False) for n in range(COUNT)]
    tools = [from_wire(message) for message in told.outcome.messages if message.role == "tool"]
    assert [result.origin.id for tool in tools for result in tool.tool_call_results] == ids


async def test_no_output_is_shown_before_the_whole_batch_has_settled(provide: Provide) -> None:
    _, generator = await provide(TURNS)
    seen: list[int] = []
    sink = Sink()

    async def work(n: int) -> str:
        """Works."""
        seen.append(sum(isinstance(event, ToolOutput) for event in sink.events))
        return str(n)

    session = agent_over(generator, tools=[work]).open_session(
        request(), message_id=MESSAGE_ID, sink=sink, agent_name="support"
    )
    await session.run()

    assert seen == [0] * COUNT


async def test_the_model_call_ends_before_its_tools_run(provide: Provide) -> None:
    _, generator = await provide([call_turn(("add", {"n": 1})), text_turn("done")])

    async def add(n: int) -> str:
        """Adds."""
        return str(n)

    told = await tell(agent_over(generator, tools=[add]))

    kinds = [k for k in told.kinds if k in ("ModelCallEnd", "ToolExecutionCommitted")]
    assert kinds == ["ModelCallEnd", "ToolExecutionCommitted", "ModelCallEnd"]
    assert [event.step for event in told.of(ModelCallEnd)] == [1, 2]
    assert [event.step for event in told.of(ToolOutput)] == [1]


async def test_the_agents_own_concurrency_is_the_default(provide: Provide) -> None:
    _, generator = await provide(TURNS)
    works = Works()
    agent = agent_over(generator, tools=[works.tool(COUNT)], tool_concurrency=COUNT)
    await tell(agent)
    assert works.finished == [3, 2, 1, 0]


async def test_a_call_that_reads_state_runs_after_those_that_write_it(provide: Provide) -> None:
    def write(value: str) -> dict[str, str]:
        """Writes."""
        return {"value": value}

    def read(value: str) -> str:
        """Reads."""
        return f"read {value}"

    writes = create_tool_from_function(write, outputs_to_state={"note": {"source": "value"}})
    reads = create_tool_from_function(read, inputs_from_state={"note": "value"})
    _, generator = await provide(
        [call_turn(("read", {}), ("write", {"value": "x"})), text_turn("done")]
    )
    inner = HaystackAgent(
        chat_generator=generator, tools=[reads, writes], state_schema={"note": {"type": str}}
    )

    told = await tell(HaystackAgentAdapter("notes", inner))

    # In call order all the same.
    assert outputs_of(told.events) == [("read x", False), ('{"value": "x"}', False)]
