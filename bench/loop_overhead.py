"""What this package's loop costs over the bare Haystack Agent: ten tool steps without a network.

    python bench/loop_overhead.py

The same scripted generator, the same tool and a streaming callback for both; the loop once as it
is, and once with a hook that has every point and does nothing at any. Rounds alternate, so that
both see the same machine. Exits with 1 where the goal is not met.
"""

import asyncio
import gc
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from haystack import component
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.dataclasses.streaming_chunk import ToolCallDelta
from haystack.tools import create_tool_from_function

from hayrunner import Agent
from hayrunner.hooks import RunHooks
from hayrunner_contracts.codec import decode_request
from hayrunner_contracts.events import StreamEvent

STEPS = 10
ROUNDS = 40
RUNS_PER_ROUND = 10
GOAL = 0.25
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
_WORDS = ("The ", "sum ", "is ", "fifty", "-five", ".")


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@component
class ScriptedGenerator:
    """Calls `add` in ten steps, then answers: in chunks, as a provider would send them."""

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        tools: Any = None,
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        raise NotImplementedError

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage],
        tools: Any = None,
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        step = sum(bool(message.tool_calls) for message in messages)
        if step == STEPS:
            return {"replies": [await self._say(streaming_callback)]}
        return {"replies": [await self._call(streaming_callback, step)]}

    async def _say(self, callback: Any) -> ChatMessage:
        for index, word in enumerate(_WORDS):
            await callback(StreamingChunk(content=word, index=0, start=index == 0))
        meta = {"finish_reason": "stop", "usage": _USAGE}
        return ChatMessage.from_assistant("".join(_WORDS), meta=meta)

    async def _call(self, callback: Any, step: int) -> ChatMessage:
        call_id, arguments = f"call_{step}", f'{{"a": {step}, "b": 1}}'
        head = ToolCallDelta(index=0, id=call_id, tool_name="add", arguments="")
        for delta in (head, *(ToolCallDelta(index=0, arguments=a) for a in _halves(arguments))):
            await callback(StreamingChunk(content="", index=0, tool_calls=[delta]))
        call = ToolCall(tool_name="add", arguments={"a": step, "b": 1}, id=call_id)
        meta = {"finish_reason": "tool_calls", "usage": _USAGE}
        return ChatMessage.from_assistant(tool_calls=[call], meta=meta)


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


class Idle(RunHooks):
    """Every point, each doing nothing."""


for _point in [name for name in vars(RunHooks) if name.startswith("on_")]:

    async def _nothing(self: Any, *_: Any) -> None:
        return None

    setattr(Idle, _point, _nothing)


class Nowhere:
    """Takes events and drops them."""

    async def emit(self, event: StreamEvent) -> None:
        return None


def bare() -> Callable[[], Awaitable[None]]:
    """A run of the Haystack Agent alone."""
    agent = HaystackAgent(
        chat_generator=ScriptedGenerator(),
        tools=[create_tool_from_function(add)],
        max_agent_steps=STEPS + 1,
    )

    async def drop(chunk: StreamingChunk) -> None:
        return None

    async def run() -> None:
        result = await agent.run_async([ChatMessage.from_user("Add up.")], streaming_callback=drop)
        assert result["step_count"] == STEPS + 1

    return run


def ours(*hooks: RunHooks) -> Callable[[], Awaitable[None]]:
    """A run of this package's agent with these hooks."""

    class Adds(Agent):
        name = "adds"
        tools = (add,)
        max_agent_steps = STEPS + 1

        def get_llm(self) -> Any:
            return ScriptedGenerator()

    Adds.hooks = hooks
    agent = Adds()
    request = decode_request(b'{"prompt": "Add up."}')

    async def run() -> None:
        session = agent.open_session(request, message_id="m", sink=Nowhere(), agent_name="adds")
        outcome = await session.run()
        assert outcome.model_calls == STEPS + 1

    return run


async def timed(run: Callable[[], Awaitable[None]]) -> float:
    """Seconds of processor time for one run, the mean of a round."""
    began = time.process_time()
    for _ in range(RUNS_PER_ROUND):
        await run()
    return (time.process_time() - began) / RUNS_PER_ROUND


async def measure() -> dict[str, list[float]]:
    """Seconds per run, by contender and round."""
    contenders = {
        "the bare Haystack Agent": bare(),
        "the loop, no hooks": ours(),
        "the loop, every hook": ours(Idle()),
    }
    for run in contenders.values():
        await timed(run)
    gc.collect()
    gc.disable()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            seconds[name].append(await timed(run))
        gc.collect()
    return seconds


def report(seconds: dict[str, list[float]]) -> bool:
    """Print the table; whether the goal is met. Ratios are of the same round, their spread is the
    middle half of all rounds."""
    base = seconds["the bare Haystack Agent"]
    print(f"{STEPS} tool steps, {ROUNDS} rounds of {RUNS_PER_ROUND} runs, {os.cpu_count()} cores")
    print(f"{'':26}{'ms per run':>12}{'ratio':>8}{'middle half':>16}")
    overhead = 0.0
    for name, times in seconds.items():
        ratios = [one / other for one, other in zip(times, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        overhead = middle - 1
        milliseconds = statistics.median(times) * 1e3
        print(f"{name:26}{milliseconds:12.3f}{middle:8.3f}{low:10.3f}-{high:.3f}")
    met = overhead <= GOAL
    print(
        f"overhead with every hook {overhead:+.1%}, goal {GOAL:.0%}: {'met' if met else 'MISSED'}"
    )
    return met


if __name__ == "__main__":
    sys.exit(0 if report(asyncio.run(measure())) else 1)
