"""Tools of a run: what they are given, what their failures show, when they end a run."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.agents.state import State
from haystack.dataclasses import ImageContent, TextContent
from haystack.tools import Tool, Toolset, create_tool_from_function
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, call_turn, outputs_of, tell, text_turn

from hayrunner.adapted import HaystackAgentAdapter
from hayrunner.errors import ToolError
from hayrunner_contracts.events import ToolExecutionCommitted, ToolOutput

SENTINEL = "sentinel-4711"


def turns(*calls: tuple[str, dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [call_turn(*calls), text_turn("done")]


def above_debug(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of the worker's own that say that something is not as it should be."""
    found = [record for record in caplog.records if record.name.startswith("hayrunner")]
    return [record for record in found if record.levelno > logging.DEBUG]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def add_later(a: int, b: int) -> int:
    """Adds two numbers without blocking."""
    await asyncio.sleep(0)
    return a + b


async def test_sync_and_async_functions_tools_and_toolsets_are_tools(provide: Provide) -> None:
    def double(a: int) -> int:
        """Doubles."""
        return 2 * a

    class Half:
        def half(self, a: int) -> float:
            """Halves."""
            return a / 2

    provider, generator = await provide(
        turns(
            ("add", {"a": 1, "b": 2}),
            ("add_later", {"a": 3, "b": 4}),
            ("double", {"a": 5}),
            ("half", {"a": 5}),
        )
    )
    mixed = [add, add_later, Toolset([create_tool_from_function(double)]), Half().half]

    told = await tell(agent_over(generator, tools=mixed))

    assert [output for output, _ in outputs_of(told.events)] == ["3", "7", "10", "2.5"]
    names = [tool["function"]["name"] for tool in provider.requests[0].body["tools"]]
    assert names == ["add", "add_later", "double", "half"]


async def test_tools_may_depend_on_thread_and_user(provide: Provide) -> None:
    asked: list[tuple[str | None, str | None]] = []
    _, generator = await provide(turns(("whose", {})))
    agent = agent_over(generator)

    def get_tools(thread_id: str | None = None, user: str | None = None) -> list[Any]:
        asked.append((thread_id, user))

        def whose() -> str:
            """Whose run this is."""
            return f"{user}'s"

        return [whose]

    agent.get_tools = get_tools
    ann = await tell(agent, thread_id="t1", user="Ann")
    bob = await tell(agent, thread_id="t2", user="Bob")

    assert outputs_of(ann.events) == [("Ann's", False)]
    assert outputs_of(bob.events) == [("Bob's", False)]
    assert asked == [("t1", "Ann"), ("t2", "Bob")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failing_tools_text_and_arguments_are_told_to_nobody(
    provide: Provide, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(x: str) -> str:
        """Fails."""
        raise ValueError(f"could not open {SENTINEL} with {x}")

    async def fail_async(x: str) -> str:
        """Fails."""
        return fail(x)

    function = fail_async if is_async else fail
    tool = create_tool_from_function(function, name="fail")
    provider, generator = await provide(turns(("fail", {"x": SENTINEL})))

    with caplog.at_level(logging.DEBUG, logger="hayrunner"):
        told = await tell(agent_over(generator, tools=[tool]))

    ((output, is_error),) = outputs_of(told.events)
    assert output.startswith("The tool fail failed (ref ")
    assert is_error
    assert provider.requests[1].body["messages"][-1]["content"] == output
    assert told.outcome.status == "completed"
    ref = output.partition("(ref ")[2].partition(")")[0]
    (record,) = above_debug(caplog)
    assert record.getMessage() == f"tool fail failed with ValueError (ref {ref})"
    assert record.exc_info is None
    assert SENTINEL not in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_tool_error_says_is_told_to_the_model(
    provide: Provide, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def find(order: int) -> str:
        """Finds an order."""
        raise ToolError(f"there is no order {order}; orders have four digits")

    async def find_async(order: int) -> str:
        """Finds an order."""
        return find(order)

    tool = create_tool_from_function(find_async if is_async else find, name="find")
    provider, generator = await provide(turns(("find", {"order": 7})))

    told = await tell(agent_over(generator, tools=[tool]))

    said = "there is no order 7; orders have four digits"
    assert outputs_of(told.events) == [(said, True)]
    assert provider.requests[1].body["messages"][-1]["content"] == said
    assert above_debug(caplog) == []


async def test_arguments_that_do_not_satisfy_the_schema_are_not_run(provide: Provide) -> None:
    _, generator = await provide(turns(("add", {"a": 1})))
    told = await tell(agent_over(generator, tools=[add]))
    ((output, is_error),) = outputs_of(told.events)
    assert output == (
        "This call was not run: its arguments do not satisfy the tool's schema: at the root: "
        "'b' is a required property. Call the tool again with arguments that do."
    )
    assert is_error


async def test_state_reaches_tools_and_takes_their_outputs(provide: Provide) -> None:
    seen: list[Any] = []

    def collect(item: str, state: State) -> dict[str, Any]:
        """Collects."""
        seen.append(list(state.get("items") or []))
        return {"items": [item]}

    tool = create_tool_from_function(collect, outputs_to_state={"items": {"source": "items"}})
    _, generator = await provide(
        [*(call_turn(("collect", {"item": item})) for item in "ab"), text_turn("done")]
    )
    inner = HaystackAgent(
        chat_generator=generator, tools=[tool], state_schema={"items": {"type": list[str]}}
    )
    await tell(HaystackAgentAdapter("collector", inner))
    assert seen == [[], ["a"]]


async def test_a_tool_exit_condition_ends_the_run_after_the_tool(provide: Provide) -> None:
    provider, generator = await provide(turns(("add", {"a": 1, "b": 2})))
    inner = HaystackAgent(
        chat_generator=generator,
        tools=[create_tool_from_function(add)],
        exit_conditions=["add"],
    )

    told = await tell(HaystackAgentAdapter("calc", inner))

    assert len(provider.requests) == 1
    assert outputs_of(told.events) == [("3", False)]
    assert (told.outcome.status, told.outcome.finish_reason) == ("completed", "tool")
    assert told.outcome.answer is None
    assert told.roles == ["assistant", "tool"]


async def test_a_tool_that_failed_does_not_end_the_run(provide: Provide) -> None:
    provider, generator = await provide(turns(("add", {"a": 1})))
    inner = HaystackAgent(
        chat_generator=generator, tools=[create_tool_from_function(add)], exit_conditions=["add"]
    )
    told = await tell(HaystackAgentAdapter("calc", inner))
    assert (told.outcome.answer, len(provider.requests)) == ("done", 2)


async def test_raise_on_tool_invocation_failure_fails_the_run_without_the_text(
    provide: Provide,
) -> None:
    def fail(x: str) -> str:
        """Fails."""
        raise ValueError(SENTINEL)

    provider, generator = await provide(turns(("fail", {"x": SENTINEL})))
    inner = HaystackAgent(
        chat_generator=generator,
        tools=[create_tool_from_function(fail)],
        raise_on_tool_invocation_failure=True,
    )

    told = await tell(HaystackAgentAdapter("strict", inner))

    assert len(provider.requests) == 1
    assert (told.outcome.status, told.code) == ("failed", "internal")
    assert told.outcome.error is not None
    assert told.outcome.error.message.startswith("the tool fail failed (ref ")
    assert [event.tool_call_id for event in told.of(ToolExecutionCommitted)] == ["call_0"]
    assert told.roles == ["assistant", "tool"]


async def test_a_tool_may_return_content_parts(provide: Provide) -> None:
    pixel = "aW1hZ2U="
    image = ImageContent(base64_image=pixel, mime_type="image/png", validation=False)
    parts = [TextContent("a pixel:"), image]
    tool = Tool(
        name="draw",
        description="Draws.",
        parameters={"type": "object", "properties": {}},
        function=lambda: parts,
        outputs_to_string={"raw_result": True},
    )
    _, generator = await provide(turns(("draw", {})))
    inner = HaystackAgent(chat_generator=generator, tools=[tool], exit_conditions=["draw"])

    told = await tell(HaystackAgentAdapter("artist", inner))

    (event,) = told.of(ToolOutput)
    text, drawn = event.tool_output
    assert text == {"text": "a pixel:"}
    assert isinstance(drawn, dict)
    assert drawn["image"]["base64_image"] == pixel
    # The same form as in the message that goes into history.
    stored = msgspec.to_builtins(told.outcome.messages[-1])
    assert stored["content"][0]["tool_call_result"]["result"] == event.tool_output


async def test_a_tool_output_that_cannot_be_merged_fails_the_run_as_internal(
    provide: Provide, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(old: Any, new: Any) -> Any:
        raise ValueError(SENTINEL)

    tool = create_tool_from_function(add, outputs_to_state={"total": {"handler": handler}})
    tool.function = lambda a, b: {"total": a + b}
    _, generator = await provide(turns(("add", {"a": 1, "b": 2})))
    inner = HaystackAgent(
        chat_generator=generator, tools=[tool], state_schema={"total": {"type": dict}}
    )

    told = await tell(HaystackAgentAdapter("calc", inner))

    assert told.code == "internal"
    assert told.outcome.error is not None
    assert told.outcome.error.ref
    assert SENTINEL not in told.outcome.error.message
    assert SENTINEL not in caplog.text


async def test_a_plain_function_is_made_into_a_tool_once(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator, tools=[add])
    assert agent.run_tools(None, None)[0] is agent.run_tools("t", "u")[0]
