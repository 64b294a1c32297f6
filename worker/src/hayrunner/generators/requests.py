"""A model call as the body of a chat-completions request: pure, no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall
from haystack.tools import ToolsType, flatten_tools_or_toolsets
from haystack.tools.tool import Tool

from hayrunner.errors import ConfigurationError, UnsupportedOption
from hayrunner.generators.calls import INVALID_ARGUMENTS
from hayrunner.generators.schemas import response_format_of, strict_schema

__all__ = ["flat_tools", "merged_parameters", "request_body", "tool_definitions", "wire_messages"]


def request_body(
    *,
    model: str,
    messages: Sequence[ChatMessage],
    parameters: Mapping[str, Any],
    tools: Iterable[Tool],
    tools_strict: bool,
) -> dict[str, Any]:
    """The body. It always asks for a stream, and for usage unless `stream_options` is given.

    A parameter of None is left out. `extra_body`, as the openai package has it, is laid over the
    rest. Raises `UnsupportedOption` for `n` above 1: several replies cannot share a stream.
    """
    given = dict(parameters)
    if given.pop("n", None) not in (None, 1):
        raise UnsupportedOption("n", "one reply per model call: leave it out or set it to 1")
    given.pop("stream", None)
    extra = given.pop("extra_body", None) or {}
    body: dict[str, Any] = {
        "model": model,
        "messages": wire_messages(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    definitions = tool_definitions(tools, strict=tools_strict)
    if definitions:
        body["tools"] = definitions
    if "response_format" in given:
        given["response_format"] = response_format_of(given["response_format"])
    return {key: value for key, value in {**body, **given, **extra}.items() if value is not None}


def merged_parameters(*layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters merged per key, a later layer wins. None stays: it is how a key is cleared."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer or {})
    return merged


def flat_tools(tools: ToolsType | None) -> list[Tool]:
    """The tools of a list or toolset. Raises `ConfigurationError` where two share a name."""
    flat = flatten_tools_or_toolsets(tools)
    names = [tool.name for tool in flat]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigurationError(f"several tools are named {', '.join(doubled)}")
    return flat


def tool_definitions(tools: Iterable[Tool], *, strict: bool) -> list[dict[str, Any]]:
    """Tools as the API takes them. `strict` holds the model to the schema, see `schemas`."""
    definitions: list[dict[str, Any]] = []
    for tool in tools:
        function: dict[str, Any] = dict(tool.tool_spec)
        if strict:
            function["strict"] = True
            function["parameters"] = strict_schema(function["parameters"])
        definitions.append({"type": "function", "function": function})
    return definitions


def wire_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages in the API's form.

    Reasoning is never sent. A call that has no id gets one that depends on its place only, and
    its result the same; arguments that were no JSON object go back as the model wrote them.
    Raises `ConfigurationError` for a tool result that holds anything but text.
    """
    ids = _CallIds()
    return [_wire_message(message, place, ids) for place, message in enumerate(messages)]


def _wire_message(message: ChatMessage, place: int, ids: "_CallIds") -> dict[str, Any]:
    if message.tool_call_results:
        return _tool_message(message, ids)
    wire = message.to_openai_dict_format(require_tool_call_ids=False)
    if message.is_from(ChatRole.USER):
        return wire
    if len(message.texts) > 1:
        # Haystack's form has room for the first text only.
        wire["content"] = "\n".join(message.texts)
    for number, (call, sent) in enumerate(
        zip(message.tool_calls, wire.get("tool_calls", ()), strict=True)
    ):
        sent["id"] = call.id or ids.of_call(call, f"call_{place}_{number}")
        if call.extra and INVALID_ARGUMENTS in call.extra:
            sent["function"]["arguments"] = call.extra[INVALID_ARGUMENTS]
    return wire


def _tool_message(message: ChatMessage, ids: "_CallIds") -> dict[str, Any]:
    result = message.tool_call_results[0]
    if len(message.tool_call_results) > 1 or message.texts:
        raise ConfigurationError("a tool message holds one result and nothing else")
    content = result.result
    if not isinstance(content, str):
        texts = [part.text for part in content if isinstance(part, TextContent)]
        if len(texts) < len(content):
            raise ConfigurationError(
                f"tool {result.origin.tool_name} returned a part that is not text: "
                "chat completions takes text results only"
            )
        content = [{"type": "text", "text": text} for text in texts]
    origin = result.origin
    return {"role": "tool", "content": content, "tool_call_id": origin.id or ids.of_result(origin)}


class _CallIds:
    """Ids for calls that came without one, handed on to the results that answer them."""

    def __init__(self) -> None:
        self._open: list[tuple[ToolCall, str]] = []

    def of_call(self, call: ToolCall, minted: str) -> str:
        self._open.append((call, minted))
        return minted

    def of_result(self, origin: ToolCall) -> str:
        """By identity, then by equality, then by name, then simply the next one open."""
        tests = (
            lambda call: call is origin,
            lambda call: call == origin,
            lambda call: call.tool_name == origin.tool_name,
            lambda call: True,
        )
        for test in tests:
            for place, (call, minted) in enumerate(self._open):
                if test(call):
                    del self._open[place]
                    return minted
        return "call_unknown"
