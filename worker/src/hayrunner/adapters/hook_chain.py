"""The hooks of one run, asked in order, and what they say together."""

import copy
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from hayrunner.errors import HookFailed, HookStopped
from hayrunner.hooks import (
    Fail,
    HookRun,
    InvalidCall,
    ModelCall,
    ModelResponse,
    Patch,
    PendingCall,
    Repair,
    Retry,
    Rewrite,
    RewriteResult,
    RunEnd,
    RunHooks,
    Skip,
    Stop,
    ToolResult,
)
from hayrunner_contracts.documents import Document
from hayrunner_contracts.events import (
    ReasoningChunk,
    StreamEvent,
    TextChunk,
    ToolInputChunk,
    Usage,
)
from hayrunner_contracts.options import ToolChoice

__all__ = ["HookChain", "MergedPatch"]

logger = logging.getLogger(__name__)

_DELTAS = ("on_text_delta", "on_reasoning_delta", "on_tool_call_delta")


@dataclass(kw_only=True)
class MergedPatch:
    """All patches of one model call. `active_tools` None: all of them."""

    preamble: str | None | UnsetType = UNSET
    documents: list[Document] = field(default_factory=list[Document])
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    active_tools: set[str] | None = None
    temperature: float | None | UnsetType = UNSET
    max_tokens: int | None | UnsetType = UNSET
    tool_choice: ToolChoice | None | UnsetType = UNSET

    def add(self, patch: Patch) -> None:
        """Put one more hook's patch over what is there."""
        self.documents.extend(patch.documents)
        self.parameters.update(patch.parameters)
        if patch.active_tools is not None:
            wanted = set(patch.active_tools)
            self.active_tools = wanted if self.active_tools is None else self.active_tools & wanted
        for name in ("preamble", "temperature", "max_tokens", "tool_choice"):
            value = getattr(patch, name)
            if value is UNSET:
                continue
            if getattr(self, name) is not UNSET:
                logger.warning("two hooks set %s for one model call; the last one counts", name)
            setattr(self, name, value)


class HookChain:
    """Asks the hooks of a run. Points that no hook overrides cost a look into a dictionary."""

    def __init__(
        self,
        hooks: Sequence[RunHooks] = (),
        *,
        message_id: str = "",
        agent: str = "",
        thread_id: str | None = None,
        user: str | None = None,
        tool_context: Mapping[str, Any] | None = None,
    ) -> None:
        self._hooks = tuple(hooks)
        self._asked: dict[str, list[Callable[..., Any]]] = {}
        for hook in hooks:
            for name in _POINTS:
                if getattr(type(hook), name) is not getattr(RunHooks, name):
                    self._asked.setdefault(name, []).append(getattr(hook, name))
        self.watches_deltas = any(name in self._asked for name in _DELTAS)
        self.step = 0
        self.usage = Usage()
        self._identity: dict[str, Any] = {
            "message_id": message_id,
            "agent": agent,
            "thread_id": thread_id,
            "user": user,
        }
        self._tool_context = tool_context or {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def watches(self, point: str) -> bool:
        """Whether any hook overrides this point."""
        return point in self._asked

    async def run_start(self) -> None:
        for method in self._asked.get("on_run_start", ()):
            await self._ask(method)

    async def model_call(self, call: Callable[[], ModelCall]) -> MergedPatch | None:
        """The merged patch for a model call; None where nobody is asked."""
        methods = self._asked.get("on_model_call")
        if not methods:
            return None
        merged = MergedPatch()
        for method in methods:
            if (patch := await self._ask(method, call(), known=(Patch,))) is not None:
                merged.add(patch)
        return merged

    async def delta(self, event: StreamEvent, tool_name: str = "") -> None:
        """Show an event to the hooks of its kind, before it is published."""
        if isinstance(event, TextChunk):
            for method in self._asked.get("on_text_delta", ()):
                await self._ask(method, event.content)
        elif isinstance(event, ReasoningChunk):
            for method in self._asked.get("on_reasoning_delta", ()):
                await self._ask(method, event.content)
        elif isinstance(event, ToolInputChunk):
            for method in self._asked.get("on_tool_call_delta", ()):
                await self._ask(method, event.tool_call_id, tool_name, event.input_chunk)

    async def model_response(self, response: ModelResponse) -> Retry | None:
        for method in self._asked.get("on_model_response", ()):
            if (action := await self._ask(method, response, known=(Retry,))) is not None:
                return action
        return None

    async def invalid_tool_call(self, call: InvalidCall) -> Fail | Retry | Repair | Skip | None:
        known = (Fail, Retry, Repair, Skip)
        for method in self._asked.get("on_invalid_tool_call", ()):
            if (action := await self._ask(method, call, known=known)) is not None:
                return action
        return None

    async def tool_call(self, call: PendingCall) -> PendingCall | Skip:
        """The call as it is to be run, or why it is not."""
        for method in self._asked.get("on_tool_call", ()):
            action = await self._ask(method, call, known=(Rewrite, Skip))
            if isinstance(action, Skip):
                return action
            if isinstance(action, Rewrite):
                call = PendingCall(
                    tool_call_id=call.tool_call_id,
                    tool_name=call.tool_name,
                    tool_input=dict(action.tool_input),
                )
        return call

    async def tool_result(self, result: ToolResult) -> ToolResult:
        """The result as the model is to see it."""
        for method in self._asked.get("on_tool_result", ()):
            action = await self._ask(method, result, known=(RewriteResult,))
            if action is not None:
                error = result.is_error if action.is_error is None else action.is_error
                result = ToolResult(
                    tool_call_id=result.tool_call_id,
                    tool_name=result.tool_name,
                    tool_input=result.tool_input,
                    output=action.output,
                    is_error=error,
                )
        return result

    async def run_end(self, end: RunEnd) -> None:
        for method in self._asked.get("on_run_end", ()):
            await self._ask(method, end)

    def hook_run(self) -> HookRun:
        """The run as hooks see it, with a copy of the tool context of their own."""
        return HookRun(
            **self._identity,
            step=self.step,
            usage=self.usage,
            tool_context=copy.deepcopy(dict(self._tool_context)),
        )

    async def _ask(
        self, method: Callable[..., Any], *args: Any, known: tuple[type, ...] = ()
    ) -> Any:
        run = self.hook_run()
        name = f"{type(getattr(method, '__self__', method)).__name__}.{method.__name__}"
        try:
            action = await method(run, *args)
        except Exception as error:
            # Policy: fail closed. The hook's text may hold content: the log gets its type.
            ref = uuid.uuid4().hex[:12]
            logger.error("the hook %s raised %s (ref %s)", name, type(error).__qualname__, ref)
            raise HookFailed(f"the hook {name} failed (ref {ref})") from error
        if isinstance(action, Stop):
            raise HookStopped(action.reason)
        if action is not None and not isinstance(action, known):
            allowed = ", ".join([*(kind.__name__ for kind in known), "Stop", "None"])
            raise HookFailed(
                f"the hook {name} returned {type(action).__name__}; it may return {allowed}"
            )
        return action


_POINTS = (
    "on_run_start",
    "on_model_call",
    *_DELTAS,
    "on_model_response",
    "on_invalid_tool_call",
    "on_tool_call",
    "on_tool_result",
    "on_run_end",
)
