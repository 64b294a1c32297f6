# pyright: reportPrivateUsage=false
"""Every private name of Haystack that is used, in one place.

haystack-ai is held to one minor version because of these. When that version is raised, this
file is what has to be read against the new one; tests/unit/agent/test_haystack_internals.py fails
where a name is gone or takes other arguments.
"""

import functools
from collections.abc import Sequence
from typing import Any

from haystack.components.agents.agent import (
    _check_duplicate_tool_names as check_duplicate_tool_names,
)
from haystack.components.agents.agent import (
    _pending_tool_call_messages_from_state as pending_tool_call_messages,
)
from haystack.components.agents.agent import _record_context_tokens as record_context_tokens
from haystack.components.agents.agent import _record_llm_usage as record_llm_usage
from haystack.components.agents.agent import _record_tool_calls as record_tool_calls
from haystack.components.agents.agent import _run_hooks_async as run_hooks
from haystack.components.agents.tool_calling import _build_tool_result_message as build_tool_message
from haystack.components.agents.tool_calling import _create_tool_span as create_tool_span
from haystack.components.agents.tool_calling import _get_func_params as tool_parameters
from haystack.components.agents.tool_calling import (
    _merge_tool_outputs_into_state as merge_tool_outputs,
)
from haystack.components.agents.tool_calling import _prepare_tool_args as prepare_tool_args
from haystack.components.agents.tool_calling import _schedule_tool_calls as schedule_tool_calls
from haystack.dataclasses import ChatMessage
from haystack.tools import ComponentTool, Tool
from haystack.tools.parameters_schema_utils import _is_state_annotation as is_state_annotation
from haystack.utils.base_serialization import _deserialize_value_with_schema as deserialize_value
from haystack.utils.base_serialization import _serialize_value_with_schema as serialize_value

_KEPT = "_hayrunner_takes_state"
_TEMPLATES = 32
"""A prompt is one, or one for each part of its messages."""


def mandatory_inputs(component: Any) -> list[str]:
    """The inputs without which a component cannot be run."""
    sockets = component.__haystack_input__._sockets_dict
    return [name for name, socket in sockets.items() if socket.is_mandatory]


def content_parts(message: ChatMessage) -> Sequence[Any]:
    """The parts of a message, in order: its public properties give them by kind."""
    return message._content


def keep_templates(agent: Any) -> None:
    """Compile each of an Agent's prompts once, not for each run: a third of what a run does at once
    before its model is asked. Jinja keeps compiled templates that a loader gave it, and none of a
    string."""
    for builder in (agent._system_chat_prompt_builder, agent._user_chat_prompt_builder):
        if builder is not None and not hasattr(builder._env.from_string, "cache_info"):
            builder._env.from_string = functools.lru_cache(_TEMPLATES)(builder._env.from_string)


def uses_state(tool: Tool) -> bool:
    """Whether a tool reads or writes the Agent's `State`. Most do not, and Haystack finds that
    out anew, by their signatures, several times for every call."""
    if tool.inputs_from_state or tool.outputs_to_state or isinstance(tool, ComponentTool):
        return True
    function = tool.function or tool.async_function
    kept = tool.__dict__.get(_KEPT)
    if kept is None or kept[0] is not function:
        takes = any(is_state_annotation(kind) for kind in tool_parameters(tool).values())
        kept = tool.__dict__[_KEPT] = (function, takes)
    return kept[1]


__all__ = [
    "build_tool_message",
    "check_duplicate_tool_names",
    "content_parts",
    "create_tool_span",
    "deserialize_value",
    "keep_templates",
    "mandatory_inputs",
    "merge_tool_outputs",
    "pending_tool_call_messages",
    "prepare_tool_args",
    "record_context_tokens",
    "record_llm_usage",
    "record_tool_calls",
    "run_hooks",
    "schedule_tool_calls",
    "serialize_value",
    "uses_state",
]
