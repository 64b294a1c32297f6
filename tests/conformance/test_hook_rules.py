"""What holds at every hook point."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver, new_thread
from tests.conformance.hooked import POINTS, hook, idle_hook
from tests.unit.agent.runs import MESSAGE_ID, call_turn, chunk, text_turn, usage_chunk

from hayrunner.errors import ConfigurationError
from hayrunner.hooks import HookRun, RunEnd, RunHooks, Stop
from hayrunner.registry import Registry
from hayrunner_contracts.events import Error, MessageEnd

SECRET = "card 4711"
# A turn with every kind of delta, then a call that cannot be run, then the answer.
TURNS = [
    [
        chunk({"reasoning_content": "hm"}),
        *call_turn(("add", {"a": 1, "b": 2}), text="Adding. ")[:-1],
        usage_chunk(),
    ],
    call_turn(("nosuch", {})),
    text_turn("done"),
]


async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_hooks_run_in_registration_order_the_agents_own_first(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(TURNS)
    seen: list[tuple[str, str]] = []

    def noting(name: str) -> RunHooks:
        def note(point: str) -> Callable[..., None]:
            return lambda *_: seen.append((point, name))

        return hook(**{point: note(point) for point in POINTS})

    agent = agent_over(
        generator,
        tools=[add],
        hooks=[noting("own 1"), noting("own 2")],
        named_hooks={"b": noting("b"), "a": noting("a")},
    )
    await driver.tell(agent, options={"hooks": ["b", "a"]})

    assert {point for point, _ in seen} == set(POINTS)
    for point in POINTS:
        names = [name for where, name in seen if where == point]
        assert names == ["own 1", "own 2", "b", "a"] * (len(names) // 4), point


async def test_the_points_come_in_the_order_of_the_run(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(TURNS)
    seen: list[str] = []

    def note(point: str) -> Callable[..., None]:
        return lambda *_: seen.append(point)

    agent = agent_over(
        generator, tools=[add], hooks=[hook(**{point: note(point) for point in POINTS})]
    )
    await driver.tell(agent)

    assert seen == [
        "on_run_start",
        "on_model_call",
        "on_reasoning_delta",
        "on_text_delta",
        "on_tool_call_delta",
        "on_model_response",
        "on_tool_call",
        "on_tool_result",
        "on_model_call",
        "on_tool_call_delta",
        "on_model_response",
        "on_invalid_tool_call",
        "on_model_call",
        "on_text_delta",
        "on_model_response",
        "on_run_end",
    ]


async def test_no_op_methods_change_nothing(
    streaming: Driver, provide: Provide, agent_over: AgentOver, kind: str
) -> None:
    _, generator = await provide(TURNS, kind)
    bare = await streaming.tell(agent_over(generator, tools=[add]))
    hooked = await streaming.tell(agent_over(generator, tools=[add], hooks=[idle_hook()] * 3))
    assert bare.kinds == hooked.kinds
    assert bare.roles == hooked.roles
    assert (bare.answer, bare.usage) == (hooked.answer, hooked.usage)


@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_that_raises_fails_the_run_closed(
    driver: Driver,
    provide: Provide,
    agent_over: AgentOver,
    log: pytest.LogCaptureFixture,
    point: str,
) -> None:
    _, generator = await provide(TURNS)
    broken = hook(**{point: ValueError(SECRET)})

    told = await driver.tell(agent_over(generator, tools=[add], hooks=[broken]))

    assert (told.result.status, told.code) == ("failed", "internal")
    assert told.result.error is not None
    ref = told.result.error.ref
    assert ref is not None
    assert told.why == f"the hook Scripted.method failed (ref {ref})"
    assert SECRET not in told.everything
    assert SECRET not in log.text
    assert ref in log.text
    [error] = told.of(Error)
    assert (error.error_code, error.ref) == ("internal", ref)
    [end] = told.of(MessageEnd)
    assert end.finish_reason == "error"


@pytest.mark.parametrize("point", POINTS)
async def test_a_type_that_the_point_does_not_know_fails_the_run(
    driver: Driver, provide: Provide, agent_over: AgentOver, point: str
) -> None:
    _, generator = await provide(TURNS)
    told = await driver.tell(agent_over(generator, tools=[add], hooks=[hook(**{point: SECRET})]))
    assert (told.result.status, told.code) == ("failed", "internal")
    assert "returned str; it may return" in told.why
    assert SECRET not in told.everything


@pytest.mark.parametrize("point", [point for point in POINTS if point != "on_run_end"])
async def test_the_first_stop_ends_the_run_with_code_stopped_and_its_reason(
    driver: Driver, provide: Provide, agent_over: AgentOver, point: str
) -> None:
    _, generator = await provide(TURNS)
    asked: list[str] = []
    hooks = [
        hook(**{point: None}),
        hook(**{point: Stop("first")}),
        hook(**{point: lambda *_: asked.append("third") or Stop("third")}),
    ]

    told = await driver.tell(agent_over(generator, tools=[add], hooks=hooks))

    assert asked == []
    assert (told.result.status, told.code, told.why) == ("failed", "stopped", "first")
    assert told.result.finish_reason == "stopped"
    [error] = told.of(Error)
    assert (error.error_code, error.error_message) == ("stopped", "first")


async def test_a_run_that_has_ended_cannot_be_stopped(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([text_turn("Hello")])
    told = await driver.tell(agent_over(generator, hooks=[hook(on_run_end=Stop("too late"))]))
    assert told.code == "internal"
    assert "returned Stop; it may return None" in told.why


async def test_on_run_start_is_before_anything_else_once(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([text_turn("Hello")])
    told = await driver.tell(agent_over(generator, hooks=[hook(on_run_start=Stop("closed"))]))
    assert provider.requests == []
    assert (told.messages, told.answer) == ([], None)


@pytest.mark.parametrize("how", ["completed", "stopped", "internal", "provider_error", "max_turns"])
async def test_on_run_end_is_told_how_the_run_ended_however_it_did(
    driver: Driver, provide: Provide, agent_over: AgentOver, how: str
) -> None:
    turns = [[{"$status": 400}]] if how == "provider_error" else [text_turn("Hello")]
    _, generator = await provide(turns)
    seen: list[RunEnd] = []
    hooks = [hook(on_run_end=lambda run, end: seen.append(end))]
    if how == "stopped":
        hooks.append(hook(on_model_response=Stop("no")))
    if how == "internal":
        hooks.append(hook(on_model_response=ValueError()))
    options = {"max_turns": 0} if how == "max_turns" else {}

    told = await driver.tell(agent_over(generator, hooks=hooks), options=options)

    [end] = seen
    assert (end.status, end.finish_reason) == (told.result.status, told.result.finish_reason)
    assert (end.answer, end.usage) == (told.answer, told.usage)
    assert end.error_code == told.code == (None if how == "completed" else how)


async def test_every_hook_is_told_of_the_end_also_after_one_failed(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide([text_turn("Hello")])
    seen: list[str] = []
    hooks = [hook(on_run_end=ValueError()), hook(on_run_end=lambda *_: seen.append("told"))]
    told = await driver.tell(agent_over(generator, hooks=hooks))
    assert seen == ["told"]
    assert (told.code, told.answer) == ("internal", "Hello")


async def test_a_hook_knows_its_run(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(TURNS)
    seen: dict[str, list[HookRun]] = {}

    def note(point: str) -> Callable[..., None]:
        return lambda run, *_: seen.setdefault(point, []).append(run)

    agent = agent_over(
        generator, tools=[add], hooks=[hook(**{point: note(point) for point in POINTS})]
    )
    thread = new_thread()
    told = await driver.tell(
        agent, options={"tool_context": {"tenant": "t1"}}, thread_id=thread, user="ann"
    )

    for runs in seen.values():
        for run in runs:
            assert run.message_id == told.result.message_id
            assert (run.agent, run.thread_id, run.user) == ("stage", thread, "ann")
            assert run.tool_context == {"tenant": "t1"}
    steps = {point: [run.step for run in runs] for point, runs in seen.items()}
    assert steps["on_run_start"] == [0]
    assert steps["on_model_call"] == steps["on_model_response"] == [1, 2, 3]
    assert (steps["on_tool_call"], steps["on_tool_result"]) == ([1], [1])
    assert (steps["on_invalid_tool_call"], steps["on_run_end"]) == ([2], [3])
    spent = {point: [run.usage.total_tokens for run in runs] for point, runs in seen.items()}
    assert spent["on_model_call"] == [0, 15, 30]
    assert spent["on_model_response"] == [15, 30, 45]
    assert spent["on_run_end"] == [45]


async def test_each_hook_sees_its_own_copy_of_tool_context(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    _, generator = await provide(TURNS)
    seen: list[Any] = []

    def spoil(run: HookRun, *_: Any) -> None:
        seen.append(run.tool_context["list"])
        run.tool_context["list"].append("spoiled")

    spoiling = [hook(**dict.fromkeys(POINTS, spoil)) for _ in range(2)]
    await driver.tell(
        agent_over(generator, tools=[add], hooks=spoiling),
        options={"tool_context": {"list": []}},
    )

    assert len(seen) > len(POINTS)
    assert all(entry == ["spoiled"] for entry in seen)


async def test_an_unknown_hook_name_is_refused_before_any_model_call(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator, named_hooks={"audit": idle_hook(), "brake": idle_hook()})
    told = await driver.tell(agent, options={"hooks": ["audit", "nosuch"]})
    assert provider.requests == []
    assert (told.code, told.field) == ("invalid_request", "options.hooks")
    assert "no hook named nosuch is registered here; registered: audit, brake" in told.why


def test_what_is_no_hook_cannot_be_one(agent_over: AgentOver) -> None:
    registry = Registry()
    with pytest.raises(ConfigurationError, match="RunHooks"):
        registry.add_hook("audit", RunHooks)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="RunHooks"):
        agent_over(None, hooks=[object()]).new_run(None, message_id=MESSAGE_ID)  # pyright: ignore[reportArgumentType]
