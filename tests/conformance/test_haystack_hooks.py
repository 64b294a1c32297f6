"""Haystack's own hooks beside `RunHooks`, unchanged: budget, compaction, confirmation, offloading,
and any `@hook`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from haystack.components.agents.state import State
from haystack.hooks import hook as haystack_hook
from haystack.hooks.budget import TokenBudgetHook
from haystack.hooks.compaction import CompactionHook, SlidingWindowCompactor
from haystack.hooks.human_in_the_loop import (
    AlwaysAskPolicy,
    BlockingConfirmationStrategy,
    ConfirmationHook,
    ConfirmationUIResult,
)
from haystack.hooks.human_in_the_loop.types import ConfirmationUI
from haystack.hooks.tool_result_offloading import (
    AlwaysOffload,
    FileSystemToolResultStore,
    ToolResultOffloadHook,
)
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.conformance.hooked import hook
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.hooks import Repair, Rewrite, RewriteResult
from hayrunner_contracts.events import ToolExecutionCommitted, ToolOutput

SECRET = "card 4711"
CALLS = call_turn(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def by_tool_messages(body: dict[str, Any]) -> int:
    return int(any(message["role"] == "tool" for message in body["messages"]))


def stored_in(folder: Path) -> tuple[str, str]:
    [stored] = [path for path in folder.rglob("*") if path.is_file()]
    return stored.name, stored.read_text()


class Answers(ConfirmationUI):
    def __init__(self, answers: Iterator[ConfirmationUIResult]) -> None:
        self._answers = answers

    def get_user_confirmation(
        self, tool_name: str, tool_description: str, tool_params: dict[str, Any]
    ) -> ConfirmationUIResult:
        return next(self._answers)


def confirming(*answers: ConfirmationUIResult) -> Any:
    strategy = BlockingConfirmationStrategy(
        confirmation_policy=AlwaysAskPolicy(), confirmation_ui=Answers(iter(answers))
    )
    return ConfirmationHook(confirmation_strategies={"add": strategy, "plus": strategy})


@pytest.mark.filterwarnings("ignore:'TokenBudgetHook' is an experimental component")
async def test_budget(driver: Driver, provide: Provide, agent_over: AgentOver) -> None:
    provider, generator = await provide([CALLS, text_turn("done")])
    budget = {"before_llm": [TokenBudgetHook(max_total_tokens=15)]}
    asked: list[int] = []
    beside = hook(on_model_call=lambda run, call: asked.append(run.step))
    told = await driver.tell(
        agent_over(generator, tools=[add], default_hooks=budget, hooks=[beside])
    )
    assert (told.code, told.result.finish_reason) == ("budget_exceeded", "stopped")
    assert (len(provider.requests), asked) == (1, [1])


@pytest.mark.filterwarnings("ignore:'CompactionHook' is an experimental component")
@pytest.mark.filterwarnings("ignore:'SlidingWindowCompactor' is an experimental component")
async def test_compaction(driver: Driver, provide: Provide, agent_over: AgentOver) -> None:
    def look(n: int) -> str:
        """Looks."""
        return "seen " * 200

    looks = [call_turn(("look", {"n": n})) for n in range(3)]
    seen = -1

    def choose(body: dict[str, Any]) -> Any:
        nonlocal seen
        seen += 1
        return [*looks, text_turn("done")][seen]

    provider, generator = await provide(choose)
    compact = CompactionHook(
        SlidingWindowCompactor(omission_note="Earlier steps were dropped."), context_window=300
    )
    shown: list[int] = []
    beside = hook(on_model_call=lambda run, call: shown.append(len(call.messages)))
    told = await driver.tell(
        agent_over(generator, tools=[look], default_hooks={"before_llm": [compact]}, hooks=[beside])
    )
    assert told.answer == "done"
    last = provider.requests[-1].body["messages"]
    assert "Earlier steps were dropped." in [message.get("content") for message in last]
    assert shown == [len(request.body["messages"]) for request in provider.requests]
    # The model sees less; what happened is all there.
    assert len(last) < 7
    assert told.roles == ["assistant", "tool"] * 3 + ["assistant"]


@pytest.mark.filterwarnings("ignore:'ToolResultOffloadHook' is an experimental component")
async def test_tool_result_offloading(
    driver: Driver, provide: Provide, agent_over: AgentOver, tmp_path: Path
) -> None:
    def look() -> str:
        """Looks."""
        return "a long result " * 100

    provider, generator = await provide([call_turn(("look", {})), text_turn("done")])
    offload = ToolResultOffloadHook(
        FileSystemToolResultStore(tmp_path), {"*": AlwaysOffload()}, preview_chars=6
    )
    beside = hook(on_tool_result=RewriteResult(output="rewritten " * 100))
    told = await driver.tell(
        agent_over(generator, tools=[look], default_hooks={"after_tool": [offload]}, hooks=[beside])
    )
    assert told.answer == "done"
    name, text = stored_in(tmp_path)
    # What the hooks made of it is what was put away.
    assert text == "rewritten " * 100
    [(_, result, _)] = told.tool_results
    assert name in result
    assert provider.requests[1].body["messages"][-1]["content"] == result
    if driver.streams:
        assert [output.tool_output for output in told.of(ToolOutput)] == [result]


async def test_confirmation(driver: Driver, provide: Provide, agent_over: AgentOver) -> None:
    _, generator = await provide([CALLS, text_turn("done")], turn_of=by_tool_messages)
    confirm = confirming(
        ConfirmationUIResult("reject"),
        ConfirmationUIResult("modify", new_tool_params={"a": 10, "b": 20}),
    )
    # What a person let pass, a hook may still rewrite.
    beside = hook(on_tool_call=lambda run, call: Rewrite({**call.tool_input, "b": 21}))
    told = await driver.tell(
        agent_over(generator, tools=[add], default_hooks={"before_tool": [confirm]}, hooks=[beside])
    )
    (_, rejected, first_failed), (_, result, second_failed) = told.tool_results
    assert "reject" in rejected
    assert (first_failed, result, second_failed) == (True, "31", False)
    assert told.answer == "done"
    if driver.streams:
        [committed] = told.of(ToolExecutionCommitted)
        assert committed.tool_input == {"a": 10, "b": 21}


async def test_a_repair_beside_a_confirmation_keeps_history_whole(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    turn = call_turn(("add", {"a": 1, "b": 2}), ("add", {"a": "x"}), ("add", {"a": 3, "b": 4}))
    provider, generator = await provide([turn, text_turn("done")], turn_of=by_tool_messages)
    confirm = confirming(
        ConfirmationUIResult("confirm"),
        ConfirmationUIResult("confirm"),
        ConfirmationUIResult("reject"),
    )
    mend = hook(on_invalid_tool_call=Repair(tool_input={"a": 5, "b": 5}))
    told = await driver.tell(
        agent_over(generator, tools=[add], default_hooks={"before_tool": [confirm]}, hooks=[mend])
    )
    assert told.answer == "done"
    results = {call: (result, is_error) for call, result, is_error in told.tool_results}
    assert results["call_0"] == ("3", False)
    assert results["call_1"] == ("10", False)
    assert results["call_2"][1]
    sent = provider.requests[1].body["messages"]
    calls = [call for message in sent for call in message.get("tool_calls") or []]
    mended = [c for c in calls if c["id"] == "call_1"]
    assert [json.loads(c["function"]["arguments"]) for c in mended] == [{"a": 5, "b": 5}]
    answered = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert sorted(answered) == ["call_0", "call_1", "call_2"]


async def test_any_hook(driver: Driver, provide: Provide, agent_over: AgentOver) -> None:
    _, generator = await provide([CALLS, text_turn("done")])
    seen: list[str] = []

    def noting(point: str) -> Any:
        @haystack_hook
        async def note(state: State) -> None:
            seen.append(point)

        return note

    points = ["before_run", "before_llm", "before_tool", "after_tool", "on_exit", "after_run"]
    hooks = {point: [noting(point)] for point in points}
    beside = hook(
        on_model_call=lambda *_: seen.append("on_model_call"),
        on_tool_call=lambda *_: seen.append("on_tool_call"),
    )
    await driver.tell(agent_over(generator, tools=[add], default_hooks=hooks, hooks=[beside]))
    model, tools = ["before_llm", "on_model_call"], ["on_tool_call"] * 2
    assert seen == [
        "before_run",
        *model,
        "before_tool",
        *tools,
        "after_tool",
        *model,
        "on_exit",
        "after_run",
    ]


async def test_a_hook_that_raises_fails_the_run_without_its_text(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    @haystack_hook
    async def broken(state: State) -> None:
        raise ValueError(SECRET)

    _, generator = await provide([CALLS, text_turn("done")])
    agent = agent_over(generator, tools=[add], default_hooks={"before_tool": [broken]})
    told = await driver.tell(agent)
    assert told.code == "internal"
    assert SECRET not in told.everything
