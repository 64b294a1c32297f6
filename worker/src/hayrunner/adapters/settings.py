"""What one run may do: the agent's own settings with the request's options over them."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from msgspec import UNSET, UnsetType

from hayrunner.errors import UnsupportedOption
from hayrunner.retry_policy import RetryPolicy
from hayrunner_contracts.documents import Document
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.options import NamedTool, RunOptions, ToolChoice

__all__ = [
    "DEFAULT_INVALID_TOOL_CALL_RETRIES",
    "LOOPLESS_OPTIONS",
    "Parameters",
    "RunSettings",
    "refuse_options",
    "resolve_settings",
]

DEFAULT_INVALID_TOOL_CALL_RETRIES = 2

LOOPLESS_OPTIONS = frozenset(
    {"history", "memory", "on_busy_thread", "deadline", "record_content_telemetry"}
)
"""What can be honoured where something else than this package's loop answers."""

# `max_turns: null` removes the limit; the deadline and the author's own hooks remain.
_UNLIMITED = 2**31 - 1
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Changes to the provider parameters of a generator, in the order they apply."""

    replace: dict[str, Any] | UnsetType | None = UNSET
    merge: dict[str, Any] | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    max_tokens: int | UnsetType | None = UNSET

    @property
    def untouched(self) -> bool:
        return all(
            value is UNSET
            for value in (self.replace, self.merge, self.temperature, self.max_tokens)
        )


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Resolved settings of one run. `max_turns` counts model calls. `given` are the names of the
    options that the request has, null ones included."""

    max_turns: int = 6
    preamble: str | UnsetType | None = UNSET
    history: list[ChatMessage] | None = None
    memory: bool = True
    on_busy_thread: Literal["wait", "reject"] = "wait"
    parameters: Parameters = field(default_factory=Parameters)
    documents: list[Document] = field(default_factory=list[Document])
    tool_choice: ToolChoice | UnsetType | None = UNSET
    tool_choice_every_step: bool = False
    tool_context: dict[str, Any] = field(default_factory=dict[str, Any])
    tool_concurrency: int = 1
    max_invalid_tool_call_retries: int = DEFAULT_INVALID_TOOL_CALL_RETRIES
    token_budget: int | None = None
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    hook_names: list[str] = field(default_factory=list[str])
    then_format: dict[str, Any] | None = None
    record_content_telemetry: bool | None = None
    given: frozenset[str] = frozenset()

    @property
    def forces_a_tool(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)


def resolve_settings(defaults: RunSettings, options: RunOptions) -> RunSettings:
    """`defaults` with the request's options over them: absent keeps, null clears."""
    given = [name for name in options.__struct_fields__ if getattr(options, name) is not UNSET]
    history = None if options.history is UNSET else options.history or []
    resolved = replace(
        defaults,
        max_turns=_or(options.max_turns, defaults.max_turns, cleared=_UNLIMITED),
        preamble=defaults.preamble if options.preamble is UNSET else options.preamble,
        history=history,
        memory=history is None and _or(options.memory, defaults.memory, cleared=True),
        on_busy_thread=_or(options.on_busy_thread, defaults.on_busy_thread, cleared="wait"),
        parameters=Parameters(
            replace=options.replace_params,
            merge=options.merge_params,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
        ),
        documents=_documents(defaults.documents, options.documents),
        token_budget=_or(options.token_budget, defaults.token_budget, cleared=None),
        hook_names=_or(options.hooks, [], cleared=[]),
        given=frozenset(given),
        then_format=_or(options.then_format, None, cleared=None),
        record_content_telemetry=_or(
            options.record_content_telemetry, defaults.record_content_telemetry, cleared=False
        ),
    )
    return _resolve_tools(resolved, options)


def refuse_options(settings: RunSettings, honoured: frozenset[str], why: str) -> None:
    """Raise `UnsupportedOption` for an option of the request that is not one of `honoured`:
    before any model call, never silently dropped."""
    for name in sorted(settings.given - honoured):
        raise UnsupportedOption(name, why)


def _resolve_tools(defaults: RunSettings, options: RunOptions) -> RunSettings:
    concurrency = _or(options.tool_concurrency, defaults.tool_concurrency, cleared=1)
    return replace(
        defaults,
        tool_choice=defaults.tool_choice if options.tool_choice is UNSET else options.tool_choice,
        tool_choice_every_step=_or(
            options.tool_choice_every_step, defaults.tool_choice_every_step, cleared=False
        ),
        tool_context=_or(options.tool_context, defaults.tool_context, cleared={}),
        tool_concurrency=max(1, concurrency),
        max_invalid_tool_call_retries=_or(
            options.max_invalid_tool_call_retries,
            defaults.max_invalid_tool_call_retries,
            cleared=0,
        ),
    )


def _documents(own: list[Document], given: list[Document] | UnsetType | None) -> list[Document]:
    """A request's documents come after the agent's own; null means none at all."""
    if given is UNSET:
        return own
    return [] if given is None else [*own, *given]


def _or(value: _T | UnsetType | None, default: _T, *, cleared: _T) -> _T:
    if value is UNSET:
        return default
    return cleared if value is None else value  # pyright: ignore[reportReturnType]
