"""Whose content is kept, and whose is not."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    chunk,
    request,
    tell,
    text_turn,
    usage_chunk,
)
from tests.unit.telemetry.test_run_spans import add, broken, named
from tests.unit.telemetry.traces import Traces, attributes, decoded

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.adapters.roster import OnEvent, RemoteCall
from hayrunner.agent import Agent
from hayrunner.hooks import ModelResponse, Retry, RunHooks
from hayrunner.registry import Registry
from hayrunner.telemetry import names
from hayrunner.telemetry.gate import ContentPolicy
from hayrunner_contracts.events import TextChunk
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.testing import eventually, some_result

ON = {"record_content_telemetry": True}


def content_in(spans: list[ReadableSpan]) -> set[str]:
    """The content attributes that are set on any of them."""
    return {name for span in spans for name in attributes(span)} & names.CONTENT_ATTRIBUTES


def text(said: str) -> dict[str, str]:
    return {"type": "text", "content": said}


async def test_no_content_is_kept_unless_somebody_says_so(provide: Provide, traces: Traces) -> None:
    _, generator = await provide(
        [call_turn(("add", {"a": 41, "b": 1}), ("broken", {"name": "sentinel"})), text_turn("3")]
    )
    agent = agent_over(generator, tools=[add, broken], instructions="sentinel")

    await tell(agent, "sentinel", metadata={"who": "sentinel"}, user="sentinel")
    await agent.close()

    assert len(traces.spans) == 5
    assert content_in(traces.spans) == set()
    assert not any("sentinel" in told for told in traces.texts())


async def test_content_stands_where_it_belongs(provide: Provide, traces: Traces) -> None:
    _, generator = await provide(
        [call_turn(("add", {"a": 1, "b": 2}), text="Let me see."), text_turn("It is ", "3")]
    )
    agent = agent_over(generator, tools=[add], instructions="Be brief.")

    await tell(agent, "What is 1 + 2?", options=ON)

    first, second = traces.named("chat")
    assert decoded(first, names.SYSTEM_INSTRUCTIONS) == [text("Be brief.")]
    asked = {"role": "user", "parts": [text("What is 1 + 2?")]}
    assert decoded(first, names.INPUT_MESSAGES) == [asked]
    (definition,) = decoded(first, names.TOOL_DEFINITIONS)
    assert (definition["type"], definition["name"]) == ("function", "add")
    assert definition["description"] == "Adds."
    call = {"type": "tool_call", "id": "call_0", "name": "add", "arguments": {"a": 1, "b": 2}}
    called = {"role": "assistant", "parts": [text("Let me see."), call]}
    assert decoded(first, names.OUTPUT_MESSAGES) == [{**called, "finish_reason": "tool_calls"}]
    response = {"type": "tool_call_response", "id": "call_0", "response": "3"}
    answered = {"role": "tool", "parts": [response]}
    assert decoded(second, names.INPUT_MESSAGES) == [asked, called, answered]
    said = {"role": "assistant", "parts": [text("It is 3")], "finish_reason": "stop"}
    assert decoded(second, names.OUTPUT_MESSAGES) == [said]

    tool = traces.one("execute_tool")
    assert decoded(tool, names.TOOL_CALL_ARGUMENTS) == {"a": 1, "b": 2}
    assert decoded(tool, names.TOOL_CALL_RESULT) == {"result": "3"}

    run = traces.one("invoke_agent")
    assert decoded(run, names.INPUT_MESSAGES) == [asked]
    assert decoded(run, names.OUTPUT_MESSAGES) == [said]


async def test_what_a_tools_exception_says_is_never_kept(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([call_turn(("broken", {"name": "x"})), text_turn("sorry")])
    agent = agent_over(generator, tools=[broken])

    await tell(agent, options=ON)
    await agent.close()

    assert content_in([traces.one("execute_tool")]) == {
        names.TOOL_CALL_ARGUMENTS,
        names.TOOL_CALL_RESULT,
    }
    assert not any("secret" in told or "cause" in told for told in traces.texts())


@pytest.mark.parametrize(
    ("given", "own", "policy", "kept"),
    [
        ({}, None, ContentPolicy(), False),
        ({}, True, ContentPolicy(), True),
        ({}, None, ContentPolicy(default=True), True),
        ({}, False, ContentPolicy(default=True), False),
        ({"record_content_telemetry": True}, False, ContentPolicy(), True),
        ({"record_content_telemetry": False}, True, ContentPolicy(default=True), False),
        ({"record_content_telemetry": None}, True, ContentPolicy(default=True), False),
        ({"record_content_telemetry": True}, True, ContentPolicy(forbidden=True), False),
        ({}, True, ContentPolicy(forbidden=True, default=True), False),
    ],
)
async def test_the_request_goes_before_the_agent_and_that_before_the_operator(
    provide: Provide,
    traces: Traces,
    given: dict[str, Any],
    own: bool | None,
    policy: ContentPolicy,
    kept: bool,
) -> None:
    traces.start(policy)
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    await tell(agent_over(generator, tools=[add], record_content_telemetry=own), options=given)

    assert bool(content_in(traces.spans)) is kept


async def run_beside(agent: Agent, number: int, gate: asyncio.Barrier) -> RunOutcome:
    options = ON if number % 2 else {}
    session = agent.open_session(
        request(f"prompt-{number}-end", options, thread_id=f"t-{number}"),
        message_id=MESSAGE_ID,
        sink=Sink(),
        agent_name="support",
    )
    await gate.wait()
    return await session.run()


async def test_fifty_runs_at_once_keep_only_their_own(provide: Provide, traces: Traces) -> None:
    gate, meeting = asyncio.Barrier(50), asyncio.Barrier(50)

    def turn(body: dict[str, Any]) -> list[dict[str, Any]]:
        number = body["messages"][0]["content"].split("-")[1]
        if any(message["role"] == "tool" for message in body["messages"]):
            return text_turn(f"answer-{number}-end")
        return call_turn(("meet", {"number": f"argument-{number}-end"}))

    async def meet(number: str) -> str:
        """Everybody is in their tool at once, and goes on together."""
        await meeting.wait()
        return number.replace("argument", "result")

    _, generator = await provide(turn)
    agent = agent_over(generator, tools=[meet])

    outcomes = await asyncio.gather(*(run_beside(agent, n, gate) for n in range(50)))

    assert {outcome.status for outcome in outcomes} == {"completed"}
    roots = {
        span.context.trace_id: int(attributes(span)[names.CONVERSATION_ID].split("-")[1])
        for span in traces.named("invoke_agent")
        if span.context
    }
    assert len(roots) == 50
    assert len(traces.spans) == 50 * 4
    for span in traces.spans:
        assert span.context is not None
        number = roots[span.context.trace_id]
        kept = attributes(span).keys() & names.CONTENT_ATTRIBUTES
        assert bool(kept) is bool(number % 2), span.name
        told = span.to_json()
        for what in ("prompt", "argument", "result", "answer"):
            for other in range(50):
                if other != number or not number % 2:
                    assert f"{what}-{other}-end" not in told


async def test_a_reply_that_was_rejected_is_kept_too(provide: Provide, traces: Traces) -> None:
    class Again(RunHooks):
        async def on_model_response(self, run: Any, response: ModelResponse) -> Any:
            return Retry("Once more.") if run.step == 1 else None

    _, generator = await provide([text_turn("no"), text_turn("yes")])

    await tell(agent_over(generator, hooks=[Again()]), options=ON)

    first, second = traces.named("chat")
    assert decoded(first, names.OUTPUT_MESSAGES)[0]["parts"] == [text("no")]
    asked = [message["parts"][0]["content"] for message in decoded(second, names.INPUT_MESSAGES)]
    assert asked == ["hi", "no", "Once more."]


async def test_a_repair_turn_is_kept_too(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([text_turn("no JSON"), text_turn('{"a": 1}')])
    form = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    told = await tell(agent_over(generator), options=ON, response_format=form)

    assert told.outcome.status == "completed"
    first, second = traces.named("chat")
    assert decoded(first, names.OUTPUT_MESSAGES)[0]["parts"] == [text("no JSON")]
    assert len(decoded(second, names.INPUT_MESSAGES)) == 3


@pytest.mark.parametrize("options", [ON, {}])
async def test_of_a_reply_that_broke_off_there_is_what_came(
    provide: Provide, traces: Traces, options: dict[str, Any]
) -> None:
    _, generator = await provide([[*text_turn("Hel", "lo")[:2], {"$abort": True}]])

    await tell(agent_over(generator), options=options)

    (span,) = traces.named("chat")
    if options:
        said = {"role": "assistant", "parts": [text("Hello")], "finish_reason": "error"}
        assert decoded(span, names.OUTPUT_MESSAGES) == [said]
    else:
        assert content_in(traces.spans) == set()


async def test_reasoning_is_content(provide: Provide, traces: Traces) -> None:
    thought = chunk({"reasoning_content": "hm"})
    turn = [thought, *text_turn("yes")[:2], usage_chunk()]
    _, generator = await provide([turn])

    await tell(agent_over(generator), options=ON)
    await tell(agent_over(generator))

    on, off = traces.named("chat")
    parts = decoded(on, names.OUTPUT_MESSAGES)[0]["parts"]
    assert parts == [{"type": "reasoning", "content": "hm"}, text("yes")]
    assert content_in([off]) == set()


@pytest.mark.parametrize("options", [ON, {}, {"record_content_telemetry": False}])
async def test_subagents_keep_what_their_parent_keeps(
    provide: Provide, traces: Traces, options: dict[str, Any]
) -> None:
    ask = call_turn(("one", {"task": "sentinel"}))
    _, parent = await provide([ask, text_turn("done")])
    _, child = await provide([text_turn("4")])
    # What the subagent's author wants for runs of its own does not count here.
    team = [named(child, "one", record_content_telemetry=not options)]

    await tell(agent_over(parent, subagents=team), options=options)

    kept = bool(options.get("record_content_telemetry"))
    assert bool(content_in(traces.spans)) is kept
    assert any("sentinel" in told for told in traces.texts()) is kept


async def test_an_agent_that_a_tool_runs_keeps_no_more_than_the_run_it_is_in(
    provide: Provide, traces: Traces
) -> None:
    _, inner = await provide([text_turn("4")])
    asked = named(inner, "inner", record_content_telemetry=True)

    async def ask(question: str) -> str:
        """Asks."""
        return str(await asked.run(question))

    _, outer = await provide([call_turn(("ask", {"question": "sentinel"})), text_turn("done")])

    await tell(agent_over(outer, tools=[ask]))

    assert traces.above(traces.one("invoke_agent inner")) == "execute_tool ask"
    assert content_in(traces.spans) == set()

    traces.clear()
    await asked.run("sentinel")
    assert content_in(traces.spans) == {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES}


class Elsewhere:
    """The bus, to a subagent on it."""

    def __init__(self) -> None:
        self.calls: list[RemoteCall] = []

    async def run(self, call: RemoteCall, on_event: OnEvent) -> RunResult:
        self.calls.append(call)
        return some_result("It is blue.")


@pytest.mark.parametrize(
    ("options", "policy", "told"),
    [
        (ON, ContentPolicy(), True),
        ({}, ContentPolicy(), False),
        ({}, ContentPolicy(default=True), True),
        (ON, ContentPolicy(forbidden=True), False),
    ],
)
async def test_a_subagent_elsewhere_is_told_either_way(
    provide: Provide,
    traces: Traces,
    options: dict[str, Any],
    policy: ContentPolicy,
    told: bool,
) -> None:
    traces.start(policy)
    _, generator = await provide([call_turn(("far", {"task": "x"})), text_turn("ok")])
    elsewhere, registry = Elsewhere(), Registry()
    agent = agent_over(generator, subagents=["far"])
    registry.add("support", agent)
    registry.use_remote_agents(elsewhere, max_depth=5)

    await tell(agent, options=options)

    assert [call.record_content_telemetry for call in elsewhere.calls] == [told]


@pytest.mark.parametrize("options", [ON, {}])
async def test_an_authors_own_adapter_has_its_input_and_answer_on_its_run(
    provide: Provide, traces: Traces, options: dict[str, Any]
) -> None:
    class Foreign:
        async def run(self, messages: Any, **_: Any) -> str:
            return "sentinel answer"

    _, generator = await provide([])
    agent = agent_over(generator, instructions="Be brief.")
    agent.get_run_adapter = lambda thread_id=None, user=None: Foreign()

    await tell(agent, "sentinel", mode="answer", options=options)

    if not options:
        assert not any("sentinel" in told for told in traces.texts())
        return
    span = traces.one("invoke_agent")
    assert decoded(span, names.SYSTEM_INSTRUCTIONS) == [text("Be brief.")]
    asked = {"role": "user", "parts": [text("sentinel")]}
    assert decoded(span, names.INPUT_MESSAGES) == [asked]
    assert decoded(span, names.OUTPUT_MESSAGES)[0]["parts"] == [text("sentinel answer")]


async def test_content_that_cannot_be_put_into_json_fails_no_run(
    provide: Provide, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_form(*_: Any) -> str:
        raise TypeError("sentinel")

    monkeypatch.setattr("hayrunner.telemetry.spans.arguments_json", broken_form)
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    told = await tell(agent_over(generator, tools=[add]), options=ON)

    assert told.outcome.status == "completed"
    kept = decoded(traces.one("execute_tool"), names.TOOL_CALL_ARGUMENTS)
    assert kept == "[not recorded: TypeError]"


async def test_a_cancelled_run_keeps_what_it_has(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([[*text_turn("Hel")[:1], {"$hang": True}]])
    sink = Sink()
    session = agent_over(generator).open_session(
        request("hi", ON), message_id=MESSAGE_ID, sink=sink, agent_name="support"
    )
    running = asyncio.ensure_future(session.run())
    await eventually(lambda: any(isinstance(event, TextChunk) for event in sink.events))

    session.stop("cancelled", "enough")
    await running

    assert decoded(traces.one("chat"), names.OUTPUT_MESSAGES)[0]["parts"] == [text("Hel")]
