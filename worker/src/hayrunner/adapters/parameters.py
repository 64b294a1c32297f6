"""Provider parameters of one run, on a generator that many runs share.

A generator merges what `run_async` is given over its own `generation_kwargs`, so nothing given
there can remove a key. A run that changes parameters therefore gets a shallow copy of the
generator with the parameters it is to have: the copy shares the client, and costs microseconds.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import UNSET, UnsetType

from hayrunner.adapters.hook_chain import MergedPatch
from hayrunner.adapters.settings import Parameters, RunSettings
from hayrunner.errors import UnsupportedOption
from hayrunner_contracts.options import NamedTool, ToolChoice

__all__ = [
    "check_tool_choice",
    "patched_generator",
    "run_generator",
    "tool_choice_parameter",
    "usage_parameter",
]


@dataclass(frozen=True, kw_only=True)
class _Dialect:
    """How one family of generators spells the parameters that have options of their own."""

    max_tokens: str
    named_tool: Callable[[str], dict[str, Any]]
    asks_for_usage: bool = False


def _chat_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _responses_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name}


_CHAT = _Dialect(max_tokens="max_tokens", named_tool=_chat_tool)
_OPENAI = _Dialect(max_tokens="max_completion_tokens", named_tool=_chat_tool, asks_for_usage=True)
_RESPONSES = _Dialect(max_tokens="max_output_tokens", named_tool=_responses_tool)

# By class name, so that no optional integration has to be imported.
_DIALECTS: dict[str, _Dialect] = {
    "OpenAICompatibleChatGenerator": _CHAT,
    "OpenAIChatGenerator": _OPENAI,
    "AzureOpenAIChatGenerator": _OPENAI,
    "OpenAIResponsesChatGenerator": _RESPONSES,
    "AzureOpenAIResponsesChatGenerator": _RESPONSES,
    "MistralChatGenerator": _CHAT,
}


def _dialect(generator: Any) -> _Dialect | None:
    return _dialect_of(type(generator))


@lru_cache(maxsize=64)
def _dialect_of(kind: type[Any]) -> _Dialect | None:
    for cls in kind.__mro__:
        if found := _DIALECTS.get(cls.__name__):
            return found
    return None


def run_generator(generator: Any, settings: RunSettings) -> Any:
    """The generator for one run: itself, or a copy with the run's parameters.

    Raises `UnsupportedOption` where the generator has no parameters to set.
    """
    # A choice that is null, where it is not merely absent, removes the generator's own.
    own_choice = "tool_choice" in (getattr(generator, "generation_kwargs", None) or {})
    drops_choice = settings.tool_choice is None and own_choice
    if settings.parameters.untouched and not drops_choice:
        return generator
    own = getattr(generator, "generation_kwargs", UNSET)
    if own is UNSET or "generation_kwargs" not in inspect.signature(generator.run).parameters:
        name = next(iter(_given(settings.parameters)))
        raise UnsupportedOption(name, f"{type(generator).__name__} takes no provider parameters")
    mine = copy.copy(generator)
    mine.generation_kwargs = _resolve(own, settings.parameters, _dialect(generator))
    if drops_choice:
        mine.generation_kwargs.pop("tool_choice", None)
    return mine


def patched_generator(generator: Any, patch: MergedPatch) -> Any:
    """The generator for one model call that hooks changed the parameters of; raises as
    `run_generator`."""
    parameters = Parameters(
        merge=patch.parameters or UNSET,
        temperature=patch.temperature,
        max_tokens=patch.max_tokens,
    )
    return run_generator(
        generator, RunSettings(parameters=parameters, tool_choice=patch.tool_choice)
    )


def _given(parameters: Parameters) -> dict[str, Any]:
    names = {
        "replace_params": parameters.replace,
        "merge_params": parameters.merge,
        "temperature": parameters.temperature,
        "max_tokens": parameters.max_tokens,
    }
    return {name: value for name, value in names.items() if value is not UNSET}


def _resolve(own: Any, parameters: Parameters, dialect: _Dialect | None) -> dict[str, Any]:
    resolved: dict[str, Any] = dict(own) if isinstance(own, dict) else {}
    if parameters.replace is not UNSET:
        resolved = dict(parameters.replace or {})
    if parameters.merge:
        resolved.update(parameters.merge)
    if parameters.temperature is not UNSET:
        _set(resolved, "temperature", parameters.temperature)
    if parameters.max_tokens is not UNSET:
        # Servers know one of these; a baseline that uses another spelling is not left beside it.
        spelled = dialect.max_tokens if dialect else "max_tokens"
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if name in resolved:
                spelled = name
                del resolved[name]
        _set(resolved, spelled, parameters.max_tokens)
    return {key: value for key, value in resolved.items() if value is not None}


def _set(parameters: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        parameters.pop(name, None)
    else:
        parameters[name] = value


def usage_parameter(generator: Any) -> dict[str, Any]:
    """What makes a generator's streams end with their usage, where they do not do so anyway. A
    generator that has `stream_options` of its own keeps them."""
    dialect = _dialect(generator)
    own = getattr(generator, "generation_kwargs", None) or {}
    if dialect is None or not dialect.asks_for_usage or "stream_options" in own:
        return {}
    return {"stream_options": {"include_usage": True}}


def tool_choice_parameter(generator: Any, choice: ToolChoice) -> dict[str, Any]:
    """The parameter that carries `choice` to this generator; `UnsupportedOption` if none does."""
    dialect = _dialect(generator)
    if dialect is None:
        raise UnsupportedOption(
            "tool_choice", f"{type(generator).__name__} has no known tool_choice parameter"
        )
    value = dialect.named_tool(choice.name) if isinstance(choice, NamedTool) else choice
    return {"tool_choice": value}


def check_tool_choice(choice: ToolChoice | UnsetType | None, tool_names: list[str]) -> None:
    """Refuse, before any model call, a choice that the tools there are cannot satisfy."""
    if choice == "required" and not tool_names:
        raise UnsupportedOption("tool_choice", "`required`, but this run has no tools")
    if isinstance(choice, NamedTool) and choice.name not in tool_names:
        known = ", ".join(sorted(tool_names)) or "none"
        raise UnsupportedOption("tool_choice.name", f"no such tool; this run's tools: {known}")
