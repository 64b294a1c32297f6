"""Which tool calls wait for a person, and what comes before they do."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from haystack import Pipeline
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.builders import ChatPromptBuilder
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool, Toolset, create_tool_from_function, tool
from tests.unit.agent.conftest import Provide
from tests.unit.agent.files import Files, approve, deletes
from tests.unit.agent.going import Going
from tests.unit.agent.runs import agent_over, call_turn, outputs_of, tell, text_turn

from hayrunner.adapted import HaystackAgentAdapter, PipelineAgent
from hayrunner.approvals import requires_approval
from hayrunner.errors import ConfigurationError
from hayrunner.hooks import HookRun, PendingCall, Rewrite, RunHooks, Skip, Stop
from hayrunner_contracts.commands import Approve, Deny, Modify
from hayrunner_contracts.events import ToolApprovalRequest


class Rewrites(RunHooks):
    async def on_tool_call(self, run: HookRun, call: PendingCall) -> Rewrite | Skip | Stop | None:
        path = str(call.tool_input["path"])
        if path == "/skipped":
            return Skip("Leave that one.")
        if path == "/stop":
            return Stop("enough")
        return Rewrite({"path": f"/tmp{path}"})


async def test_hooks_come_first_and_people_see_what_they_made_of_a_call(provide: Provide) -> None:
    _, generator = await provide([deletes("/a", "/skipped", "/b"), text_turn("done")])
    files = Files()
    agent = agent_over(generator, tools=files.tools(), hooks=[Rewrites()])
    async with Going(agent) as run:
        asked = await run.asks(2)
        assert [(one.tool_call_id, one.tool_input["path"]) for one in asked] == [
            ("call_0", "/tmp/a"),
            ("call_2", "/tmp/b"),
        ]
        run.send(approve(0), Modify(tool_call_id="call_2", tool_input={"path": "/c"}))
        told = await run.told()

    # A person has the last word: hooks are not asked about the modification.
    assert files.done == ["delete /tmp/a", "delete /c"]
    assert outputs_of(told.events) == [
        ("deleted /tmp/a", False),
        ("Leave that one.", True),
        ("deleted /c", False),
    ]


async def test_a_hook_that_stops_the_run_does_so_before_anybody_is_asked(
    provide: Provide,
) -> None:
    _, generator = await provide([deletes("/a", "/stop"), text_turn("never")])
    files = Files()
    told = await tell(agent_over(generator, tools=files.tools(), hooks=[Rewrites()]))
    assert (told.code, files.done) == ("stopped", [])
    assert told.of(ToolApprovalRequest) == []
    assert [error for _, error in outputs_of(told.events)] == [True, True]


async def test_invalid_calls_are_not_asked_about(provide: Provide) -> None:
    calls = call_turn(("delete", {"path": 7}), ("nothing", {}), ("delete", {"path": "/a"}))
    _, generator = await provide([calls, text_turn("done")])
    async with Going(agent_over(generator, tools=Files().tools())) as run:
        (asked,) = await run.asks()
        run.send(Approve(tool_call_id=asked.tool_call_id))
        told = await run.told()
    assert [error for _, error in outputs_of(told.events)] == [True, True, False]


async def test_a_tool_is_marked_as_a_function_as_a_tool_or_in_a_toolset(
    provide: Provide,
) -> None:
    def first(path: str) -> str:
        """First."""
        return path

    async def second(path: str) -> str:
        """Second."""
        return path

    @tool
    @requires_approval
    def third(path: str) -> str:
        """Third."""
        return path

    def fourth(path: str) -> str:
        """Fourth."""
        return path

    def fifth(path: str) -> str:
        """Fifth."""
        return path

    tools = [
        requires_approval(first),
        requires_approval(second),
        third,
        requires_approval(create_tool_from_function(fourth)),
        Toolset([requires_approval(create_tool_from_function(fifth))]),
    ]
    names = ["first", "second", "third", "fourth", "fifth"]
    calls = call_turn(*((name, {"path": "/a"}) for name in names))
    _, generator = await provide([calls, text_turn("done")])
    async with Going(agent_over(generator, tools=tools)) as run:
        asked = await run.asks(5)
        assert [one.tool_name for one in asked] == names
        run.send(*(approve(number) for number in range(5)))
        await run.told()


async def test_tools_are_named_by_the_agent(provide: Provide) -> None:
    async def read(path: str) -> str:
        """Reads."""
        return path

    toolset = Toolset([create_tool_from_function(read)])
    _, generator = await provide([call_turn(("read", {"path": "/a"})), text_turn("done")])
    async with Going(agent_over(generator, tools=[toolset], approvals=("read",))) as run:
        await run.asks()
        run.send(approve())
        assert outputs_of((await run.told()).events) == [("/a", False)]


async def test_a_misspelled_name_is_told_when_the_agent_starts(
    provide: Provide, caplog: pytest.LogCaptureFixture
) -> None:
    _, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator, tools=Files().tools(), approvals=("read", "raed"))
    await agent.warm_up()
    assert "approvals names tools it has not: raed" in caplog.text


def _only_secret(agent: Any, call: PendingCall, run: HookRun) -> bool:
    return call.tool_input["path"] == "/secret" and run.step == 1


async def _only_secret_async(agent: Any, call: PendingCall, run: HookRun) -> bool:
    return _only_secret(agent, call, run)


@pytest.mark.parametrize("policy", [_only_secret, _only_secret_async])
async def test_a_policy_decides_by_the_arguments(
    provide: Provide, policy: Callable[..., bool | Awaitable[bool]]
) -> None:
    calls = call_turn(("read", {"path": "/open"}), ("read", {"path": "/secret"}))
    _, generator = await provide([calls, text_turn("done")])
    files = Files()
    agent = agent_over(generator, tools=files.tools(), approval_policy=policy)
    async with Going(agent) as run:
        (asked,) = await run.asks()
        assert asked.tool_input == {"path": "/secret"}
        run.send(Deny(tool_call_id="call_1"))
        await run.told()
    assert files.done == ["read /open"]


@pytest.mark.parametrize("answer", [None, ValueError("private")])
async def test_a_policy_that_fails_lets_nothing_through(provide: Provide, answer: Any) -> None:
    def policy(agent: Any, call: PendingCall, run: HookRun) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    _, generator = await provide([call_turn(("read", {"path": "/a"})), text_turn("never")])
    files = Files()
    told = await tell(agent_over(generator, tools=files.tools(), approval_policy=policy))
    assert (told.outcome.status, told.code, files.done) == ("failed", "internal", [])
    assert told.outcome.error is not None
    assert "private" not in told.outcome.error.message


async def test_a_mark_holds_for_an_agent_made_with_haystack(provide: Provide) -> None:
    _, generator = await provide([deletes("/a"), text_turn("done")])
    files = Files()
    tools = [create_tool_from_function(function) for function in files.tools()]
    inner = HaystackAgent(chat_generator=generator, tools=tools)
    async with Going(HaystackAgentAdapter("support", inner)) as run:
        await run.asks()
        assert files.done == []
        run.send(approve())
        await run.told()
    assert files.done == ["delete /a"]


async def test_a_pipeline_that_could_not_ask_is_refused(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    tools = [create_tool_from_function(function) for function in Files().tools()]
    pipeline = Pipeline()
    template = [ChatMessage.from_user("{{ question }}")]
    pipeline.add_component("prompt", ChatPromptBuilder(template, required_variables="*"))
    pipeline.add_component("agent", HaystackAgent(chat_generator=generator, tools=tools))
    pipeline.connect("prompt.prompt", "agent.messages")
    with pytest.raises(ConfigurationError, match="component agent has a tool that requires"):
        PipelineAgent("support", pipeline)


@pytest.mark.parametrize("thing", [Toolset([]), Files().delete])
def test_what_cannot_be_marked_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigurationError):
        requires_approval(thing)


async def test_a_partial_of_a_marked_function_is_marked(provide: Provide) -> None:
    @requires_approval
    def move(path: str, to: str) -> str:
        """Moves."""
        return f"{path} to {to}"

    home = Tool(
        name="move_home",
        description="Moves home.",
        parameters={"type": "object", "properties": {"path": {"type": "string"}}},
        function=functools.partial(move, to="/home"),
    )
    _, generator = await provide([call_turn(("move_home", {"path": "/a"})), text_turn("done")])
    async with Going(agent_over(generator, tools=[home])) as run:
        await run.asks()
        run.send(approve())
        assert outputs_of((await run.told()).events) == [("/a to /home", False)]


@pytest.mark.parametrize(
    "settings", [{"on_approval_timeout": "ignore"}, {"approval_timeout_s": -1}]
)
async def test_settings_that_make_no_sense_are_refused(
    provide: Provide, settings: dict[str, Any]
) -> None:
    _, generator = await provide([text_turn("Hello")])
    with pytest.raises(ConfigurationError):
        Going(agent_over(generator, **settings))
