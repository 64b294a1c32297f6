"""Pipelines as agents: RAG pipelines, Agents inside pipelines, pipelines that do not stream."""

import asyncio
from typing import Any

import pytest
from haystack import Document, Pipeline, component
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.builders import AnswerBuilder, ChatPromptBuilder, PromptBuilder
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.core.errors import DeserializationError
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tools import create_tool_from_function
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    chunk,
    inputs_of,
    outputs_of,
    request,
    tell,
    text_turn,
)
from tests.unit.agent.test_other_generators import SilentGenerator, SyncGenerator

from hayrunner.adapted import HaystackAgentAdapter, PipelineAgent
from hayrunner.adapters.stream import Stream
from hayrunner.errors import ConfigurationError, UnsupportedOption
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.registry import Registry
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import (
    ModelCallEnd,
    TextChunk,
    ToolCallStart,
    ToolExecutionCommitted,
)
from hayrunner_contracts.testing import assert_valid_stream, eventually


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def question_pipeline(generator: Any, text: str = "Q: {{question}}") -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder(template=[ChatMessage.from_user(text)]))
    pipeline.add_component("llm", generator)
    pipeline.connect("prompt.prompt", "llm.messages")
    return pipeline


def tool_agent(generator: Any) -> HaystackAgent:
    return HaystackAgent(chat_generator=generator, tools=[create_tool_from_function(add)])


def agent_pipeline(generator: Any) -> Pipeline:
    """An Agent that is not the last component."""
    pipeline = Pipeline()
    pipeline.add_component("agent", tool_agent(generator))
    pipeline.add_component("answers", AnswerBuilder(last_message_only=True))
    pipeline.connect("agent.messages", "answers.replies")
    return pipeline


@pytest.mark.parametrize("mode", ["stream", "answer"])
@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_a_prompt_builder_and_a_generator_stream(
    provide: Provide, kind: str, mode: str
) -> None:
    provider, generator = await provide([text_turn("Hel", "lo")], kind)
    agent = Registry().add("rag", question_pipeline(generator))

    told = await tell(agent, "why?", mode=mode)

    assert [event.content for event in told.of(TextChunk)] == ["Hel", "lo"]
    assert told.outcome.answer == "Hello"
    assert told.roles == ["assistant"]
    assert provider.requests[0].body["messages"] == [{"role": "user", "content": "Q: why?"}]
    (end,) = told.of(ModelCallEnd)
    assert end.finish_reason == "stop"
    await agent.close()


@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% for x in y %}", "{{ question.__class__ }}"])
async def test_what_a_requester_writes_is_never_a_template(provide: Provide, text: str) -> None:
    provider, generator = await provide([text_turn("Hello")])
    told = await tell(PipelineAgent("rag", question_pipeline(generator)), text)
    assert told.outcome.status == "completed"
    assert provider.requests[0].body["messages"][0]["content"] == f"Q: {text}"


async def test_a_rag_pipeline_gets_the_question_wherever_it_asks_for_it(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Blue.")])
    store = InMemoryDocumentStore()
    store.write_documents([Document(content="The sky is blue."), Document(content="Grass grows.")])
    pipeline = question_pipeline(generator, "{{documents[0].content}} Q: {{question}}")
    pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=1))
    pipeline.connect("retriever.documents", "prompt.documents")

    told = await tell(PipelineAgent("rag", pipeline), "sky colour?")

    assert told.outcome.answer == "Blue."
    content = provider.requests[0].body["messages"][0]["content"]
    assert content == "The sky is blue. Q: sky colour?"


async def test_a_generator_alone_gets_the_conversation(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")], turn_of=lambda _: 0)
    pipeline = Pipeline()
    pipeline.add_component("llm", generator)
    agent = PipelineAgent("chat", pipeline)
    await tell(agent, "one", thread_id="t")
    await tell(agent, "two", thread_id="t2", options={"history": []})
    assert [event async for event in agent.stream("three", thread_id="t")]
    assert [m["content"] for m in provider.requests[0].body["messages"]] == ["one"]
    assert [m["content"] for m in provider.requests[1].body["messages"]] == ["two"]
    thread = [m["content"] for m in provider.requests[2].body["messages"]]
    assert thread == ["one", "Hello", "three"]


async def test_an_agent_that_is_all_a_pipeline_holds_runs_in_the_loop(provide: Provide) -> None:
    provider, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])
    pipeline = Pipeline()
    pipeline.add_component("agent", tool_agent(generator))

    agent = Registry().add("calc", pipeline)
    told = await tell(agent, "1+2?", {"temperature": 0.1})

    assert isinstance(agent, HaystackAgentAdapter)
    assert outputs_of(told.events) == [("3", False)]
    assert provider.requests[0].body["temperature"] == 0.1


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_an_agent_in_a_larger_pipeline_shows_its_tools_from_its_chunks(
    provide: Provide, kind: str
) -> None:
    turns = [
        call_turn(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), text="Adding."),
        text_turn("It is ", "10."),
    ]
    provider, generator = await provide(turns, kind)

    told = await tell(PipelineAgent("calc", agent_pipeline(generator)), "1+2+3+4?")

    assert len(provider.requests) == 2
    assert told.text == "Adding.It is 10."
    assert told.outcome.answer == "It is 10."
    assert inputs_of(told.events) == [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]
    assert outputs_of(told.events) == [("3", False), ("7", False)]
    assert len(told.of(ToolExecutionCommitted)) == 2
    assert [event.step for event in told.of(ModelCallEnd)] == [1, 2]
    assert told.outcome.model_calls == 2


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_a_result_that_is_only_in_the_messages_is_shown_all_the_same(
    provide: Provide, kind: str
) -> None:
    turns = [call_turn(("nosuch", {}), ("add", {"a": 1, "b": 2})), text_turn("3")]
    _, generator = await provide(turns, kind)

    told = await tell(PipelineAgent("calc", agent_pipeline(generator)), "?")

    assert told.outcome.answer == "3"
    assert [start.tool_name for start in told.of(ToolCallStart)] == ["nosuch", "add"]
    assert [event.tool_name for event in told.of(ToolExecutionCommitted)] == ["add"]
    by_error = {is_error: output for output, is_error in outputs_of(told.events)}
    assert by_error[False] == "3"
    assert "nosuch" in by_error[True]


async def test_only_an_unknown_tool_is_shown_with_its_error(provide: Provide) -> None:
    _, generator = await provide([call_turn(("nosuch", {})), text_turn("sorry")])
    told = await tell(PipelineAgent("calc", agent_pipeline(generator)), "?")
    assert told.text == "sorry"
    assert [event.step for event in told.of(ModelCallEnd)] == [1, 2]
    ((output, is_error),) = outputs_of(told.events)
    assert "nosuch" in output
    assert is_error


async def test_an_agent_that_does_not_stream_still_shows_its_calls() -> None:
    told = await tell(PipelineAgent("calc", agent_pipeline(SilentGenerator())), "?")
    assert told.outcome.answer == "Hello"
    assert told.text == "Hello"
    assert told.roles == ["assistant", "tool", "assistant"]
    assert inputs_of(told.events) == [("add", {"a": 1, "b": 2})]
    assert outputs_of(told.events) == [("3", False)]


async def test_a_pipeline_from_yaml_is_the_same_agent(
    provide: Provide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    provider, _ = await provide([text_turn("Hello")])
    made = question_pipeline(
        OpenAICompatibleChatGenerator(model="m", api_base_url=provider.base_url)
    )

    text = made.dumps()
    with pytest.raises(DeserializationError):
        Pipeline.loads(text)
    agent = PipelineAgent("rag", Pipeline.loads(text, allowed_modules=["hayrunner.*"]))
    told = await tell(agent, "why?")
    await agent.close()

    assert told.outcome.answer == "Hello"
    assert provider.requests[0].body["messages"][0]["content"] == "Q: why?"
    assert provider.requests[0].headers["Authorization"] == "Bearer key"
    assert '"key"' not in text


async def test_a_pipeline_that_does_not_stream_gives_its_text_as_one_chunk() -> None:
    silent = Pipeline()
    silent.add_component("llm", SilentGenerator())
    told = await tell(PipelineAgent("silent", silent))
    assert [event.content for event in told.of(TextChunk)] == ["Hello"]
    assert told.outcome.answer == "Hello"

    plain = Pipeline()
    plain.add_component("prompt", PromptBuilder(template="You said {{text}}."))
    told = await tell(PipelineAgent("parrot", plain), "hi")
    assert [event.content for event in told.of(TextChunk)] == ["You said hi."]


async def test_a_component_that_streams_from_a_thread_streams_in_a_pipeline_too() -> None:
    pipeline = Pipeline()
    pipeline.add_component("llm", SyncGenerator(["Hel", "lo"]))
    told = await tell(PipelineAgent("old", pipeline))
    assert [event.content for event in told.of(TextChunk)] == ["Hel", "lo"]


@component
class Wants:
    """A component with a mandatory input that no conversation fills."""

    @component.output_types(text=str)
    def run(self, amount: int) -> dict[str, str]:
        return {"text": str(amount)}


def test_a_mandatory_input_that_nothing_fills_is_refused() -> None:
    pipeline = Pipeline()
    pipeline.add_component("wants", Wants())
    with pytest.raises(ConfigurationError, match=r"wants\.amount is mandatory"):
        Stream(pipeline)
    two = Pipeline()
    two.add_component("prompt", PromptBuilder(template="{{question}} in {{language}}"))
    with pytest.raises(ConfigurationError, match=r"prompt\.\w+ is mandatory"):
        PipelineAgent("two", two)
    with pytest.raises(ConfigurationError, match="no open input"):
        Stream(Pipeline())


def test_a_streaming_component_that_does_not_exist_is_refused() -> None:
    pipeline = Pipeline()
    pipeline.add_component("llm", SyncGenerator(["x"]))
    with pytest.raises(ConfigurationError, match="no component named lm"):
        Stream(pipeline, "lm")


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_a_provider_failure_inside_a_pipeline_has_the_providers_code(
    provide: Provide, kind: str
) -> None:
    _, generator = await provide([[{"$status": 429, "body": {}}]], kind)
    told = await tell(PipelineAgent("rag", question_pipeline(generator)))
    assert (told.code, told.outcome.finish_reason) == ("provider_rate_limited", "error")


async def test_an_option_that_a_pipeline_decides_itself_is_refused(provide: Provide) -> None:
    _, generator = await provide([text_turn("Hello")])
    agent = PipelineAgent("rag", question_pipeline(generator))
    for option in ({"max_turns": 1}, {"temperature": None}, {"preamble": "x"}):
        with pytest.raises(UnsupportedOption) as refused:
            await tell(agent, options=option)
        assert refused.value.field == f"options.{next(iter(option))}"
    told = await tell(agent, options={"history": [], "record_content_telemetry": False})
    assert told.outcome.answer == "Hello"


@pytest.mark.parametrize("mode", ["stream", "answer"])
async def test_a_pipeline_refuses_a_response_format(provide: Provide, mode: str) -> None:
    provider, generator = await provide([text_turn("Hello")])
    agent = PipelineAgent("rag", question_pipeline(generator))
    told = await tell(agent, response_format={"type": "object"}, mode=mode)
    assert told.outcome.error is not None
    assert (told.code, told.outcome.error.field) == ("invalid_request", "response_format")
    assert provider.requests == []
    with pytest.raises(InvalidRequest):
        await agent.run("hi", response_format={"type": "object"})


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_stopping_a_pipeline_closes_the_providers_connection(
    provide: Provide, kind: str
) -> None:
    provider, generator = await provide([[chunk({"content": "Hel"}), {"$hang": True}]], kind)
    sink = Sink()
    session = PipelineAgent("rag", question_pipeline(generator)).open_session(
        request(), message_id=MESSAGE_ID, sink=sink, agent_name="rag"
    )
    task = asyncio.ensure_future(session.run())
    await eventually(lambda: sink.events)

    session.stop("cancelled", "enough")
    outcome = await asyncio.wait_for(task, 5)
    await eventually(lambda: provider.disconnects)

    assert outcome.answer == "Hel"
    assert_valid_stream(sink.framed())


async def test_runs_of_one_pipeline_at_once_do_not_mix(provide: Provide) -> None:
    def turn(body: dict[str, Any]) -> list[dict[str, Any]]:
        return text_turn("re: ", body["messages"][-1]["content"])

    _, generator = await provide(turn)
    agent = PipelineAgent("rag", question_pipeline(generator))
    told = await asyncio.gather(*(tell(agent, f"q{n}") for n in range(20)))
    assert [one.text for one in told] == [f"re: Q: q{n}" for n in range(20)]


async def test_a_tool_may_run_another_agent_without_mixing_their_events(provide: Provide) -> None:
    _, inner = await provide([text_turn("the inner answer")])
    _, outer = await provide([call_turn(("ask", {})), text_turn("done")])
    researcher = agent_over(inner)

    async def ask() -> str:
        """Asks the researcher."""
        return await researcher.run("what?")

    told = await tell(agent_over(outer, tools=[ask]))

    assert told.text == "done"
    assert outputs_of(told.events) == [("the inner answer", False)]
