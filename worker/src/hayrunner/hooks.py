"""Hooks an author can put into a run: observe it, patch model calls, rewrite or refuse tool calls.

A hook is a subclass of `RunHooks` that overrides what it needs; every method is a no-op that lets
the run go on. Hooks run in registration order: the agent's own first, then those a request names.
What they return composes so:

- `Patch`: documents are appended, parameters merged (later wins), active tools intersected; of
  scalars the last one wins, with a warning in the log.
- `Rewrite`, `RewriteResult`: chained, the next hook sees what the one before made of it.
- `Retry`, `Repair`, `Skip`, `Fail`: the first one decides, later hooks are not asked.
- `Stop`: the first one ends the run with code `stopped` and its reason.
- An exception ends the run, failed: a broken hook never lets anything through.

Hooks see content. What they log or export of it is theirs to answer for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from hayrunner_contracts.documents import Document
from hayrunner_contracts.events import Usage
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.options import ToolChoice

__all__ = [
    "Fail",
    "HookRun",
    "InvalidCall",
    "ModelCall",
    "ModelResponse",
    "Patch",
    "PendingCall",
    "Repair",
    "Retry",
    "Rewrite",
    "RewriteResult",
    "RunEnd",
    "RunHooks",
    "Skip",
    "Stop",
    "ToolResult",
]

# One for all that have none, so it cannot be written to.
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class HookRun(Struct, frozen=True, kw_only=True):
    """The run a hook is called for. `step` counts model calls from 1, 0 before the first.
    `tool_context` is the request's, this hook's own copy."""

    message_id: str
    agent: str
    step: int
    thread_id: str | None = None
    user: str | None = None
    usage: Usage = Usage()
    tool_context: Mapping[str, Any] = _NOTHING


class ModelCall(Struct, frozen=True, kw_only=True):
    """A model call about to be made."""

    messages: Sequence[ChatMessage]
    tool_names: Sequence[str]


class ModelResponse(Struct, frozen=True, kw_only=True):
    """A reply, before anything is done about it."""

    message: ChatMessage
    finish_reason: str
    usage: Usage | None = None


class PendingCall(Struct, frozen=True, kw_only=True):
    """A tool call about to be run, with the arguments as rewritten so far."""

    tool_call_id: str
    tool_name: str
    tool_input: Mapping[str, Any]


class InvalidCall(Struct, frozen=True, kw_only=True):
    """A tool call that cannot be run. `problem` is what the model would be told; `tool_input` is
    the raw text where the arguments are no JSON object. `retries_left` is the run's budget."""

    tool_call_id: str
    tool_name: str
    tool_input: Mapping[str, Any] | str
    problem: str
    retries_left: int


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a tool gave back, as the model is going to see it."""

    tool_call_id: str
    tool_name: str
    tool_input: Mapping[str, Any]
    output: str | Sequence[Mapping[str, Any]]
    is_error: bool


class RunEnd(Struct, frozen=True, kw_only=True):
    """How the run ended. `error_code` is None for a completed one."""

    status: str
    finish_reason: str
    answer: Any = None
    error_code: str | None = None
    usage: Usage = Usage()


@dataclass(frozen=True)
class Stop:
    """End the run with code `stopped`. The reason is shown to the requester."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Patch:
    """Changes for this one model call; absent keeps, None clears."""

    preamble: str | None | UnsetType = UNSET
    documents: Sequence[Document] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    active_tools: Sequence[str] | None = None
    temperature: float | None | UnsetType = UNSET
    max_tokens: int | None | UnsetType = UNSET
    tool_choice: ToolChoice | None | UnsetType = UNSET


@dataclass(frozen=True)
class Retry:
    """Ask the model again, with this feedback as a message. Counts as a model call."""

    feedback: str


@dataclass(frozen=True)
class Fail:
    """End the run with code `invalid_tool_call`."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Run the call all the same, as this one."""

    tool_input: Mapping[str, Any]
    tool_name: str | None = None


@dataclass(frozen=True)
class Skip:
    """Do not run the call; the model is told the reason."""

    reason: str


@dataclass(frozen=True)
class Rewrite:
    """Run the call with these arguments."""

    tool_input: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RewriteResult:
    """What the model and the consumer see instead of the tool's output."""

    output: str
    is_error: bool | None = None


class RunHooks:
    """Override what you need. Returning None lets the run go on unchanged."""

    async def on_run_start(self, run: HookRun) -> Stop | None:
        """Before anything else, once."""

    async def on_model_call(self, run: HookRun, call: ModelCall) -> Patch | Stop | None:
        """Before every model call."""

    async def on_text_delta(self, run: HookRun, text: str) -> Stop | None:
        """For every piece of text, before it is published."""

    async def on_reasoning_delta(self, run: HookRun, text: str) -> Stop | None:
        """For every piece of reasoning, before it is published."""

    async def on_tool_call_delta(
        self, run: HookRun, tool_call_id: str, tool_name: str, text: str
    ) -> Stop | None:
        """For every piece of a call's arguments, before it is published."""

    async def on_model_response(self, run: HookRun, response: ModelResponse) -> Retry | Stop | None:
        """After every model call, before its tools are run."""

    async def on_invalid_tool_call(
        self, run: HookRun, call: InvalidCall
    ) -> Fail | Retry | Repair | Skip | Stop | None:
        """For a call that cannot be run; None feeds the problem back within the budget."""

    async def on_tool_call(self, run: HookRun, call: PendingCall) -> Rewrite | Skip | Stop | None:
        """Before a tool is run, in call order."""

    async def on_tool_result(self, run: HookRun, result: ToolResult) -> RewriteResult | Stop | None:
        """After a tool was run, before its output goes into history and out as an event."""

    async def on_run_end(self, run: HookRun, end: RunEnd) -> None:
        """After everything else, once, however the run ended."""
