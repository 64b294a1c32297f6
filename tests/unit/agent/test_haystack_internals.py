"""The private names of Haystack that are used: a new version that changes one fails here."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import create_tool_from_function
from jinja2 import Environment

from hayrunner.adapters import haystack_internals as internals
from hayrunner.adapters.loop import LoopAgent, loop_agent

# The parameters that are passed, as they are passed.
CALLS: list[tuple[Callable[..., Any], tuple[str, ...], dict[str, str]]] = [
    (internals.build_tool_message, ("result", "call", "tool"), {"raise_on_failure": "bool"}),
    (internals.check_duplicate_tool_names, (), {"tools": "list"}),
    (internals.create_tool_span, ("tool", "call", "parent"), {}),
    (internals.merge_tool_outputs, ("tool", "result", "state"), {}),
    (internals.pending_tool_call_messages, ("state",), {}),
    (
        internals.prepare_tool_args,
        (),
        {"tool": "tool", "tool_call_arguments": "dict", "state": "state"},
    ),
    (internals.record_context_tokens, ("state", "messages"), {}),
    (internals.record_llm_usage, ("state", "messages"), {}),
    (internals.record_tool_calls, ("state", "messages"), {}),
    (internals.run_hooks, (), {"hooks": "dict", "hook_point": "str", "state": "state"}),
    (internals.schedule_tool_calls, ("calls", "tools"), {}),
    (internals.serialize_value, ("payload",), {}),
    (internals.deserialize_value, ("serialized",), {}),
]
OURS = {
    internals.mandatory_inputs,
    internals.content_parts,
    internals.keep_templates,
    internals.uses_state,
}


def test_every_name_that_is_exported_is_checked_here() -> None:
    checked = {function for function, _, _ in CALLS} | OURS
    assert {getattr(internals, name) for name in internals.__all__} == checked


@pytest.mark.parametrize(
    ("function", "positional", "named"), CALLS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_private_function_takes_what_it_is_given(
    function: Callable[..., Any], positional: tuple[str, ...], named: dict[str, str]
) -> None:
    bound = inspect.signature(function).bind(*positional, **named)
    assert len(bound.arguments) == len(positional) + len(named)


def test_hooks_are_run_by_a_coroutine() -> None:
    assert inspect.iscoroutinefunction(internals.run_hooks)


@pytest.mark.parametrize(
    "name", [n for n in vars(LoopAgent) if n.startswith("_") and not n.startswith("__")]
)
def test_what_the_loop_overrides_exists_with_the_same_parameters(name: str) -> None:
    theirs = getattr(HaystackAgent, name)
    ours = vars(LoopAgent)[name]
    if name == "_initialize_fresh_execution":
        # It passes on whatever it is given.
        assert list(inspect.signature(ours).parameters) == ["self", "args", "kwargs"]
        return
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)


def test_the_loop_overrides_the_step() -> None:
    assert {"_initialize_fresh_execution", "_run_step_async"} <= set(vars(LoopAgent))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_continue_after_exit_hooks_async", ["self", "exe_context"]),
        ("_check_exit_conditions", ["self", "llm_messages", "tool_messages"]),
    ],
)
def test_what_the_loop_calls_takes_what_it_is_given(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(HaystackAgent, name)).parameters) == parameters


def test_a_loop_is_a_copy_that_shares_the_parts_of_its_agent() -> None:
    agent = HaystackAgent(chat_generator=MockChatGenerator("x"), max_agent_steps=3)
    loop = loop_agent(agent)
    assert loop is not agent
    assert type(agent) is HaystackAgent
    assert loop.chat_generator is agent.chat_generator
    assert (loop.own_max_turns, agent.max_agent_steps) == (3, 3)
    assert loop_agent(loop) is loop


def test_mandatory_inputs_are_found() -> None:
    agent = HaystackAgent(chat_generator=MockChatGenerator("x"), user_prompt="{{topic}}")
    assert sorted(internals.mandatory_inputs(agent)) == ["messages", "topic"]


def test_the_parts_of_a_message_are_found_in_order() -> None:
    call = ToolCall(tool_name="add", arguments={})
    message = ChatMessage.from_assistant("text", tool_calls=[call], reasoning="why")
    kinds = [type(part).__name__ for part in internals.content_parts(message)]
    assert kinds == ["ReasoningContent", "TextContent", "ToolCall"]


def plain(a: int) -> int:
    """Takes a number."""
    return a


def stateful(a: int, state: State) -> int:
    """Takes the state."""
    return a


def test_a_tool_that_reads_or_writes_state_is_told_from_one_that_does_not() -> None:
    assert not internals.uses_state(create_tool_from_function(plain))
    assert internals.uses_state(create_tool_from_function(stateful))
    reads = create_tool_from_function(plain, inputs_from_state={"number": "a"})
    writes = create_tool_from_function(plain, outputs_to_state={"number": {}})
    assert internals.uses_state(reads)
    assert internals.uses_state(writes)
    again = replace(reads, function=stateful, inputs_from_state=None)
    assert internals.uses_state(again)


def test_the_installed_version_is_the_minor_version_that_was_read() -> None:
    assert version("haystack-ai").startswith("3.4.")


async def test_prompts_are_compiled_once_and_filled_in_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []
    plain = Environment.from_string

    def from_string(self: Environment, source: Any, *rest: Any, **more: Any) -> Any:
        compiled.append(source)
        return plain(self, source, *rest, **more)

    monkeypatch.setattr(Environment, "from_string", from_string)
    agent = HaystackAgent(
        chat_generator=MockChatGenerator("hello"),
        system_prompt="You are {{ who }}.",
        user_prompt='{% message role="user" %}{{ asked }}, at {{ when }}{% endmessage %}',
        required_variables=[],
    )
    internals.keep_templates(agent)
    internals.keep_templates(agent)
    compiled.clear()
    for one in (agent, agent, copy.deepcopy(agent)):
        for number in range(3):
            found = await one.run_async([], who=f"w{number}", asked=f"a{number}", when="noon")
            system, user = found["messages"][:2]
            assert (system.text, user.text) == (f"You are w{number}.", f"a{number}, at noon")

    assert len(compiled) == len(set(compiled)) == 2
