"""What the scripted provider streams in these tests."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

__all__ = [
    "PIECES",
    "SLOW_AGENT",
    "calls_turn",
    "chunk",
    "slow_text",
    "text_of_slow_run",
    "tool_turn",
]

SLOW_AGENT = """
from hayrunner import Agent

class Slow(Agent):
    name = "slow"
    model = "scripted"
"""
"""An agent of the provider that OPENAI_BASE_URL names, without tools."""

PIECES = 20


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One chunk of a chat completion."""
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def _end(finish: str) -> Iterator[dict[str, Any]]:
    yield chunk({}, finish)
    usage = {"prompt_tokens": 3, "completion_tokens": PIECES, "total_tokens": 3 + PIECES}
    yield {**chunk({}), "choices": [], "usage": usage}


def slow_text(seconds: float) -> Iterator[dict[str, Any]]:
    """A turn of text that takes about so many seconds."""
    for number in range(PIECES):
        yield chunk({"content": f"piece {number} "})
        yield {"$sleep": seconds / PIECES}
    yield from _end("stop")


def text_of_slow_run() -> str:
    """What `slow_text` says."""
    return "".join(f"piece {number} " for number in range(PIECES))


def tool_turn(**calls: str) -> Iterator[dict[str, Any]]:
    """A turn that calls these tools with these arguments (JSON)."""
    for index, (name, arguments) in enumerate(calls.items()):
        function = {"name": name, "arguments": arguments}
        yield chunk({"tool_calls": [{"index": index, "id": f"t{index}", "function": function}]})
    yield from _end("tool_calls")


def calls_turn(tool: str, *arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A turn that calls one tool several times. The ids are others each time it is asked for."""
    for index, given in enumerate(arguments):
        function = {"name": tool, "arguments": json.dumps(given)}
        call = {"index": index, "id": f"call-{uuid.uuid4()}", "function": function}
        yield chunk({"tool_calls": [call]})
    yield from _end("tool_calls")
