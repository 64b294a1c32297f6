"""What an agent author writes: a class with a name, a model and tools."""

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, ClassVar, cast

from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage
from haystack.tools import (
    Tool,
    Toolset,
    create_tool_from_function,
    flatten_tools_or_toolsets,
)
from pydantic import BaseModel

from hayrunner.adapters.body import RunBody, foreign_body
from hayrunner.adapters.citations import (
    CitationFormatter,
    CitationRegistry,
    RunCitations,
    formatter_of,
)
from hayrunner.adapters.context import DiscardEvents, RunContext
from hayrunner.adapters.convert import as_chat_messages
from hayrunner.adapters.hook_chain import HookChain
from hayrunner.adapters.loop import LoopAgent, loop_agent
from hayrunner.adapters.outcome import EventSink, RunOutcome
from hayrunner.adapters.roster import Roster
from hayrunner.adapters.run import Messages, Run
from hayrunner.adapters.session import LoopSession
from hayrunner.adapters.settings import (
    DEFAULT_INVALID_TOOL_CALL_RETRIES,
    RunSettings,
    resolve_settings,
)
from hayrunner.adapters.stream import Stream
from hayrunner.adapters.structured import ResponseFormat, keeps_tools
from hayrunner.adapters.subagents import SubagentSource, Team
from hayrunner.adapters.suggestions import Suggesting, SuggestionGenerator, bound
from hayrunner.adapters.writer import StreamWriter
from hayrunner.agent_session import AgentSession
from hayrunner.approvals import ApprovalRules, OnApprovalTimeout
from hayrunner.errors import ConfigurationError, UnsupportedOption
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.hooks import HookRun, PendingCall, RunHooks
from hayrunner.retry_policy import DEFAULT_PROVIDER_RETRIES, RetryPolicy, retry_policy
from hayrunner.run_inbox import RunInbox
from hayrunner.settings import load_settings
from hayrunner.storage.base import BaseStorageAdapter, Threads
from hayrunner.storage.memory import InMemoryThreads
from hayrunner_contracts.codec import deadline_of
from hayrunner_contracts.documents import Document
from hayrunner_contracts.errors import error_from_wire
from hayrunner_contracts.events import StreamEvent
from hayrunner_contracts.options import RunOptions
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subagents import path_of

__all__ = ["Agent", "ToolSource"]

logger = logging.getLogger(__name__)

ToolSource = Tool | Toolset | Callable[..., Any]

# Plain functions whose tools are kept: an author may make new ones for every run.
_TOOLS_KEPT = 256


class Agent:
    """An agent. A subclass with `name`, `model` and `tools` is enough.

    Class attributes are the agent's settings; methods named `get_…` may be overridden where a
    setting depends on the thread or the user. One instance serves all runs of a process, so
    nothing about a run may be kept on it.

    `tools` are Haystack tools, toolsets, or plain functions with type hints and a docstring.
    `tool_concurrency` tools of one step run at once, `max_agent_steps` model calls are made at
    most; both are defaults that a request's options override. `provider_retries` is how often a
    model call that failed is made again, or a `RetryPolicy`; 0 for never. `max_history` is how many
    messages of a thread are sent, None for all. `documents` are context documents that every
    model call sees. `hooks` are `RunHooks`; `default_hooks` are Haystack's own hooks, by hook
    point, and run beside them. `approvals` are names of tools whose calls a person has to
    approve, beside those marked with `requires_approval`; a call waits `approval_timeout_s`
    seconds for it (None: as long as the run may last), then it is denied, or the run is stopped
    where `on_approval_timeout` says so. One worker takes `max_concurrent_runs` runs of it at once
    (None: as many as the worker takes at all).

    `subagents` are agents that this one calls like tools; `description` says to one that calls
    it what it is for (the docstring, if it is not given). `citation_formatter` makes the text of
    the documents a tool found. `suggestion_generator` is asked for follow-up questions.
    """

    name: str = ""
    description: str | None = None
    model: str | None = None
    instructions: str | None = None
    tools: Sequence[ToolSource] = ()
    subagents: Sequence[SubagentSource] = ()
    documents: Sequence[Document] = ()
    hooks: Sequence[RunHooks] = ()
    default_hooks: ClassVar[Mapping[str, list[Any]]] = {}
    max_agent_steps: int = 6
    tool_concurrency: int = 1
    token_budget: int | None = None
    provider_retries: int | RetryPolicy = DEFAULT_PROVIDER_RETRIES
    max_invalid_tool_call_retries: int = DEFAULT_INVALID_TOOL_CALL_RETRIES
    response_format: type[BaseModel] | dict[str, Any] | None = None
    max_history: int | None = None
    max_concurrent_runs: int | None = None
    record_content_telemetry: bool | None = None
    citation_formatter: CitationFormatter | None = None
    suggestion_generator: Suggesting | None = None
    approvals: Sequence[str] = ()
    approval_timeout_s: float | None = 3600.0
    on_approval_timeout: OnApprovalTimeout = "deny"

    def __init__(self) -> None:
        self._llm: Any = None
        self._loop: LoopAgent | None = None
        self._make_tool = lru_cache(maxsize=_TOOLS_KEPT)(create_tool_from_function)
        self.threads: Threads = InMemoryThreads()
        self._executor: ThreadPoolExecutor | None = None
        self.named_hooks: Mapping[str, RunHooks] = {}
        self.roster = Roster()
        self._team: Team | None = None

    # --- what an author may override -------------------------------------------------------

    def get_llm(self) -> Any:
        """The chat generator, made once per instance and shared by all runs.

        The default speaks to any OpenAI-compatible server: `OPENAI_API_KEY` and
        `OPENAI_BASE_URL` say which.
        """
        settings = load_settings()
        model = self.model or settings.model
        if not model:
            raise ConfigurationError(
                f"agent {self.name or type(self).__name__} has no model: set `model` or "
                "HAYRUNNER_MODEL, or override get_llm()"
            )
        return OpenAICompatibleChatGenerator(model=model, api_base_url=settings.openai_base_url)

    def get_tools(
        self, thread_id: str | None = None, user: str | None = None
    ) -> Sequence[ToolSource]:
        """The tools of one run."""
        return self.tools

    def get_system_prompt(self) -> str | None:
        """The system prompt; sent as it is, never treated as a template."""
        return self.instructions

    def get_run_adapter(self, thread_id: str | None = None, user: str | None = None) -> Any:
        """What answers headless runs that use no tools."""
        return Run(self.llm, instructions=self.get_system_prompt(), loop=self.loop)

    def get_pipeline_adapter(self, thread_id: str | None = None, user: str | None = None) -> Stream:
        """What answers streaming runs."""
        return Stream(
            self.loop,
            storage=self.get_storage(thread_id),
            suggestion_generator=self.get_suggestion_generator(),
            tools=self.run_tools(thread_id, user),
            system_prompt=self.get_system_prompt(),
            max_history=self.max_history,
        )

    def get_storage(self, thread_id: str | None) -> BaseStorageAdapter | None:
        """Where the thread is kept; None for a run without one. The default are the threads of
        the worker's namespace, on NATS; without a worker they end with the process."""
        return None if thread_id is None else self.threads.thread(thread_id, agent=self.name)

    def get_citation_registry(self) -> CitationRegistry:
        """Where a run numbers its sources: a new one for each run."""
        return CitationRegistry()

    def get_suggestion_generator(self) -> SuggestionGenerator | None:
        """What finds follow-up questions after an answer; None for none."""
        wanted = self.suggestion_generator
        return None if wanted is None else bound(wanted, self.llm)

    def approval_policy(self, call: PendingCall, run: HookRun) -> bool | Awaitable[bool]:
        """Whether a person has to approve this call, with these arguments, before it runs. May be
        a coroutine function. One that raises fails the run."""
        return False

    # --- plain Python, no bus ---------------------------------------------------------------

    async def run(
        self,
        messages: Messages,
        *,
        response_format: type[BaseModel] | dict[str, Any] | None = None,
        tools: bool = False,
        thread_id: str | None = None,
        user: str | None = None,
        inbox: RunInbox | None = None,
    ) -> Any:
        """The answer: text, or what `response_format` asks for. With `tools`, and no response
        format in force, the agent's tools are run to completion first. With `thread_id`, the
        thread is loaded first and the run is stored in it. Without an `inbox` nobody can approve
        a tool call.

        Raises the contract's error for what ended the run: `ProviderFailed`, `MaxTurns`,
        `StructuredOutputFailed`, …
        """
        wanted = response_format if response_format is not None else self.response_format
        form = None if wanted is None else ResponseFormat(wanted)
        run = self.new_run(DiscardEvents(), thread_id=thread_id, user=user, inbox=inbox)
        asked = as_chat_messages(messages)
        storage = self.get_storage(thread_id)
        writer = None if storage is None else StreamWriter(storage, run.message_id, asked)

        async def body(run: RunContext) -> Any:
            history = [] if writer is None else await writer.load(self.max_history)
            conversation = [*as_chat_messages(history), *asked]
            return await self.headless_body(conversation, form, tools, thread_id, user)(run)

        outcome = await LoopSession(run, body, writer=writer).run()
        if outcome.error is not None:
            raise error_from_wire(outcome.error, result=_result(run, outcome))
        return outcome.answer if form is None else form.instance(outcome.answer)

    def stream(
        self,
        messages: Messages,
        *,
        thread_id: str | None = None,
        user: str | None = None,
        inbox: RunInbox | None = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Every event of a run, `message_start` to `stream_end`. Closing it cancels the run.
        Decisions on its tool calls, and further messages, are given to `inbox`."""

        def new_run(sink: EventSink) -> RunContext:
            return self.new_run(sink, thread_id=thread_id, user=user, inbox=inbox)

        form = None if self.response_format is None else ResponseFormat(self.response_format)
        adapter = self.get_pipeline_adapter(thread_id, user)
        return adapter.stream(messages, new_run=new_run, response_format=form)

    # --- what serves it ---------------------------------------------------------------------

    @property
    def llm(self) -> Any:
        """The generator that `get_llm` made."""
        if self._llm is None:
            self._llm = self.get_llm()
        return self._llm

    @property
    def loop(self) -> LoopAgent:
        """The agent loop, one object for all runs."""
        if self._loop is None:
            hooks = cast("Any", dict(self.default_hooks)) or None
            self._loop = loop_agent(HaystackAgent(chat_generator=self.llm, hooks=hooks))
        return self._loop

    def run_tools(self, thread_id: str | None, user: str | None) -> list[Tool | Toolset]:
        """`get_tools`, with plain functions made into tools, each once, and the subagents."""
        tools = [
            source if isinstance(source, Tool | Toolset) else self._make_tool(source)
            for source in self.get_tools(thread_id, user)
        ]
        return [*tools, *self.team.tools]

    @property
    def team(self) -> Team:
        """The subagents. `ConfigurationError` where they cannot be what they are said to be."""
        if self._team is None or self._team.roster is not self.roster:
            self._team = Team.of(self)
        return self._team

    def default_settings(self) -> RunSettings:
        """The agent's own settings, before a request's options."""
        return RunSettings(
            max_turns=self.max_agent_steps,
            documents=list(self.documents),
            tool_concurrency=self.tool_concurrency,
            token_budget=self.token_budget,
            retries=retry_policy(self.provider_retries),
            max_invalid_tool_call_retries=self.max_invalid_tool_call_retries,
            record_content_telemetry=self.record_content_telemetry,
        )

    def new_run(
        self,
        sink: EventSink,
        *,
        message_id: str | None = None,
        settings: RunSettings | None = None,
        agent_name: str | None = None,
        thread_id: str | None = None,
        user: str | None = None,
        inbox: RunInbox | None = None,
    ) -> RunContext:
        """The context of one run: its settings, its hooks, what identifies it.

        Raises `UnsupportedOption` where the settings name a hook that is not registered.
        """
        settings = settings or self.default_settings()
        identity: dict[str, Any] = {
            "message_id": message_id or str(uuid.uuid4()),
            "agent": agent_name or self.name,
            "thread_id": thread_id,
            "user": user,
        }
        turn = None
        if thread_id is not None:
            turn = self.threads.turn(thread_id, identity["message_id"])
        hooks = [*self.hooks, *self._hooks_named(settings.hook_names)]
        chain = HookChain(hooks, **identity, tool_context=settings.tool_context)
        citations = RunCitations(self.get_citation_registry(), formatter_of(self))
        return RunContext(
            **identity,
            turn=turn,
            settings=settings,
            sink=sink,
            hooks=chain,
            executor=self.executor,
            citations=citations,
            inbox=inbox,
            approvals=self._approval_rules(),
        )

    def _approval_rules(self) -> ApprovalRules:
        own = getattr(self.approval_policy, "__func__", None) is not Agent.approval_policy
        return ApprovalRules(
            names=frozenset(self.approvals),
            policy=self.approval_policy if own else None,
            timeout_s=self.approval_timeout_s,
            on_timeout=self.on_approval_timeout,
        )

    def _hooks_named(self, names: Sequence[str]) -> list[RunHooks]:
        for name in names:
            if name not in self.named_hooks:
                known = ", ".join(sorted(self.named_hooks)) or "none"
                raise UnsupportedOption(
                    "hooks", f"no hook named {name} is registered here; registered: {known}"
                )
        return [self.named_hooks[name] for name in names]

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads of this agent's sync tools; their number is a setting."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                load_settings().tool_threads, thread_name_prefix=f"tools-{self.name}"
            )
        return self._executor

    def check_options(self, options: RunOptions) -> None:
        """Raise `UnsupportedOption` for an option that this kind of agent cannot honour."""

    async def warm_up(self) -> None:
        """Open clients and warm up tools, so that the first run does not pay for it."""
        retry_policy(self.provider_retries)
        await self.loop.warm_up_async()
        await self.team.warm_up()
        if self.approvals and type(self).get_tools is Agent.get_tools:
            tools = flatten_tools_or_toolsets(self.run_tools(None, None))
            if unknown := set(self.approvals) - {tool.name for tool in tools}:
                # A misspelled name would protect nothing.
                names = ", ".join(sorted(unknown))
                logger.warning("agent %s: approvals names tools it has not: %s", self.name, names)

    async def close(self) -> None:
        """Release what `warm_up` opened."""
        if self._loop is not None:
            await self._loop.close_async()
        if self._team is not None:
            await self._team.close()
        if self._executor is not None:
            # Not waited for: a thread that a tool blocks cannot be ended.
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def open_session(
        self, request: RunRequest, *, message_id: str, sink: EventSink, agent_name: str
    ) -> "AgentSession":
        """See `serving.served.ServedAgent`."""
        self.check_options(request.options)
        settings = resolve_settings(self.default_settings(), request.options)
        run = self.new_run(
            sink,
            message_id=message_id,
            settings=settings,
            agent_name=agent_name,
            thread_id=request.thread_id,
            user=request.user,
        )
        run.deadline = deadline_of(request, time.time())
        run.path = path_of(request)
        return AgentSession(self, request, run)

    def headless_body(
        self,
        messages: list[ChatMessage],
        form: ResponseFormat | None,
        tools: bool,
        thread_id: str | None,
        user: str | None,
    ) -> RunBody:
        """The body of a headless run: the run adapter's; the loop with the agent's tools where
        `tools` is set, no response format is in force (other than one for the loop's outcome),
        and the run adapter is a `Run`."""
        adapter = self.get_run_adapter(thread_id, user)
        if not isinstance(adapter, Run):
            if form is not None and form.after_tools:
                raise UnsupportedOption("then_format", "this agent's run adapter is its author's")
            return foreign_body(adapter, messages, self.get_system_prompt(), form)
        if tools and keeps_tools(form):
            stream = Stream(
                self.loop,
                tools=self.run_tools(thread_id, user),
                system_prompt=self.get_system_prompt(),
            )
            return stream.body(messages, response_format=form)
        prompt = self.get_system_prompt() if adapter.instructions is None else adapter.instructions
        return adapter.body(messages, system_prompt=prompt, response_format=form)


def _result(run: RunContext, outcome: RunOutcome) -> RunResult:
    """What the error of a run without a bus carries: what there is of an answer, and its cost."""
    return RunResult(
        message_id=run.message_id,
        agent=run.agent,
        thread_id=run.thread_id,
        status=outcome.status,
        answer=outcome.answer,
        finish_reason=outcome.finish_reason,
        usage=outcome.usage,
        model_calls=outcome.model_calls,
        error=outcome.error,
        messages=outcome.messages,
    )
