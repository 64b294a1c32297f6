"""The shape of a chat completion and of its chunks, as far as it is read here.

Every field may be missing or null: servers that call themselves compatible differ in all of
them. What is not named here is skipped by the decoder without being built.
"""

from typing import Any

import msgspec

__all__ = ["Choice", "Completion", "Delta", "FunctionPart", "ToolCallPart", "decode_completion"]


class FunctionPart(msgspec.Struct):
    """A call's name and arguments. Arguments should be text; some servers send the object."""

    name: str | None = None
    arguments: Any = None


class ToolCallPart(msgspec.Struct):
    """A piece of a tool call. `index` tells the calls of one reply apart, where it is right."""

    index: int | None = None
    id: str | int | None = None
    function: FunctionPart | None = None


class Delta(msgspec.Struct):
    """What a chunk adds, or a whole message. `content` may be a list of typed parts."""

    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[ToolCallPart] | None = None
    function_call: FunctionPart | None = None


class Choice(msgspec.Struct):
    """One alternative; only the first is read. `message` stands in answers that do not stream."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class Completion(msgspec.Struct):
    """A chunk of a stream, a whole completion, or an error in the place of either."""

    model: str | None = None
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(Completion)


def decode_completion(payload: bytes) -> Completion:
    """Raises `msgspec.DecodeError`; its text names positions and types, never content."""
    return _decoder.decode(payload)
