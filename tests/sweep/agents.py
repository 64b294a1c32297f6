"""The agents of the sweep. Their code does what careless code does: it logs what it is given, in
every way there is, warns of it, puts it into exceptions and their notes.
"""

import asyncio
import logging
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import structlog
from haystack import Pipeline, component, tracing
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.builders import AnswerBuilder, ChatPromptBuilder
from haystack.dataclasses import ChatMessage, Document
from haystack.tools import create_tool_from_function
from tests.sweep.sentinels import mark, run_of

from hayrunner import RetryPolicy, RunHooks, SuggestionGenerator, current_tool_call
from hayrunner.adapted import HaystackAgentAdapter, PipelineAgent
from hayrunner.agent import Agent
from hayrunner.approvals import requires_approval
from hayrunner.errors import HayrunnerError
from hayrunner.hooks import (
    HookRun,
    ModelResponse,
    PendingCall,
    Retry,
    RunEnd,
    Skip,
    Stop,
)
from hayrunner_contracts.documents import Document as WireDocument

__all__ = ["CAREFUL", "SweepHooks", "agents_over", "moving_agent", "talk_carelessly"]

CAREFUL = "careful"
"""An agent that keeps no content, while those that it asks want to."""

_logger = logging.getLogger("shop.tools")


def talk_carelessly(text: str) -> None:
    """Everything that code does with a text it should not repeat."""
    _logger.warning("looking for %s", text)
    _logger.error(f"looking for {text}")
    _logger.info("looking", extra={"word": text})
    structlog.get_logger("shop.more").error("looking", word=text)
    warnings.warn(f"strange: {text}", stacklevel=1)
    try:
        _raise(text)
    except RuntimeError:
        _logger.exception("not found")


def _raise(text: str, what: str = "ToolException") -> None:
    run = run_of(text)
    try:
        raise KeyError(mark("Cause", run))
    except KeyError as cause:
        error = RuntimeError(f"{mark(what, run)} for {text}")
        error.add_note(f"a note: {mark('Note', run)}")
        raise error from cause


async def lookup(word: str) -> str:
    """Looks a word up."""
    talk_carelessly(word)
    asyncio.get_running_loop().call_soon(_raise, word)
    run = run_of(word)
    await current_tool_call().emit("progress", {"about": mark("DataEvent", run)})
    return f"found {mark('ToolResult', run)}"


def broken(word: str) -> str:
    """Looks a word up, and fails."""
    threading.Thread(target=_in_a_thread, args=(word,)).start()
    _Unhappy(word)
    _raise(word)
    return ""


class _Unhappy:
    """Fails where nobody can catch it."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __del__(self) -> None:
        raise ValueError(f"at the end: {self._word}")


def _in_a_thread(word: str) -> None:
    raise ValueError(f"in a thread: {word}")


@requires_approval
def remove(word: str) -> str:
    """Removes a word."""
    return f"removed {mark('ToolResult', run_of(word))}"


def find(word: str) -> list[Document]:
    """Finds documents."""
    run = run_of(word)
    meta = {"title": mark("SourceTitle", run), "url": f"https://x/{mark('SourceAddress', run)}"}
    return [Document(content=f"found {mark('Source', run)}", meta=meta)]


def keep(word: str) -> dict[str, Any]:
    """Keeps a word."""
    run = run_of(word)
    return {"note": mark("StateValue", run), "told": mark("ToolResult", run)}


class SweepHooks(RunHooks):
    """Does what the request's tool context says."""

    async def on_run_start(self, run: HookRun) -> Stop | None:
        if run.tool_context.get("hook") == "stop":
            return Stop(mark("StopReason", run.tool_context["run"]))
        return None

    async def on_model_response(self, run: HookRun, response: ModelResponse) -> Retry | None:
        number: int = run.tool_context.get("run", 0)
        if run.tool_context.get("hook") == "retry" and run.step == 1:
            return Retry(f"Again. {mark('Feedback', number)}")
        if run.tool_context.get("hook") == "raise":
            raise LookupError(mark("HookException", number)) from KeyError(mark("Cause", number))
        return None

    async def on_tool_call(self, run: HookRun, call: PendingCall) -> Skip | None:
        if run.tool_context.get("hook") == "skip":
            return Skip(f"Not now. {mark('SkipReason', run.tool_context['run'])}")
        return None

    async def on_run_end(self, run: HookRun, end: RunEnd) -> None:
        _logger.warning("ended with %s for %s", end.answer, run.user)


def _raise_a_code(run: int) -> None:
    error: Any = HayrunnerError(mark("AdapterException", run))
    error.code = mark("ErrorCode", run)
    raise error


@component
class _Odd:
    """A model that says of itself what no model should."""

    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], generation_kwargs: Any = None, tools: Any = None
    ) -> dict[str, Any]:
        text = str(messages[-1].text)
        run = run_of(text)
        if "own_code" in text:
            _raise_a_code(run)
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        meta = {"finish_reason": mark("FinishReason", run), "model": f"a {mark('ModelName', run)}"}
        reply = ChatMessage.from_assistant(mark("ModelText", run), meta={**meta, "usage": usage})
        return {"replies": [reply]}


class _OwnAdapter:
    """An author's own: no model."""

    async def run(
        self, messages: Any, *, system_prompt: str | None = None, response_format: Any = None
    ) -> str:
        text = str(messages[-1].text)
        talk_carelessly(text)
        run = run_of(text)
        if "own_code" in text:
            _raise_a_code(run)
        if "own_fails" in text:
            raise RuntimeError(mark("AdapterException", run)) from ValueError(text)
        return f"of my own: {mark('AdapterAnswer', run)}"


def _agent(name: str, generator: Any, **settings: Any) -> Agent:
    given = {
        "name": name,
        "get_llm": lambda self: generator,
        "provider_retries": RetryPolicy(retries=1, first_wait_s=0.0),
        "instructions": f"Be kind. {mark('Instructions', 0)}",
        "tools": (lookup, broken, remove, find),
        "hooks": (SweepHooks(),),
        "max_invalid_tool_call_retries": 3,
        **settings,
    }
    return type("Swept", (Agent,), given)()


def _with_state(generator: Any) -> Agent:
    tool = create_tool_from_function(keep, outputs_to_state={"note": {"source": "note"}})
    schema = {"note": {"type": str}}
    agent = HaystackAgent(chat_generator=generator, tools=[tool], state_schema=schema)
    return HaystackAgentAdapter("stateful", agent)


def _pipeline(name: str, generator: Any) -> Agent:
    pipeline = Pipeline()
    text = "Answer: {{question}}"
    pipeline.add_component("prompt", ChatPromptBuilder(template=[ChatMessage.from_user(text)]))
    pipeline.add_component("llm", generator)
    pipeline.connect("prompt.prompt", "llm.messages")
    return PipelineAgent(name, pipeline)


def _agent_in_a_pipeline(generator: Any) -> Agent:
    inner = HaystackAgent(
        chat_generator=generator,
        tools=[create_tool_from_function(_talking), create_tool_from_function(_failing)],
    )
    pipeline = Pipeline()
    pipeline.add_component("agent", inner)
    pipeline.add_component("answers", AnswerBuilder(last_message_only=True))
    pipeline.connect("agent.messages", "answers.replies")
    return PipelineAgent("nested", pipeline)


def _talking(word: str) -> str:
    """Looks a word up."""
    talk_carelessly(word)
    span = tracing.tracer.current_span()
    assert span is not None
    span.set_tag("word", word)
    return f"found {mark('ToolResult', run_of(word))}"


def _failing(word: str) -> str:
    """Looks a word up, and fails."""
    _raise(word, "NestedException")
    return ""


_talking.__name__, _failing.__name__ = "lookup", "broken"


def _consulting(agent: Agent) -> Any:
    async def consult(question: str) -> str:
        """Asks another agent, on its own."""
        return str(await agent.run(question, tools=True))

    return consult


class _Own(Agent):
    name = "own_adapter"
    model = "none"

    def get_run_adapter(self, thread_id: str | None = None, user: str | None = None) -> Any:
        return _OwnAdapter()


def moving_agent(generator: Any) -> Agent:
    """One that is handed from worker to worker."""
    return _agent("moving", generator)


def agents_over(generators: Mapping[str, Any]) -> tuple[list[Agent], list[Agent]]:
    """The agents of the first worker, and those of the second. `generators` are by their kind."""
    own = generators["own"]
    document = WireDocument(id="d", content=f"known: {mark('AgentDocument', 0)}")
    near = _agent("near", own, description="Knows things.", record_content_telemetry=True)
    first = [
        _agent("support", own, documents=(document,)),
        _agent("parent", own, subagents=("near", "far")),
        near,
        _agent(
            CAREFUL,
            own,
            tools=(_consulting(near),),
            subagents=("near", "far"),
            record_content_telemetry=False,
        ),
        _agent("suggesting", own, suggestion_generator=SuggestionGenerator()),
        _with_state(own),
        _pipeline("piped", generators["openai"]),
        _pipeline("odd", _Odd()),
        _agent("odd_loop", _Odd(), tools=(), documents=()),
        _agent_in_a_pipeline(generators["openai"]),
        _Own(),
        *(_agent(f"by_{kind}", generators[kind]) for kind in ("openai", "responses", "anthropic")),
    ]
    far = _agent("far", own, description="Is elsewhere.", record_content_telemetry=True)
    return first, [far]
