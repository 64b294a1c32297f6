"""The spans of a run: the run itself, its model calls, its tool calls.

Every span belongs to the run that is current where it is opened, and what may be kept of content is
that run's to say, decided once, when the run's span is made. Without a run nothing is kept.
"""

import asyncio
import time
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from hayrunner.telemetry import gate, names
from hayrunner.telemetry.content import (
    MessageForms,
    arguments_json,
    result_json,
    system_json,
    without_system,
)
from hayrunner.telemetry.tracing import (
    OpenedSpan,
    begun,
    failed,
    is_on,
    keep_content,
    keeps_content,
    set_known,
)
from hayrunner_contracts.events import Usage
from hayrunner_contracts.messages import ChatMessage

__all__ = [
    "ModelCallSpan",
    "RunSpan",
    "ToolCallSpan",
    "agent_span",
    "chat_span",
    "current_run_span",
    "noting_first",
    "tool_call_span",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


# --- a run


class RunSpan:
    """One run, as its span sees it: this one, which keeps nothing, where nobody traces."""

    keeps_content = False

    def asked(self, messages: Callable[[], Sequence[ChatMessage]]) -> None:
        """The conversation that the run was given."""

    def ended(
        self,
        *,
        status: str,
        exit_reason: str,
        error_code: str | None,
        usage: Usage,
        steps: int,
        model: str | None,
        answer: Callable[[], ChatMessage | None],
    ) -> None:
        """How it ended."""

    def parked(self) -> None:
        """It waits for a person, and goes on in another attempt."""


class _LiveRun(RunSpan):
    def __init__(
        self,
        span: Span,
        *,
        agent: str,
        message_id: str,
        conversation_id: str | None,
        keeps_content: bool,
    ) -> None:
        self.span = span
        self.agent = agent
        self.message_id = message_id
        self.conversation_id = conversation_id
        self.keeps_content = keeps_content
        self.forms = MessageForms()

    def asked(self, messages: Callable[[], Sequence[ChatMessage]]) -> None:
        _keep_asked(self.span, self.keeps_content, self.forms, messages)

    def ended(
        self,
        *,
        status: str,
        exit_reason: str,
        error_code: str | None,
        usage: Usage,
        steps: int,
        model: str | None,
        answer: Callable[[], ChatMessage | None],
    ) -> None:
        span = self.span
        told = {
            names.RUN_STATUS: status,
            names.RUN_EXIT_REASON: exit_reason,
            names.RUN_STEPS: steps,
        }
        span.set_attributes({**told, **_usage_attributes(usage)})
        set_known(span, names.REQUEST_MODEL, gate.plain_name(model))
        if error_code is not None:
            failed(span, error_code if error_code in names.ERROR_TYPES else names.OTHER)
        keep_content(
            span,
            names.OUTPUT_MESSAGES,
            self.keeps_content,
            lambda: partial(self.forms.output_json, answer(), exit_reason),
        )

    def parked(self) -> None:
        self.span.set_attribute(names.OUTCOME, names.PARKED)


NO_RUN = RunSpan()

_current_run: ContextVar[_LiveRun | None] = ContextVar("hayrunner_run_span", default=None)


@contextmanager
def agent_span(
    *, agent: str, message_id: str, conversation_id: str | None, recorded: bool | None
) -> Generator[RunSpan]:
    """The span of a run, below whatever is current. `recorded` is what its settings say of
    content, None where they do not."""
    attributes = {
        names.OPERATION_NAME: names.INVOKE_AGENT,
        names.AGENT_NAME: agent,
        names.CONVERSATION_ID: conversation_id,
        names.MESSAGE_ID: message_id,
    }
    outer = _current_run.get()
    keeps = keeps_content(recorded, None if outer is None else outer.keeps_content)
    span = begun(f"{names.INVOKE_AGENT} {agent}", SpanKind.INTERNAL, attributes)
    with OpenedSpan(span):
        run = _LiveRun(
            span,
            agent=agent,
            message_id=message_id,
            conversation_id=conversation_id,
            keeps_content=keeps and span.is_recording(),
        )
        token = _current_run.set(run)
        try:
            yield run
        finally:
            _current_run.reset(token)


def current_run_span(message_id: str) -> RunSpan:
    """The span of this run, where it is the current one; one that keeps nothing, where it has
    none: a model that is asked beside a run is no run."""
    run = _current_run.get()
    return run if run is not None and run.message_id == message_id else NO_RUN


# --- a model call


class ModelCallSpan:
    """One model call: this one, which keeps nothing, where nobody traces."""

    def asked(
        self,
        messages: Callable[[], Sequence[ChatMessage]],
        tools: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        """What the model is given."""

    def replied(
        self,
        reply: Callable[[], ChatMessage | None],
        *,
        model: Any,
        finish_reason: Any,
        usage: Usage | None,
        first_chunk_at: float | None = None,
    ) -> None:
        """What the model gave. `finish_reason` None: it did not get to its end. `first_chunk_at`
        is of `time.perf_counter`; None also where `noting_first` sees to it."""


class _LiveCall(OpenedSpan, ModelCallSpan):
    """The span is open from the making of this to the end of the block that it is entered for.
    `cut` is called with this where the block raises."""

    _current: Token["_LiveCall | None"]

    def __init__(
        self,
        span: Span,
        run: _LiveRun | None,
        *,
        named: bool,
        cut: Callable[[ModelCallSpan], None] | None,
    ) -> None:
        super().__init__(span)
        self._keeps = run is not None and run.keeps_content and span.is_recording()
        self._forms = run.forms if run is not None else MessageForms()
        self._named = named
        self._cut = cut
        self._started = time.perf_counter()
        self._streams = False

    def __enter__(self) -> Self:
        self._current = _current_call.set(self)
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _current_call.reset(self._current)
        super().__exit__(kind, error, traceback)

    def _raised(self, error: BaseException) -> None:
        super()._raised(error)
        if self._cut is not None:
            self._cut(self)

    def chunk_came(self) -> None:
        """A chunk, now: the first one counts."""
        if not self._streams:
            self._streams = True
            self.span.set_attributes(_first_chunk(time.perf_counter() - self._started))

    def asked(
        self,
        messages: Callable[[], Sequence[ChatMessage]],
        tools: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        _keep_asked(self.span, self._keeps, self._forms, messages)
        self._keep(
            names.TOOL_DEFINITIONS, lambda: partial(self._forms.definitions_json, list(tools()))
        )

    def replied(
        self,
        reply: Callable[[], ChatMessage | None],
        *,
        model: Any,
        finish_reason: Any,
        usage: Usage | None,
        first_chunk_at: float | None = None,
    ) -> None:
        told: dict[str, Any] = {}
        if first_chunk_at is not None:
            told |= _first_chunk(first_chunk_at - self._started)
        name = gate.plain_name(model)
        if name is not None:
            told[names.RESPONSE_MODEL] = name
            if not self._named:
                self.span.update_name(f"{names.CHAT} {name}")
        reason = "error" if finish_reason is None else gate.finish_reason(finish_reason)
        if finish_reason is not None:
            told[names.RESPONSE_FINISH_REASONS] = [reason]
        if usage is not None:
            told |= _usage_attributes(usage)
        self.span.set_attributes(told)
        self._keep(names.OUTPUT_MESSAGES, lambda: partial(self._forms.output_json, reply(), reason))

    def _keep(self, name: str, content: Callable[[], gate.Content]) -> None:
        keep_content(self.span, name, self._keeps, content)


NO_MODEL_CALL = ModelCallSpan()

_current_call: ContextVar[_LiveCall | None] = ContextVar("hayrunner_model_call", default=None)


def chat_span(
    *,
    provider: str,
    model: Any,
    step: int | None = None,
    parent: Context | None = None,
    cut: Callable[[ModelCallSpan], None] | None = None,
) -> "_LiveCall":
    """The span of one model call, to be entered at once. `provider` is one of `names.PROVIDERS`, or
    `_OTHER`; `model` the one that is asked for, None where that is not known before it answers.
    `cut` is told of a call that raises."""
    run = _current_run.get()
    name = gate.plain_name(model)
    attributes = {
        names.OPERATION_NAME: names.CHAT,
        names.PROVIDER_NAME: provider,
        names.REQUEST_MODEL: name,
        names.AGENT_NAME: None if run is None else run.agent,
        names.CONVERSATION_ID: None if run is None else run.conversation_id,
        names.STEP: step,
    }
    title = names.CHAT if name is None else f"{names.CHAT} {name}"
    span = begun(title, SpanKind.CLIENT, attributes, parent=parent)
    return _LiveCall(span, run, named=name is not None, cut=cut)


def noting_first(feed: Callable[_P, _R]) -> Callable[_P, _R]:
    """`feed`, which is given what models stream: the first call of it within a model call is when
    the first chunk of that one came. Itself where nobody traces."""
    if not is_on():
        return feed

    def noting(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        call = _current_call.get()
        if call is not None:
            call.chunk_came()
        return feed(*args, **kwargs)

    return noting


def _first_chunk(waited: float) -> dict[str, Any]:
    return {names.TIME_TO_FIRST_CHUNK: waited, names.REQUEST_STREAM: True}


# --- a tool call


class ToolCallSpan:
    """One tool call: this one, which keeps nothing, where nobody traces."""

    def called_with(self, arguments: Callable[[], Mapping[str, Any] | str]) -> None:
        """What the tool is given."""

    def ended(self, outcome: str, result: Callable[[], object]) -> None:
        """How it went, and what the model is told."""


class _LiveToolCall(OpenedSpan, ToolCallSpan):
    """As `_LiveCall`."""

    def __init__(self, span: Span, run: _LiveRun | None) -> None:
        super().__init__(span)
        self._keeps = run is not None and run.keeps_content and span.is_recording()

    def _raised(self, error: BaseException) -> None:
        cut = isinstance(error, asyncio.CancelledError)
        self.span.set_attribute(names.OUTCOME, names.CANCELLED if cut else names.FAILED)
        super()._raised(error)

    def called_with(self, arguments: Callable[[], Mapping[str, Any] | str]) -> None:
        keep_content(
            self.span,
            names.TOOL_CALL_ARGUMENTS,
            self._keeps,
            lambda: arguments_json(arguments()),
        )

    def ended(self, outcome: str, result: Callable[[], object]) -> None:
        known = outcome if outcome in names.OUTCOMES else names.OTHER
        self.span.set_attribute(names.OUTCOME, known)
        if (code := _TOOL_ERRORS.get(outcome)) is not None:
            failed(self.span, code)
        keep_content(self.span, names.TOOL_CALL_RESULT, self._keeps, lambda: result_json(result()))


_TOOL_ERRORS = {names.FAILED: names.TOOL_ERROR, names.INVALID: "invalid_tool_call"}

NO_TOOL_CALL = ToolCallSpan()
NO_SPAN_OF_A_RUN: AbstractContextManager[RunSpan] = nullcontext(NO_RUN)
NO_SPAN_OF_A_MODEL_CALL: AbstractContextManager[ModelCallSpan] = nullcontext(NO_MODEL_CALL)
NO_SPAN_OF_A_TOOL_CALL: AbstractContextManager[ToolCallSpan] = nullcontext(NO_TOOL_CALL)


def tool_call_span(
    name: str, registered: Container[str], call_id: str | None, *, parent: Context | None = None
) -> "_LiveToolCall":
    """The span of one tool call, to be entered at once. Without `ended`, it was cancelled or
    raised."""
    run = _current_run.get()
    label = gate.tool_name(name, registered)
    attributes = {
        names.OPERATION_NAME: names.EXECUTE_TOOL,
        names.TOOL_NAME: label,
        names.TOOL_TYPE: "function",
        names.TOOL_CALL_ID: gate.plain_name(call_id),
        names.AGENT_NAME: None if run is None else run.agent,
    }
    title = f"{names.EXECUTE_TOOL} {label}"
    return _LiveToolCall(begun(title, SpanKind.INTERNAL, attributes, parent=parent), run)


def _keep_asked(
    span: Span, keeps: bool, forms: MessageForms, messages: Callable[[], Sequence[ChatMessage]]
) -> None:
    # Messages as they are now: what is read of them later does not change.
    keep_content(
        span, names.SYSTEM_INSTRUCTIONS, keeps, lambda: partial(system_json, [*messages()])
    )
    keep_content(
        span,
        names.INPUT_MESSAGES,
        keeps,
        lambda: partial(forms.json, without_system([*messages()])),
    )


def _usage_attributes(usage: Usage) -> dict[str, int]:
    counts = {
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
    }
    if usage.cached_input_tokens:
        counts[names.CACHED_INPUT_TOKENS] = usage.cached_input_tokens
    if usage.reasoning_tokens:
        counts[names.REASONING_TOKENS] = usage.reasoning_tokens
    return counts
