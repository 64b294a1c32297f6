"""Provider parameters of one run, on a generator that many runs share.

A generator merges what `run_async` is given over its own `generation_kwargs`, so nothing given
there can remove a key. A run that changes parameters therefore gets a shallow copy of the
generator with the parameters it is to have: the copy shares the client, and costs microseconds.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec import UNSET, UnsetType

from hayrunner.adapters.hook_chain import MergedPatch
from hayrunner.adapters.settings import Parameters, RunSettings
from hayrunner.errors import UnsupportedOption
from hayrunner_contracts.options import NamedTool, ToolChoice

__all__ = [
    "answer_choice_parameter",
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
    tool_choice: Callable[[ToolChoice], Any] | None = None
    asks_for_usage: bool = False
    # Beside a tool choice that forces the one call that is the answer.
    one_call_only: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _chat_choice(choice: ToolChoice) -> Any:
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _responses_choice(choice: ToolChoice) -> Any:
    return {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice


def _anthropic_choice(choice: ToolChoice) -> Any:
    if isinstance(choice, NamedTool):
        return {"type": "tool", "name": choice.name}
    return {"type": "any" if choice == "required" else choice}


_CHAT = _Dialect(max_tokens="max_tokens", tool_choice=_chat_choice)
_OPENAI = _Dialect(
    max_tokens="max_completion_tokens", tool_choice=_chat_choice, asks_for_usage=True
)
_RESPONSES = _Dialect(max_tokens="max_output_tokens", tool_choice=_responses_choice)
_ANTHROPIC = _Dialect(
    max_tokens="max_tokens",
    tool_choice=_anthropic_choice,
    one_call_only={"disable_parallel_tool_use": True},
)
# Its API has no tool choice at all.
_OLLAMA = _Dialect(max_tokens="num_predict")

# By class name, so that no optional integration has to be imported.
_DIALECTS: dict[str, _Dialect] = {
    "OpenAICompatibleChatGenerator": _CHAT,
    "OpenAIChatGenerator": _OPENAI,
    "AzureOpenAIChatGenerator": _OPENAI,
    "OpenAIResponsesChatGenerator": _RESPONSES,
    "AzureOpenAIResponsesChatGenerator": _RESPONSES,
    "MistralChatGenerator": _CHAT,
    "AnthropicChatGenerator": _ANTHROPIC,
    "OllamaChatGenerator": _OLLAMA,
}

_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
# Spellings that Anthropic's generator turns into the parameters it allows.
_FLATTENED = ("tool_choice_", "thinking_", "output_config_")
_RENAMED = ("disable_parallel_tool_use", "parallel_tool_use", "adaptive_thinking_effort")


def _dialect(generator: Any) -> _Dialect | None:
    for cls in type(generator).__mro__:
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
    _refuse_ignored(generator, settings.parameters)
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
    return run_generator(generator, RunSettings(parameters=parameters))


def _refuse_ignored(generator: Any, parameters: Parameters) -> None:
    """Refuse what the generator would leave out with a warning, or its client fail at."""
    sent = _sent_names(generator)
    if sent is None:
        return
    given = {
        **{f"replace_params.{name}": name for name in parameters.replace or ()},
        **{f"merge_params.{name}": name for name in parameters.merge or ()},
    }
    if isinstance(parameters.temperature, float | int):
        given["temperature"] = "temperature"
    for option, name in given.items():
        if name not in sent and not name.startswith(_FLATTENED):
            raise UnsupportedOption(option, f"{type(generator).__name__} sends no such parameter")


def _sent_names(generator: Any) -> set[str] | None:
    """The parameters that Anthropic's generator lets through and the installed version of its
    client takes; None for a generator that sends whatever it is given."""
    allowed: list[str] | None = getattr(generator, "ALLOWED_PARAMS", None)
    if allowed is None:
        return None
    create = getattr(_client_messages(generator), "create", None)
    taken = allowed if create is None else inspect.signature(create).parameters
    return {name for name in allowed if name in taken} | {*_RENAMED}


def _client_messages(generator: Any) -> Any:
    return getattr(getattr(generator, "async_client", None), "messages", None)


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
        for name in _MAX_TOKENS:
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
    if dialect is None or dialect.tool_choice is None:
        raise UnsupportedOption(
            "tool_choice", f"{type(generator).__name__} has no known tool_choice parameter"
        )
    return {"tool_choice": dialect.tool_choice(choice)}


def answer_choice_parameter(generator: Any, name: str, *, alone: bool) -> dict[str, Any]:
    """The parameter that makes the model answer by calling the tool `name`: that one where it is
    `alone`, that one or another of the run's where it is not. Nothing where the generator has no
    such parameter, or may not use it: the model is then free not to, and its text is read."""
    dialect = _dialect(generator)
    if dialect is None or dialect.tool_choice is None:
        return {}
    if _thinks(getattr(generator, "generation_kwargs", None) or {}):
        return {}
    if not alone:
        return {"tool_choice": dialect.tool_choice("required")}
    return {"tool_choice": {**dialect.tool_choice(NamedTool(name=name)), **dialect.one_call_only}}


def _thinks(parameters: Mapping[str, Any]) -> bool:
    """Whether Anthropic's model is asked to think first: it may not be made to call a tool then."""
    thinking = parameters.get("thinking")
    kind: Any = parameters.get("thinking_type")
    if isinstance(thinking, Mapping):
        kind = cast("Mapping[str, Any]", thinking).get("type")
    effort = parameters.get("adaptive_thinking_effort")
    if kind is not None or effort is not None:
        return kind not in (None, "disabled") or effort not in (None, "none", "disabled")
    return parameters.get("thinking_budget_tokens") is not None


def check_tool_choice(choice: ToolChoice | UnsetType | None, tool_names: list[str]) -> None:
    """Refuse, before any model call, a choice that the tools there are cannot satisfy."""
    if choice == "required" and not tool_names:
        raise UnsupportedOption("tool_choice", "`required`, but this run has no tools")
    if isinstance(choice, NamedTool) and choice.name not in tool_names:
        known = ", ".join(sorted(tool_names)) or "none"
        raise UnsupportedOption("tool_choice.name", f"no such tool; this run's tools: {known}")
