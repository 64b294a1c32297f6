"""Haystack's streaming chunks as wire types, for services that speak Haystack's own stream.

The JSON of each is what `to_dict` of the Haystack class of that name gives and `from_dict` takes,
field for field (held against haystack-ai 3.4.1).
"""

from typing import Any

import msgspec

from hayrunner_contracts.messages import Reasoning, ToolCallResult

__all__ = ["ComponentInfo", "StreamingChunk", "ToolCallDelta"]


class ComponentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The component a chunk comes from: its class, and its name in the pipeline."""

    type: str
    name: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a tool call. `index` is not unique over a run: it starts again at each model
    call."""

    index: int
    tool_name: str | None = None
    arguments: str | None = None
    id: str | None = None
    extra: dict[str, Any] | None = None


class StreamingChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stream: at most one of content, tool calls, a tool's result and reasoning."""

    content: str
    meta: dict[str, Any] = {}
    component_info: ComponentInfo | None = None
    index: int | None = None
    tool_calls: list[ToolCallDelta] | None = None
    tool_call_result: ToolCallResult | None = None
    start: bool = False
    finish_reason: str | None = None
    reasoning: Reasoning | None = None
