"""What the offline generator decides: which tools to call, and what to say of their results.

No model, and nothing that looks like one: a tool is called when its arguments can be filled from
the prompt (numbers, dates, the words an argument allows) or from earlier results (a field of the
same name). The answer says what the tools returned. Pure functions of the conversation.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from haystack.dataclasses import ChatMessage, ToolCallResult
from haystack.tools import Tool

__all__ = ["PlannedCall", "answer", "opening", "plan"]

_MOST_CALLS_OF_A_STEP = 4
_MOST_CALLS_OF_A_TURN = 8
_NUMBER = re.compile(r"(?<![\w.,-])\d{1,15}(?![\w-]|[.,]\d)")
_DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
_MISSING = object()

Context = Mapping[str, Any]


class PlannedCall(NamedTuple):
    """A tool call to make."""

    tool_name: str
    arguments: dict[str, Any]


class _Turn(NamedTuple):
    """What happened since the user last said something."""

    prompt: str
    calls: list[tuple[str, dict[str, Any]]]
    results: list[ToolCallResult]


def plan(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[PlannedCall]:
    """The calls to make next; none when it is time to answer."""
    turn = _turn(messages)
    made = list(turn.calls)
    planned: list[PlannedCall] = []
    kind = "integer" if any(_takes(tool, "integer") for tool in tools) else "number"
    for context in _contexts(turn, kind):
        for tool in tools:
            arguments = _fill(tool, context, turn.prompt)
            if arguments is None or (tool.name, arguments) in made:
                continue
            if len(planned) == _MOST_CALLS_OF_A_STEP or len(made) >= _MOST_CALLS_OF_A_TURN:
                return planned
            made.append((tool.name, arguments))
            planned.append(PlannedCall(tool.name, arguments))
    return planned


def opening(messages: Sequence[ChatMessage]) -> str:
    """What is said before the first calls of a turn."""
    return "" if _turn(messages).calls else "Let me look that up. "


def answer(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
    """The answer, from the results of this turn's tools where there are any."""
    turn = _turn(messages)
    if not turn.results:
        return _what_can_be_done(tools)
    told = [_told(result) for result in turn.results]
    return "Here is what the tools returned. " + " ".join(told)


def _turn(messages: Sequence[ChatMessage]) -> _Turn:
    start = max((i for i, message in enumerate(messages) if message.is_from("user")), default=0)
    since = messages[start:]
    prompt = since[0].text or "" if since and since[0].is_from("user") else ""
    calls = [(call.tool_name, call.arguments) for m in since for call in m.tool_calls]
    results = [result for m in since for result in m.tool_call_results]
    return _Turn(prompt, calls, results)


def _contexts(turn: _Turn, kind: str) -> Iterator[Context]:
    """What arguments can be filled from, one source after the other. A number of the prompt
    stands under `kind` and a space, which is no argument's name: it fits any argument of that
    type. Where there are tools that take integers it is theirs: an order's number is no price."""
    numbers = dict.fromkeys(int(found) for found in _NUMBER.findall(turn.prompt))
    for number in numbers:
        yield {f"{kind} ": number}
    if not numbers:
        yield {}
    for result in turn.results:
        fields = _fields(result)
        if fields is not None:
            yield fields


def _fields(result: ToolCallResult) -> dict[str, Any] | None:
    if result.error or not isinstance(result.result, str):
        return None
    try:
        value = msgspec.json.decode(result.result)
    except msgspec.DecodeError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _fill(tool: Tool, context: Context, prompt: str) -> dict[str, Any] | None:
    """The arguments of a call, or None where one that is required cannot be filled."""
    properties: dict[str, dict[str, Any]] = tool.parameters.get("properties", {})
    required: list[str] = tool.parameters.get("required", [])
    arguments: dict[str, Any] = {}
    for name, schema in properties.items():
        value = _value(name, schema, context, prompt)
        if value is not _MISSING:
            arguments[name] = value
        elif name in required:
            return None
    return arguments if arguments or _is_named(tool, prompt) else None


def _value(name: str, schema: Mapping[str, Any], context: Context, prompt: str) -> Any:
    if name in context:
        return context[name]
    if schema.get("type") in ("integer", "number"):
        return context.get(f"{schema['type']} ", _MISSING)
    words = {word.lower() for word in re.findall(r"\w+", prompt)}
    for allowed in schema.get("enum", ()):
        if str(allowed).lower() in words:
            return allowed
    dates = _DATE.findall(prompt)
    if dates and (schema.get("format") == "date" or name.endswith(("date", "_on", "day"))):
        return dates[0]
    return _MISSING


def _takes(tool: Tool, kind: str) -> bool:
    properties: dict[str, dict[str, Any]] = tool.parameters.get("properties", {})
    return any(schema.get("type") == kind for schema in properties.values())


def _is_named(tool: Tool, prompt: str) -> bool:
    """Whether the prompt has a word of the tool's name: enough to call one without arguments."""
    words = set(re.findall(r"[a-z]{4,}", prompt.lower()))
    return bool(words & set(re.findall(r"[a-z]{4,}", tool.name.lower())))


def _told(result: ToolCallResult) -> str:
    name = result.origin.tool_name
    fields = _fields(result)
    if fields is None:
        text = result.result if isinstance(result.result, str) else "something that is no text"
        return f"{name} says: {_sentence(text)}"
    parts = ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in fields.items())
    return f"{name}: {_sentence(parts)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else text + "."


def _what_can_be_done(tools: Sequence[Tool]) -> str:
    if not tools:
        return "I am an offline stand-in for a model, and I have no tools here to answer with."
    needs = "; ".join(f"{tool.name} needs {_needed(tool)}" for tool in tools)
    return (
        "I am an offline stand-in for a model: I only call tools whose arguments I find in your "
        f"message. {needs}. Name one of these, such as the number in 'Where is order 1042?'."
    )


def _needed(tool: Tool) -> str:
    names = [name.replace("_", " ") for name in tool.parameters.get("required", [])]
    return " and ".join(names) or "nothing"
