"""`on_model_call`: continue, patch, stop; and how the patches of several hooks merge."""

from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver
from tests.conformance.hooked import hook
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.hooks import HookRun, ModelCall, Patch, Stop
from hayrunner_contracts.documents import Document
from hayrunner_contracts.events import ToolExecutionCommitted
from hayrunner_contracts.options import NamedTool

REPLY = [text_turn("Hello")]


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def subtract(a: int, b: int) -> int:
    """Subtracts."""
    return a - b


def patches(*given: Patch) -> list[Any]:
    return [hook(on_model_call=patch) for patch in given]


async def test_documents_append(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(REPLY, kind)
    own, one, two = (Document(content=name) for name in "ABC")
    hooks = patches(Patch(documents=[one]), Patch(documents=[two]))

    told = await driver.tell(
        agent_over(generator, instructions="Be brief.", documents=[own], hooks=hooks)
    )

    system, documents, asked = provider.requests[0].body["messages"]
    assert (system["role"], documents["role"], asked["content"]) == ("system", "user", "hi")
    found = [documents["content"].index(f"\n{name}\n") for name in "ABC"]
    assert found == sorted(found)
    assert told.roles == ["assistant"]


async def test_parameters_shallow_merge(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(REPLY, kind, generation_kwargs={"seed": 1, "user": "own"})
    hooks = patches(
        Patch(parameters={"seed": 2, "logit_bias": {"1": 1}}),
        Patch(parameters={"logit_bias": {"2": 2}, "user": None}),
    )

    await driver.tell(agent_over(generator, hooks=hooks))

    body = provider.requests[0].body
    assert (body["seed"], body["logit_bias"]) == (2, {"2": 2})
    assert "user" not in body


async def test_active_tools_intersect(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(REPLY, kind)
    hooks = patches(Patch(active_tools=["add", "nosuch"]), Patch(active_tools=["subtract", "add"]))
    await driver.tell(agent_over(generator, tools=[add, subtract], hooks=hooks))
    tools = provider.requests[0].body["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["add"]


async def test_where_the_intersection_is_empty_no_tools_are_offered(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(REPLY)
    hooks = patches(Patch(active_tools=["add"]), Patch(active_tools=["subtract"]))
    await driver.tell(agent_over(generator, tools=[add, subtract], hooks=hooks))
    assert "tools" not in provider.requests[0].body


async def test_a_tool_that_was_taken_away_is_not_run_when_it_is_called(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("done")])
    hooks = patches(Patch(active_tools=["subtract"]))
    told = await driver.tell(agent_over(generator, tools=[add, subtract], hooks=hooks))
    [(_, result, is_error)] = told.tool_results
    assert is_error
    assert (
        result == "This call was not run: there is no tool of that name. The tools are: subtract."
    )
    assert told.of(ToolExecutionCommitted) == []


async def test_scalars_last_wins_with_a_warning(
    driver: Driver,
    provide: Provide,
    agent_over: AgentOver,
    kind: str,
    log: pytest.LogCaptureFixture,
) -> None:
    provider, generator = await provide(REPLY, kind)
    first = Patch(preamble="one", temperature=0.1, max_tokens=1, tool_choice="auto")
    last = Patch(preamble="two", temperature=0.2, max_tokens=2, tool_choice="required")

    await driver.tell(agent_over(generator, tools=[add], hooks=patches(first, Patch(), last)))

    body = provider.requests[0].body
    assert body["messages"][0] == {"role": "system", "content": "two"}
    assert (body["temperature"], body["tool_choice"]) == (0.2, "required")
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 2
    warned = [record.getMessage() for record in log.records if record.levelname == "WARNING"]
    named = ("preamble", "temperature", "max_tokens", "tool_choice")
    assert [name for name in named for text in warned if f" {name} " in text] == list(named)


async def test_one_hooks_scalar_gives_no_warning(
    driver: Driver, provide: Provide, agent_over: AgentOver, log: pytest.LogCaptureFixture
) -> None:
    _, generator = await provide(REPLY)
    await driver.tell(agent_over(generator, hooks=patches(Patch(temperature=0.1), Patch())))
    assert [record for record in log.records if record.levelname == "WARNING"] == []


async def test_a_patch_is_for_one_step(
    driver: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    provider, generator = await provide(
        [call_turn(("add", {"a": 1, "b": 2})), text_turn("done")], kind
    )

    def first_only(run: HookRun, call: ModelCall) -> Patch | None:
        patch = Patch(
            preamble="patched",
            temperature=0.5,
            documents=[Document(content="D")],
            active_tools=["add"],
        )
        return patch if run.step == 1 else None

    agent = agent_over(generator, tools=[add, subtract], hooks=[hook(on_model_call=first_only)])
    await driver.tell(agent)

    one, two = (request.body for request in provider.requests)
    assert (len(one["messages"]), one["temperature"], len(one["tools"])) == (3, 0.5, 1)
    assert [message["role"] for message in two["messages"]] == ["user", "assistant", "tool"]
    assert ("temperature" in two, len(two["tools"])) == (False, 2)


async def test_a_hook_sees_the_conversation_and_the_tools(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("done")])
    seen: list[tuple[list[str], list[str]]] = []

    def note(run: HookRun, call: ModelCall) -> None:
        seen.append(([message.role for message in call.messages], list(call.tool_names)))

    agent = agent_over(generator, tools=[add], instructions="own", hooks=[hook(on_model_call=note)])
    await driver.tell(agent)

    first = ["system", "user"]
    assert seen == [(first, ["add"]), ([*first, "assistant", "tool"], ["add"])]


@pytest.mark.parametrize(
    "patch",
    [
        Patch(tool_choice=NamedTool(name="nosuch")),
        Patch(tool_choice="required", active_tools=[]),
        Patch(tool_choice=NamedTool(name="add"), active_tools=["subtract"]),
    ],
    ids=["unknown", "none left", "taken away"],
)
async def test_a_patched_choice_that_cannot_be_honoured_is_an_error_before_the_call(
    driver: Driver, provide: Provide, agent_over: AgentOver, patch: Patch
) -> None:
    provider, generator = await provide(REPLY)
    told = await driver.tell(agent_over(generator, tools=[add, subtract], hooks=patches(patch)))
    assert (told.code, provider.requests) == ("invalid_request", [])


async def test_a_choice_of_the_request_that_a_patch_takes_the_tool_of_is_an_error_before_the_call(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(REPLY)
    agent = agent_over(generator, tools=[add], hooks=patches(Patch(active_tools=[])))
    told = await driver.tell(agent, options={"tool_choice": {"name": "add"}})
    assert (told.code, provider.requests) == ("invalid_request", [])


async def test_stop_ends_the_run_with_code_stopped_and_its_reason(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("done")])

    def second(run: HookRun, call: ModelCall) -> Stop | None:
        return Stop("that is enough") if run.step == 2 else None

    told = await driver.tell(agent_over(generator, tools=[add], hooks=[hook(on_model_call=second)]))

    assert len(provider.requests) == 1
    assert (told.result.status, told.code, told.why) == ("failed", "stopped", "that is enough")
    assert told.result.finish_reason == "stopped"
    assert told.roles == ["assistant", "tool"]
