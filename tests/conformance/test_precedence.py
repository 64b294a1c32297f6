"""Agent default, then the request's option, then a hook's patch for one step; in JSON an absent
field means the agent's default, null means cleared. Every option, in one table."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver, steps
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.adapters.context import current_run
from hayrunner.hooks import HookRun, ModelCall, Patch, RunHooks
from hayrunner.storage.memory import InMemoryStorage
from hayrunner.testing.provider import ScriptedProvider
from hayrunner.tool_context import current_tool_call
from hayrunner_contracts.documents import Document
from hayrunner_contracts.messages import ChatMessage

TOOLS = [call_turn(*(("probe", {"n": n}) for n in range(3))), text_turn("done")]
INVALID = [call_turn(("nosuch", {}))]


@dataclass
class Seen:
    """What one run did."""

    provider: ScriptedProvider
    code: str | None = None
    stored: bool = False
    contexts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    most: int = 0
    named: list[str] = field(default_factory=list[str])
    telemetry: bool | None = None

    @property
    def body(self) -> dict[str, Any]:
        return self.provider.requests[0].body


@dataclass(frozen=True)
class Row:
    """`own` are the agent's attributes, `kwargs` its generator's parameters; `null` and `value`
    what is seen where the request has these; `patched` what a hook's patch makes of the request's
    value, `nulled` what its None makes of it."""

    option: str
    see: Callable[[Seen], Any]
    absent: Any
    null: Any
    given: Any
    value: Any
    own: dict[str, Any] = field(default_factory=dict[str, Any])
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    turns: Any = field(default_factory=lambda: TOOLS)
    also: dict[str, Any] = field(default_factory=dict[str, Any])
    patch: Patch | None = None
    patched: Any = None
    clear: Patch | None = None
    nulled: Any = None


def parameter(name: str) -> Callable[[Seen], Any]:
    return lambda seen: seen.body.get(name)


def parameters(seen: Seen) -> dict[str, Any]:
    fixed = {"messages", "model", "stream", "stream_options", "tools"}
    return {name: value for name, value in seen.body.items() if name not in fixed}


def system(seen: Seen) -> str | None:
    first = seen.body["messages"][0]
    return first["content"] if first["role"] == "system" else None


def documents(seen: Seen) -> list[str]:
    shown = [m["content"] for m in seen.body["messages"] if "<documents>" in str(m["content"])]
    names = ("own", "asked", "patched")
    return [name for name in names if shown and f"document of {name}" in shown[0]]


def choices(seen: Seen) -> list[Any]:
    return [request.body.get("tool_choice") for request in seen.provider.requests]


def calls(seen: Seen) -> int:
    return len(seen.provider.requests)


def code(seen: Seen) -> str | None:
    return seen.code


def memory(seen: Seen) -> tuple[int, bool]:
    """Messages of the thread that were sent, and whether the run was stored."""
    sent = [m["content"] for m in seen.body["messages"]]
    return sum(content in ("earlier", "answer") for content in sent), seen.stored


def document(name: str) -> dict[str, Any]:
    return {"content": f"document of {name}"}


TABLE = [
    Row(
        "max_turns",
        calls,
        2,
        7,
        1,
        1,
        own={"max_agent_steps": 2},
        turns=[*(call_turn(("probe", {"n": n})) for n in range(6)), text_turn("done")],
    ),
    Row(
        "preamble",
        system,
        "own",
        None,
        "asked",
        "asked",
        own={"instructions": "own"},
        patch=Patch(preamble="patched"),
        patched="patched",
        clear=Patch(preamble=None),
    ),
    Row(
        "history",
        memory,
        (2, True),
        (0, False),
        [{"role": "user", "content": "earlier"}],
        (1, False),
    ),
    Row("memory", memory, (2, True), (2, True), False, (0, False)),
    Row(
        "documents",
        documents,
        ["own"],
        [],
        [document("asked")],
        ["own", "asked"],
        own={"documents": [Document(content="document of own")]},
        patch=Patch(documents=[Document(content="document of patched")]),
        patched=["own", "asked", "patched"],
    ),
    Row(
        "temperature",
        parameter("temperature"),
        0.1,
        None,
        0.5,
        0.5,
        kwargs={"temperature": 0.1},
        patch=Patch(temperature=0.9),
        patched=0.9,
        clear=Patch(temperature=None),
    ),
    Row(
        "max_tokens",
        parameter("max_tokens"),
        10,
        None,
        20,
        20,
        kwargs={"max_tokens": 10},
        patch=Patch(max_tokens=30),
        patched=30,
        clear=Patch(max_tokens=None),
    ),
    Row(
        "merge_params",
        parameters,
        {"seed": 1, "user": "own"},
        {"seed": 1, "user": "own"},
        {"seed": 2, "top_p": 0.5},
        {"seed": 2, "user": "own", "top_p": 0.5},
        kwargs={"seed": 1, "user": "own"},
        patch=Patch(parameters={"seed": 3}),
        patched={"seed": 3, "user": "own", "top_p": 0.5},
        clear=Patch(parameters={"seed": None}),
        nulled={"user": "own", "top_p": 0.5},
    ),
    Row(
        "replace_params",
        parameters,
        {"seed": 1, "user": "own"},
        {},
        {"seed": 2},
        {"seed": 2},
        kwargs={"seed": 1, "user": "own"},
        patch=Patch(parameters={"top_p": 0.5}),
        patched={"seed": 2, "top_p": 0.5},
        clear=Patch(parameters={"seed": None}),
        nulled={},
    ),
    Row(
        "tool_choice",
        parameter("tool_choice"),
        "auto",
        None,
        "none",
        "none",
        kwargs={"tool_choice": "auto"},
        patch=Patch(tool_choice="required"),
        patched="required",
        clear=Patch(tool_choice=None),
    ),
    Row(
        "tool_choice_every_step",
        choices,
        ["required", "auto"],
        ["required", "auto"],
        True,
        ["required", "required"],
        also={"tool_choice": "required"},
    ),
    Row("tool_context", lambda seen: seen.contexts[0], {}, {}, {"a": 1}, {"a": 1}),
    Row("tool_concurrency", lambda seen: seen.most, 2, 1, 3, 3, own={"tool_concurrency": 2}),
    Row(
        "max_invalid_tool_call_retries",
        calls,
        2,
        1,
        3,
        4,
        own={"max_invalid_tool_call_retries": 1},
        turns=INVALID,
    ),
    Row(
        "record_content_telemetry",
        lambda seen: seen.telemetry,
        True,
        False,
        False,
        False,
        own={"record_content_telemetry": True},
    ),
    Row("hooks", lambda seen: seen.named, [], [], ["named"], ["named"]),
    Row(
        "token_budget",
        code,
        "budget_exceeded",
        None,
        15,
        "budget_exceeded",
        own={"token_budget": 1},
    ),
]
CASES = [
    *((row, "absent") for row in TABLE),
    *((row, "null") for row in TABLE),
    *((row, "value") for row in TABLE),
    *((row, "patch") for row in TABLE if row.patch is not None),
    *((row, "cleared by a patch") for row in TABLE if row.clear is not None),
]


class Patches(RunHooks):
    def __init__(self, patch: Patch) -> None:
        self._patch = patch

    async def on_model_call(self, run: HookRun, call: ModelCall) -> Patch:
        return self._patch


class Named(RunHooks):
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    async def on_run_start(self, run: HookRun) -> None:
        self._seen.append("named")


def expectation(row: Row, case: str) -> tuple[Any, Any, list[RunHooks]]:
    """The request's option, what is to be seen, and the agent's hooks."""
    cases: dict[str, tuple[Any, Any, list[RunHooks]]] = {
        "absent": (..., row.absent, []),
        "null": (None, row.null, []),
        "value": (row.given, row.value, []),
        "patch": (row.given, row.patched, [Patches(row.patch or Patch())]),
        "cleared by a patch": (row.given, row.nulled, [Patches(row.clear or Patch())]),
    }
    return cases[case]


@pytest.mark.parametrize(
    ("row", "case"), CASES, ids=lambda v: v if isinstance(v, str) else v.option
)
async def test_agent_default_then_the_requests_option_then_a_hooks_patch(
    driver: Driver, provide: Provide, agent_over: AgentOver, row: Row, case: str
) -> None:
    given, expected, hooks = expectation(row, case)
    provider, generator = await provide(row.turns, turn_of=steps, generation_kwargs=row.kwargs)
    thread = {"m0": [ChatMessage.user("earlier"), ChatMessage.assistant("answer")]}
    storage = InMemoryStorage(thread)
    seen = Seen(provider)
    at_once = 0

    async def probe(n: int) -> str:
        """Notes how it is run."""
        nonlocal at_once
        at_once += 1
        seen.most = max(seen.most, at_once)
        seen.contexts.append(current_tool_call().tool_context)
        seen.telemetry = current_run.get().settings.record_content_telemetry
        await asyncio.sleep(0)
        at_once -= 1
        return "probed"

    agent = agent_over(
        generator,
        tools=[probe],
        hooks=hooks,
        named_hooks={"named": Named(seen.named)},
        get_storage=lambda self, thread_id: storage,
        **row.own,
    )
    options = row.also | ({} if given is ... else {row.option: given})

    told = await driver.tell(agent, options=options, thread_id="t")

    seen.code, seen.stored = told.code, told.result.message_id in thread
    assert row.see(seen) == expected
