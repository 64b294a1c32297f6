"""The spans of a run: which there are, below what, and what they say without any content."""

from typing import Any

import pytest
from haystack.dataclasses import ChatMessage
from opentelemetry.trace import SpanKind, StatusCode
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    USAGE,
    agent_over,
    call_turn,
    tell,
    text_turn,
)
from tests.unit.telemetry.traces import Traces, attributes, said_nothing_of_errors

from hayrunner import SuggestionGenerator
from hayrunner.agent import Agent
from hayrunner.hooks import ModelResponse, PendingCall, Retry, RunHooks, Skip
from hayrunner.telemetry import names


async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def blocking(name: str) -> str:
    """A sync tool."""
    return name


def broken(name: str) -> str:
    """Raises."""
    try:
        raise ValueError(f"cause {name}")
    except ValueError as error:
        raise RuntimeError(f"secret {name}") from error


def named(generator: Any, name: str, **settings: Any) -> Agent:
    agent = agent_over(generator, **settings)
    agent.name = name
    return agent


async def test_a_run_has_its_model_calls_and_tool_calls_below_it(
    provide: Provide, traces: Traces
) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    await tell(agent_over(generator, tools=[add]), thread_id="t1")

    run = "invoke_agent support"
    assert traces.tree() == [
        (run, None),
        ("chat m", run),
        ("execute_tool add", run),
        ("chat m", run),
    ]
    assert [span.kind for span in traces.named("")] == [
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
    ]


async def test_a_run_says_how_it_went(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    await tell(agent_over(generator, tools=[add]), thread_id="t1")

    assert attributes(traces.one("invoke_agent")) == {
        names.OPERATION_NAME: "invoke_agent",
        names.AGENT_NAME: "support",
        names.CONVERSATION_ID: "t1",
        names.MESSAGE_ID: MESSAGE_ID,
        names.REQUEST_MODEL: "m",
        names.RUN_STATUS: "completed",
        names.RUN_EXIT_REASON: "stop",
        names.RUN_STEPS: 2,
        names.INPUT_TOKENS: 2 * USAGE["prompt_tokens"],
        names.OUTPUT_TOKENS: 2 * USAGE["completion_tokens"],
    }


async def test_a_model_call_says_what_was_asked_and_what_came(
    provide: Provide, traces: Traces
) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    await tell(agent_over(generator, tools=[add]), thread_id="t1")

    first, second = map(attributes, traces.named("chat"))
    waited = first.pop(names.TIME_TO_FIRST_CHUNK)
    assert 0 < waited < 30
    assert first == {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "openai",
        names.REQUEST_MODEL: "m",
        names.REQUEST_STREAM: True,
        names.RESPONSE_MODEL: "fake-1",
        names.RESPONSE_FINISH_REASONS: ("tool_calls",),
        names.AGENT_NAME: "support",
        names.CONVERSATION_ID: "t1",
        names.STEP: 1,
        names.INPUT_TOKENS: USAGE["prompt_tokens"],
        names.OUTPUT_TOKENS: USAGE["completion_tokens"],
    }
    assert second[names.STEP] == 2
    assert second[names.RESPONSE_FINISH_REASONS] == ("stop",)


async def test_a_generator_that_is_derived_from_a_known_one_has_its_provider(
    provide: Provide, traces: Traces
) -> None:
    _, generator = await provide([text_turn("3")])
    generator.__class__ = type("Mine", (type(generator),), {})

    await tell(agent_over(generator))

    assert attributes(traces.one("chat"))[names.PROVIDER_NAME] == "openai"


async def test_a_tool_call_says_which_and_how_it_went(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    await tell(agent_over(generator, tools=[add]))

    assert attributes(traces.one("execute_tool")) == {
        names.OPERATION_NAME: "execute_tool",
        names.TOOL_NAME: "add",
        names.TOOL_TYPE: "function",
        names.TOOL_CALL_ID: "call_0",
        names.AGENT_NAME: "support",
        names.OUTCOME: "done",
    }


async def test_parallel_tools_are_side_by_side_below_their_run(
    provide: Provide, traces: Traces
) -> None:
    calls = [("add", {"a": n, "b": n}) for n in range(4)] + [("blocking", {"name": "x"})]
    _, generator = await provide([call_turn(*calls), text_turn("done")])

    agent = agent_over(generator, tools=[add, blocking])
    await tell(agent, options={"tool_concurrency": 5})
    await agent.close()

    tools = traces.named("execute_tool")
    assert len(tools) == 5
    assert {traces.above(span) for span in tools} == {"invoke_agent support"}


async def test_what_a_tool_traces_is_below_its_call(provide: Provide, traces: Traces) -> None:
    tracer = traces.provider.get_tracer("author")

    async def look(name: str) -> str:
        """Looks."""
        with tracer.start_as_current_span("own"):
            return name

    def read(name: str) -> str:
        """Reads, in a thread."""
        with tracer.start_as_current_span("own in a thread"):
            return name

    turn = call_turn(("look", {"name": "x"}), ("read", {"name": "y"}))
    _, generator = await provide([turn, text_turn("done")])
    agent = agent_over(generator, tools=[look, read])
    await tell(agent, options={"tool_concurrency": 2})
    await agent.close()

    assert traces.above(traces.one("own in a thread")) == "execute_tool read"
    own = next(span for span in traces.spans if span.name == "own")
    assert traces.above(own) == "execute_tool look"


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_tools_that_fail_say_so_and_nothing_of_why(
    provide: Provide, traces: Traces, concurrency: int
) -> None:
    calls = [("broken", {"name": "sentinel"}), ("add", {"a": 1, "b": 1})]
    _, generator = await provide([call_turn(*calls), text_turn("sorry")])
    agent = agent_over(generator, tools=[add, broken])

    await tell(agent, options={"tool_concurrency": concurrency})
    await agent.close()

    span = traces.one("execute_tool broken")
    assert attributes(span)[names.OUTCOME] == "failed"
    assert attributes(span)[names.ERROR_TYPE] == "tool_error"
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(traces.one("execute_tool add"))[names.OUTCOME] == "done"
    assert traces.one("invoke_agent").status.status_code is StatusCode.UNSET
    assert said_nothing_of_errors(traces)
    assert not any("sentinel" in text or "secret" in text for text in traces.texts())


async def test_a_tool_that_is_not_there_has_no_name(provide: Provide, traces: Traces) -> None:
    calls = [("sentinel_tool", {"x": 1}), ("add", {"a": 1, "b": 1})]
    _, generator = await provide([call_turn(*calls), text_turn("sorry")])

    await tell(agent_over(generator, tools=[add]))

    span = traces.one("execute_tool _OTHER")
    told = attributes(span)
    assert told[names.TOOL_NAME] == "_OTHER"
    assert (told[names.OUTCOME], told[names.ERROR_TYPE]) == ("invalid", "invalid_tool_call")
    assert not any("sentinel_tool" in text for text in traces.texts())


async def test_a_call_with_wrong_arguments_is_invalid(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([call_turn(("add", '["sentinel"]')), text_turn("sorry")])

    await tell(agent_over(generator, tools=[add]))

    assert attributes(traces.one("execute_tool add"))[names.OUTCOME] == "invalid"
    assert not any("sentinel" in text for text in traces.texts())


async def test_names_that_a_provider_sends_are_names_or_left_out(
    provide: Provide, traces: Traces
) -> None:
    called = call_turn(("add", {"a": 1, "b": 1}))
    turn: list[Any] = [{**piece, "model": "sentinel, and more"} for piece in called]
    turn[0]["choices"][0]["delta"]["tool_calls"][0]["id"] = "sentinel " * 30
    odd = [{**piece, "model": "gpt-5:mini"} for piece in text_turn("yes")]
    _, generator = await provide([turn, odd])

    await tell(agent_over(generator, tools=[add]))

    first, second = map(attributes, traces.named("chat"))
    assert names.RESPONSE_MODEL not in first
    assert second[names.RESPONSE_MODEL] == "gpt-5:mini"
    assert names.TOOL_CALL_ID not in attributes(traces.one("execute_tool"))
    assert not any("sentinel" in text for text in traces.texts())


async def test_a_call_that_a_hook_refuses_is_refused(provide: Provide, traces: Traces) -> None:
    class No(RunHooks):
        async def on_tool_call(self, run: Any, call: PendingCall) -> Any:
            return Skip("sentinel")

    _, generator = await provide([call_turn(("add", {"a": 1, "b": 1})), text_turn("sorry")])

    await tell(agent_over(generator, tools=[add], hooks=[No()]))

    span = traces.one("execute_tool add")
    assert attributes(span)[names.OUTCOME] == "refused"
    assert span.status.status_code is StatusCode.UNSET
    assert not any("sentinel" in text for text in traces.texts())


async def test_a_reply_that_is_rejected_and_asked_for_again_is_two_calls(
    provide: Provide, traces: Traces
) -> None:
    class Again(RunHooks):
        async def on_model_response(self, run: Any, response: ModelResponse) -> Any:
            return Retry("sentinel feedback") if run.step == 1 else None

    _, generator = await provide([text_turn("no"), text_turn("yes")])

    await tell(agent_over(generator, hooks=[Again()]))

    assert len(traces.named("chat")) == 2
    assert attributes(traces.one("invoke_agent"))[names.RUN_STEPS] == 2
    assert not any("sentinel" in text for text in traces.texts())


async def test_subagents_are_runs_below_the_calls_that_asked_them(
    provide: Provide, traces: Traces
) -> None:
    ask = call_turn(("one", {"task": "a"}), ("two", {"task": "b"}))
    _, parent = await provide([ask, text_turn("done")])
    _, first = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])
    _, second = await provide([text_turn("4")])
    team = [named(first, "one", tools=[add]), named(second, "two")]
    agent = agent_over(parent, subagents=team)

    await tell(agent, options={"tool_concurrency": 2})

    assert traces.above(traces.one("invoke_agent one")) == "execute_tool one"
    assert traces.above(traces.one("invoke_agent two")) == "execute_tool two"
    assert traces.above(traces.one("execute_tool add")) == "invoke_agent one"
    below = sorted(filter(None, map(traces.above, traces.named("chat"))))
    assert below == ["invoke_agent one"] * 2 + ["invoke_agent support"] * 2 + ["invoke_agent two"]
    assert len({span.context.trace_id for span in traces.spans if span.context}) == 1


async def test_an_authors_own_adapter_is_a_run_too(provide: Provide, traces: Traces) -> None:
    class Foreign:
        async def run(self, messages: Any, **_: Any) -> str:
            return "sentinel"

    _, generator = await provide([])
    agent = agent_over(generator)
    agent.get_run_adapter = lambda thread_id=None, user=None: Foreign()

    await tell(agent, mode="answer")

    assert traces.tree() == [("invoke_agent support", None)]
    assert attributes(traces.one("invoke_agent"))[names.RUN_EXIT_REASON] == "stop"


async def test_a_run_is_below_whatever_is_current(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([text_turn("3")])

    with traces.provider.get_tracer("app").start_as_current_span("POST /chat"):
        await agent_over(generator).run("hi")

    assert traces.above(traces.one("invoke_agent")) == "POST /chat"


async def test_a_stream_leaves_the_consumers_span_current(provide: Provide, traces: Traces) -> None:
    from opentelemetry import trace

    _, generator = await provide([text_turn("a", "b")])
    tracer = traces.provider.get_tracer("app")

    with tracer.start_as_current_span("POST /chat") as span:
        async for _ in agent_over(generator).stream("hi"):
            assert trace.get_current_span() is span

    assert traces.above(traces.one("invoke_agent")) == "POST /chat"


async def test_follow_up_questions_are_asked_within_the_run_and_are_not_its_input(
    provide: Provide, traces: Traces
) -> None:
    _, generator = await provide([text_turn('["Why?"]')])
    agent = agent_over(generator, suggestion_generator=SuggestionGenerator)

    await tell(agent, options={"record_content_telemetry": True})

    assert [traces.above(span) for span in traces.named("chat")] == ["invoke_agent support"] * 2
    asked = attributes(traces.one("invoke_agent"))[names.INPUT_MESSAGES]
    assert asked == '[{"role":"user","parts":[{"type":"text","content":"hi"}]}]'


async def test_nothing_is_made_where_nobody_traces(provide: Provide) -> None:
    from hayrunner.telemetry import spans, tracing

    assert not tracing.is_on()
    _, generator = await provide([text_turn("3")])
    told = await tell(agent_over(generator), options={"record_content_telemetry": True})
    assert told.outcome.status == "completed"
    feed = ChatMessage.from_user
    assert spans.noting_first(feed) == feed


async def test_only_names_of_the_table_are_set(provide: Provide, traces: Traces) -> None:
    calls = [("broken", {"name": "x"}), ("add", {"a": 1, "b": 1}), ("nope", {})]
    _, generator = await provide([call_turn(*calls), text_turn("done")])
    agent = agent_over(generator, tools=[add, broken])

    await tell(agent, thread_id="t", options={"record_content_telemetry": True})
    await agent.close()

    used = {name for span in traces.spans for name in attributes(span)}
    assert used <= names.ATTRIBUTES
