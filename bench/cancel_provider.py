"""The scripted provider for `cancel.py`, as a process of its own.

The last message of a request says what to answer, see `answer_to`. Prints its address, then a
line for every answer that has begun and for every connection that its client closed: the word,
the request's label, and the moment by the monotonic clock, which is one for all processes of a
machine. Ends when its standard input closes.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import uvloop

from hayrunner.testing.provider import Element, RecordedRequest, ScriptedProvider

_GAP_S = 0.02
_LOOK_S = 0.002


def label_of(body: dict[str, Any]) -> str:
    """The last message: a kind and a number."""
    return str(body["messages"][-1]["content"])


async def answer_to(body: dict[str, Any]) -> AsyncGenerator[Element, None]:
    """`stream` gets text without an end, `silent` and `held` nothing, `tool` a call of the tool
    that waits."""
    label = label_of(body)
    kind, _, number = label.partition(" ")
    if kind == "tool":
        arguments = json.dumps({"label": f"held {number}"})
        function = {"name": "wait_for", "arguments": arguments}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        yield _chunk({"tool_calls": [call]})
        yield _chunk({}, "tool_calls")
        return
    if kind != "stream":
        _say("began", label, time.monotonic())
        yield {"$hang": True}
    yield _chunk({"content": "word "})
    _say("began", label, time.monotonic())
    while True:
        yield {"$sleep": _GAP_S}
        yield _chunk({"content": "word "})


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench-1"} | {
        "choices": [choice]
    }


def _say(word: str, label: str, moment: float) -> None:
    print(word, label, f"{moment:.6f}", flush=True)


async def _tell(provider: ScriptedProvider) -> None:
    """Say which connections were closed. Their moments were taken when it happened."""
    going: list[RecordedRequest] = []
    seen = 0
    while True:
        going += provider.requests[seen:]
        seen = len(provider.requests)
        for request in going:
            if request.disconnected_at is not None:
                _say("closed", label_of(request.body), request.disconnected_at)
        going = [r for r in going if r.disconnected_at is None and r.finished_at is None]
        await asyncio.sleep(_LOOK_S)


async def _main() -> None:
    async with ScriptedProvider(answer_to) as provider:
        print(provider.base_url, flush=True)
        telling = asyncio.create_task(_tell(provider))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        telling.cancel()


if __name__ == "__main__":
    uvloop.run(_main())
