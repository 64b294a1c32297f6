"""Pipelines, and Haystack components on their own: what comes through Haystack's own tracing."""

import asyncio
from typing import Any

import pytest
from haystack import Pipeline, component, tracing
from haystack.dataclasses import ChatMessage
from haystack.tracing.tracer import Tracer
from opentelemetry.trace import StatusCode
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import USAGE, agent_over, call_turn, tell, text_turn
from tests.unit.agent.test_pipelines import add, agent_pipeline, question_pipeline
from tests.unit.agent.test_spans import Recorder
from tests.unit.telemetry.test_content_gate import ON, content_in, text
from tests.unit.telemetry.traces import Traces, attributes, decoded, said_nothing_of_errors

from hayrunner.adapted import PipelineAgent
from hayrunner.telemetry import names
from hayrunner.telemetry.tracer import HaystackTracer, start_tracing, stop_tracing


@pytest.mark.parametrize("options", [ON, {}])
async def test_a_pipelines_model_call_is_below_its_run(
    provide: Provide, traces: Traces, options: dict[str, Any]
) -> None:
    _, generator = await provide([text_turn("Hel", "lo")])

    await tell(PipelineAgent("rag", question_pipeline(generator)), "sentinel", options=options)

    # What a run without a request's agent is called by: the worker's name for it.
    run = traces.one("invoke_agent")
    chat = traces.one("chat")
    assert traces.tree() == [(run.name, None), ("chat fake-1", run.name)]
    told = attributes(chat)
    assert told[names.PROVIDER_NAME] == "openai"
    assert told[names.RESPONSE_MODEL] == "fake-1"
    assert told[names.RESPONSE_FINISH_REASONS] == ("stop",)
    assert told[names.INPUT_TOKENS] == USAGE["prompt_tokens"]
    assert told[names.TIME_TO_FIRST_CHUNK] > 0
    assert attributes(run)[names.OUTPUT_TOKENS] == USAGE["completion_tokens"]
    if not options:
        assert content_in(traces.spans) == set()
        assert not any("sentinel" in said for said in traces.texts())
        return
    asked = {"role": "user", "parts": [text("Q: sentinel")]}
    assert decoded(chat, names.INPUT_MESSAGES) == [asked]
    assert decoded(chat, names.OUTPUT_MESSAGES)[0]["parts"] == [text("Hello")]
    assert decoded(run, names.INPUT_MESSAGES) == [{**asked, "parts": [text("sentinel")]}]
    assert decoded(run, names.OUTPUT_MESSAGES)[0]["parts"] == [text("Hello")]


@pytest.mark.parametrize("options", [ON, {}])
async def test_an_agent_in_a_pipeline_has_its_steps(
    provide: Provide, traces: Traces, options: dict[str, Any]
) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    await tell(PipelineAgent("rag", agent_pipeline(generator)), options=options)

    run = traces.one("invoke_agent").name
    assert traces.tree() == [
        (run, None),
        ("chat fake-1", run),
        ("execute_tool add", run),
        ("chat fake-1", run),
    ]
    tool = traces.one("execute_tool")
    assert attributes(tool)[names.OUTCOME] == "done"
    if options:
        assert decoded(tool, names.TOOL_CALL_ARGUMENTS) == {"a": 1, "b": 2}
        assert decoded(tool, names.TOOL_CALL_RESULT) == {"result": 3}
        (definition,) = decoded(traces.named("chat")[0], names.TOOL_DEFINITIONS)
        assert definition["name"] == "add"
    else:
        assert content_in(traces.spans) == set()
    assert {n for s in traces.spans for n in attributes(s)} <= names.ATTRIBUTES


async def test_pipelines_that_run_at_once_keep_only_their_own(
    provide: Provide, traces: Traces
) -> None:
    _, generator = await provide([text_turn("Hello")])
    agent = PipelineAgent("rag", question_pipeline(generator))

    runs = [
        tell(agent, f"prompt-{n}-end", options=ON if n % 2 else {}, thread_id=f"t{n}")
        for n in range(20)
    ]
    await asyncio.gather(*runs)

    for span in traces.spans:
        told = attributes(span)
        number = int(told[names.CONVERSATION_ID][1:])
        assert bool(told.keys() & names.CONTENT_ATTRIBUTES) is bool(number % 2)
        said = span.to_json()
        assert all(f"prompt-{n}-end" not in said for n in range(20) if n != number)


@component
class Broken:
    """A component that raises what it is given."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        raise ValueError(f"sentinel {messages}")


@component
class Chatty:
    """A generator that tags its span with what it is given."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        span = tracing.tracer.current_span()
        assert span is not None
        span.set_tags({"haystack.tool.name": "sentinel", "note": messages[0].text})
        # What a provider says of itself is not to be believed, either.
        return {
            "replies": [
                ChatMessage.from_assistant("yes", meta={"model": "m", "finish_reason": "sentinel"})
            ]
        }


@pytest.mark.parametrize("options", [ON, {}])
async def test_what_a_component_raises_is_not_kept(traces: Traces, options: dict[str, Any]) -> None:
    pipeline = Pipeline()
    pipeline.add_component("llm", Broken())

    told = await tell(PipelineAgent("rag", pipeline), options=options)

    assert told.code == "internal"
    chat = traces.one("chat")
    assert attributes(chat)[names.ERROR_TYPE] == "_OTHER"
    assert attributes(chat)[names.PROVIDER_NAME] == "_OTHER"
    assert chat.status.status_code is StatusCode.ERROR
    assert attributes(traces.one("invoke_agent"))[names.ERROR_TYPE] == "internal"
    assert said_nothing_of_errors(traces)
    assert not any("sentinel" in said for said in traces.texts())


async def test_of_ordinary_tags_only_those_pass_that_hold_no_content(traces: Traces) -> None:
    pipeline = Pipeline()
    pipeline.add_component("chatty", Chatty())

    await tell(PipelineAgent("rag", pipeline), "sentinel")

    assert attributes(traces.one("chat")) == {
        names.OPERATION_NAME: "chat",
        names.PROVIDER_NAME: "_OTHER",
        names.RESPONSE_MODEL: "m",
        names.RESPONSE_FINISH_REASONS: ("_OTHER",),
        names.AGENT_NAME: "support",
        names.COMPONENT_NAME: "chatty",
    }
    assert not any("sentinel" in said for said in traces.texts())


async def test_a_component_outside_of_any_run_keeps_nothing(
    provide: Provide, traces: Traces
) -> None:
    _, generator = await provide([text_turn("Hello")])
    pipeline = question_pipeline(generator)

    await pipeline.run_async({"prompt": {"question": "sentinel"}})

    assert traces.tree() == [("chat fake-1", None)]
    assert content_in(traces.spans) == set()


async def test_haystacks_own_flag_stays_off(provide: Provide, traces: Traces) -> None:
    # Set for the whole process, it would hand content to whatever else traces.
    _, generator = await provide([text_turn("Hello")])
    await tell(PipelineAgent("rag", question_pipeline(generator)), options=ON)
    assert tracing.tracer.is_content_tracing_enabled is False


async def test_somebody_elses_tracer_is_put_aside_and_the_loop_is_not_counted_twice(
    provide: Provide, traces: Traces
) -> None:
    recorder = Recorder()
    tracing.enable_tracing(recorder)
    start_tracing(traces.provider)
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])

    agent = agent_over(generator, tools=[add])
    await tell(agent)
    await agent.close()

    assert isinstance(tracing.tracer.actual_tracer, HaystackTracer)
    assert recorder.spans == []
    assert [name for name, _ in traces.tree()] == [
        "invoke_agent support",
        "chat m",
        "execute_tool add",
        "chat m",
    ]


def test_stopping_leaves_somebody_elses_tracer_alone(traces: Traces) -> None:
    other: Tracer = Recorder()
    tracing.enable_tracing(other)
    stop_tracing()
    assert tracing.tracer.actual_tracer is other
    tracing.disable_tracing()
