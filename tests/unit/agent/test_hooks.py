"""Haystack's own hooks beside this package's loop."""

from dataclasses import replace
from typing import Any

import pytest
from haystack.components.agents.state import State, replace_values
from haystack.dataclasses import ChatMessage
from haystack.hooks import hook
from haystack.hooks.budget import TokenBudgetHook
from haystack.hooks.human_in_the_loop import (
    AlwaysAskPolicy,
    BlockingConfirmationStrategy,
    ConfirmationHook,
    ConfirmationUIResult,
)
from haystack.hooks.human_in_the_loop.types import ConfirmationUI
from tests.unit.agent.conftest import Provide
from tests.unit.agent.going import Going
from tests.unit.agent.runs import agent_over, call_turn, outputs_of, tell, text_turn

from hayrunner.adapters.convert import from_wire
from hayrunner_contracts.codec import encode
from hayrunner_contracts.commands import Approve
from hayrunner_contracts.events import ToolExecutionCommitted, ToolInputComplete, ToolOutput

SECRET = "card 4711"
MODIFIED = {"a": 10, "b": 20}
TWO_CALLS = call_turn(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
POINTS = ["before_run", "before_llm", "before_tool", "after_tool", "on_exit", "after_run"]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_hooks_run_at_every_point_in_both_modes(provide: Provide) -> None:
    _, generator = await provide([TWO_CALLS, text_turn("done")])
    seen: list[str] = []

    def note(point: str) -> Any:
        @hook
        async def noted(state: State) -> None:
            seen.append(point)

        return noted

    agent = agent_over(
        generator, tools=[add], default_hooks={point: [note(point)] for point in POINTS}
    )
    loop = ["before_run", "before_llm", "before_tool", "after_tool", "before_llm", "on_exit"]

    await tell(agent)
    assert seen == [*loop, "after_run"]

    seen.clear()
    await tell(agent, mode="answer", tools=True)
    assert seen == [*loop, "after_run"]

    seen.clear()
    await tell(agent, mode="answer")
    assert seen[:2] == ["before_run", "before_llm"]


class Answers(ConfirmationUI):
    """A person who answers from a list."""

    def __init__(self, *answers: ConfirmationUIResult) -> None:
        self._answers = list(answers)

    def get_user_confirmation(
        self, tool_name: str, tool_description: str, tool_params: dict[str, Any]
    ) -> ConfirmationUIResult:
        return self._answers.pop(0)


def confirming(*answers: ConfirmationUIResult) -> dict[str, Any]:
    strategy = BlockingConfirmationStrategy(
        confirmation_policy=AlwaysAskPolicy(), confirmation_ui=Answers(*answers)
    )
    return {"before_tool": [ConfirmationHook(confirmation_strategies={"add": strategy})]}


async def test_a_rejected_call_has_an_output_only(provide: Provide) -> None:
    provider, generator = await provide([TWO_CALLS, text_turn("done")], turn_of=_by_tool_messages)
    hooks = confirming(ConfirmationUIResult("reject"), ConfirmationUIResult("confirm"))

    told = await tell(agent_over(generator, tools=[add], default_hooks=hooks))

    (rejection, was_error), second = outputs_of(told.events)
    assert "reject" in rejection
    assert was_error
    assert second == ("7", False)
    (committed,) = told.of(ToolExecutionCommitted)
    assert committed.tool_input == {"a": 3, "b": 4}
    assert told.roles == ["assistant", "tool", "tool", "assistant"]
    assert len(provider.requests) == 2


async def test_when_all_calls_are_rejected_the_model_is_told_and_answers(provide: Provide) -> None:
    _, generator = await provide([TWO_CALLS, text_turn("fine")], turn_of=_by_tool_messages)
    hooks = confirming(ConfirmationUIResult("reject"), ConfirmationUIResult("reject"))
    told = await tell(agent_over(generator, tools=[add], default_hooks=hooks))
    assert [is_error for _, is_error in outputs_of(told.events)] == [True, True]
    assert told.of(ToolExecutionCommitted) == []
    assert told.outcome.answer == "fine"


async def test_modified_arguments_are_the_committed_ones(provide: Provide) -> None:
    _, generator = await provide([TWO_CALLS, text_turn("done")], turn_of=_by_tool_messages)
    hooks = confirming(
        ConfirmationUIResult("modify", new_tool_params={"a": 10, "b": 20}),
        ConfirmationUIResult("confirm"),
    )

    told = await tell(agent_over(generator, tools=[add], default_hooks=hooks))

    written = [event.tool_input for event in told.of(ToolInputComplete)]
    committed = [event.tool_input for event in told.of(ToolExecutionCommitted)]
    assert written == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert committed == [{"a": 10, "b": 20}, {"a": 3, "b": 4}]
    assert outputs_of(told.events) == [("30", False), ("7", False)]


def _by_tool_messages(body: dict[str, Any]) -> int:
    """The hook splits an assistant message in several: count answers instead."""
    return int(any(message["role"] == "tool" for message in body["messages"]))


@pytest.mark.filterwarnings("ignore:'TokenBudgetHook' is an experimental component")
@pytest.mark.parametrize("mode", ["stream", "answer"])
async def test_the_budget_hook_ends_the_run_with_its_own_code(provide: Provide, mode: str) -> None:
    provider, generator = await provide([TWO_CALLS, text_turn("done")])
    hooks = {"before_llm": [TokenBudgetHook(max_total_tokens=15, add_final_message=True)]}

    told = await tell(
        agent_over(generator, tools=[add], default_hooks=hooks), mode=mode, tools=True
    )

    assert len(provider.requests) == 1
    assert (told.outcome.status, told.code) == ("failed", "budget_exceeded")
    assert told.outcome.finish_reason == "stopped"
    assert told.outcome.answer == "The Agent stopped because the token budget was exceeded."
    assert told.outcome.usage.total_tokens == 15


async def test_a_hook_that_stops_the_run_gives_its_reason(provide: Provide) -> None:
    @hook
    def stop(state: State) -> None:
        state.set("stop_run", "closing time")

    provider, generator = await provide([text_turn("Hello")])
    agent = agent_over(
        generator, default_hooks={"before_llm": [stop]}, response_format={"type": "object"}
    )

    told = await tell(agent)

    # No repair turn either: the run was to stop.
    assert provider.requests == []
    assert (told.code, told.outcome.finish_reason) == ("stopped", "stopped")
    assert told.outcome.error is not None
    assert told.outcome.error.message == "a hook stopped the run: closing time"


async def test_what_after_tool_redacts_is_shown_to_nobody(provide: Provide) -> None:
    def look_up(name: str) -> str:
        """Looks a customer up."""
        return f"{name}: {SECRET}"

    @hook
    def redact(state: State) -> None:
        messages = state.data["messages"]
        last = messages[-1]
        result = replace(last.tool_call_result, result="[redacted]")
        clean = ChatMessage.from_tool(tool_result=result.result, origin=result.origin)
        state.set("messages", [*messages[:-1], clean], handler_override=replace_values)

    provider, generator = await provide([call_turn(("look_up", {"name": "Ann"})), text_turn("ok")])

    told = await tell(
        agent_over(generator, tools=[look_up], default_hooks={"after_tool": [redact]})
    )

    assert outputs_of(told.events) == [("[redacted]", False)]
    assert provider.requests[1].body["messages"][-1]["content"] == "[redacted]"
    shown = [*map(encode, told.events), *map(encode, told.outcome.messages)]
    assert not any(SECRET.encode() in data for data in shown)


async def test_a_result_that_a_hook_takes_out_is_shown_as_nothing(provide: Provide) -> None:
    @hook
    def drop(state: State) -> None:
        messages = state.data["messages"][:-1]
        state.set("messages", messages, handler_override=replace_values)

    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("ok")])
    told = await tell(agent_over(generator, tools=[add], default_hooks={"after_tool": [drop]}))
    assert [event.tool_output for event in told.of(ToolOutput)] == [""]


async def test_on_exit_may_keep_the_run_going_and_its_message_is_history(provide: Provide) -> None:
    said: list[bool] = []

    @hook
    def once_more(state: State) -> None:
        if not said:
            said.append(True)
            state.set("messages", [ChatMessage.from_user("Are you sure?")])
            state.set("continue_run", True)

    provider, generator = await provide([text_turn("Hello"), text_turn("Yes.")])

    told = await tell(agent_over(generator, default_hooks={"on_exit": [once_more]}))

    assert len(provider.requests) == 2
    assert told.text == "HelloYes."
    assert told.outcome.answer == "Yes."
    messages = [from_wire(message).text for message in told.outcome.messages]
    assert messages == ["Hello", "Are you sure?", "Yes."]


async def test_on_exit_cannot_loop_past_max_turns(provide: Provide) -> None:
    @hook
    def forever(state: State) -> None:
        state.set("continue_run", True)

    provider, generator = await provide([text_turn("Hello")])
    told = await tell(agent_over(generator, default_hooks={"on_exit": [forever]}))
    assert (told.code, len(provider.requests)) == ("max_turns", 6)


async def test_a_before_run_hook_may_rewrite_the_conversation(provide: Provide) -> None:
    @hook
    def brief(state: State) -> None:
        messages = [ChatMessage.from_user("in one word: " + state.data["messages"][-1].text)]
        state.set("messages", messages, handler_override=replace_values)

    provider, generator = await provide([text_turn("Hello")])
    told = await tell(agent_over(generator, default_hooks={"before_run": [brief]}), "hi")
    assert provider.requests[0].body["messages"] == [{"role": "user", "content": "in one word: hi"}]
    assert told.roles == ["assistant"]


async def test_a_hook_that_compacts_the_conversation_does_not_shorten_history(
    provide: Provide,
) -> None:
    @hook
    def keep_the_last(state: State) -> None:
        summary = ChatMessage.from_user("Earlier, numbers were added.")
        if len(state.data["messages"]) > 2:
            state.set("messages", [summary], handler_override=replace_values)

    provider, generator = await provide([TWO_CALLS, text_turn("done")], turn_of=_by_summary)
    agent = agent_over(generator, tools=[add], default_hooks={"before_llm": [keep_the_last]})

    told = await tell(agent)

    assert [m["content"] for m in provider.requests[1].body["messages"]] == [
        "Earlier, numbers were added."
    ]
    assert told.roles == ["assistant", "tool", "tool", "assistant"]


def _by_summary(body: dict[str, Any]) -> int:
    return int(body["messages"][0]["content"].startswith("Earlier"))


async def test_a_confirmation_hook_is_asked_before_anybody_else(provide: Provide) -> None:
    _, generator = await provide([TWO_CALLS, text_turn("done")], turn_of=_by_tool_messages)
    hooks = confirming(
        ConfirmationUIResult("reject"), ConfirmationUIResult("modify", new_tool_params=MODIFIED)
    )
    agent = agent_over(generator, tools=[add], default_hooks=hooks, approvals=("add",))

    async with Going(agent) as run:
        (asked,) = await run.asks()
        assert (asked.tool_call_id, asked.tool_input) == ("call_1", MODIFIED)
        run.send(Approve(tool_call_id="call_1"))
        told = await run.told()

    assert [error for _, error in outputs_of(told.events)] == [True, False]
    (committed,) = told.of(ToolExecutionCommitted)
    assert committed.tool_input == MODIFIED
