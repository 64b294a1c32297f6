"""The model's server of a chaos run: `python -m tests.chaos.provider FOLDER`.

What it answers follows from the plan and from the conversation it is shown: the last message with
a run's marker says which run it is, the assistant messages after that say which step. Asking
again for a step brings the same calls under other ids, and as many words, which are not the same:
as with real providers. Every request and what was sent of its answer goes to a journal.

Prints its base URL, ends when its standard input closes.
"""

import asyncio
import hashlib
import re
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from tests.chaos.journal import Journal
from tests.chaos.plan import Call, Plan, PlannedRun, Step, read_plan, words_of

from hayrunner.testing.provider import Element, ScriptedProvider

__all__ = ["digest", "extra_step", "tool_input_of"]

_MARKER = re.compile(r"\[run (\d+)\]")


def digest(text: str) -> str:
    """A short name for a text that may be long."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def extra_step() -> Step:
    """What is answered beyond the planned steps: somebody said something more."""
    return Step(words=3, pace_s=0.02)


def tool_input_of(run: int, step: int, index: int, call: Call) -> dict[str, Any]:
    """The arguments of a planned call; they say which call it is."""
    return {
        "run": run,
        "step": step,
        "index": index,
        "seconds": call.seconds,
        "size": call.size,
    }


class _Conversation:
    """What a request shows: the run, the step, the tool results the model is told."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.run = 0
        self.step = 1
        self.results: list[str] = []
        for message in body["messages"]:
            text = _text_of(message)
            found = _MARKER.search(text) if message["role"] == "user" else None
            if found is not None:
                self.run, self.step, self.results = int(found[1]), 1, []
            elif message["role"] == "assistant":
                self.step += 1
            elif message["role"] == "tool":
                self.results.append(digest(text))


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


class Provider:
    """Answers from a plan."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._runs = {run.number: run for run in plan.runs}
        self._journal = journal
        self._asked: Counter[tuple[int, int]] = Counter()

    def turn(self, body: dict[str, Any]) -> AsyncIterator[Element]:
        """The answer to one request."""
        told = _Conversation(body)
        run = self._runs[told.run]
        place = (told.run, told.step)
        self._asked[place] += 1
        facts = {"run": told.run, "step": told.step, "request": uuid.uuid4().hex}
        self._journal.write("request", **facts, results=told.results)
        return self._answer(run, told.step, self._asked[place], facts)

    async def _answer(
        self, run: PlannedRun, number: int, nth: int, facts: dict[str, Any]
    ) -> AsyncIterator[Element]:
        step = run.steps[number - 1] if number <= len(run.steps) else extra_step()
        trouble = step.trouble if step.trouble and nth <= step.trouble.times else None
        if trouble is not None and trouble.kind == "status":
            yield {"$status": trouble.status, "body": {"error": {"message": "no", "code": "no"}}}
            return
        words = words_of(run.number, number, step.words, facts["request"])
        breaks_at = len(words) // 2 if trouble is not None else len(words) + 1
        sent: list[str] = []
        whole = False
        try:
            yield _chunk({"role": "assistant", "content": ""})
            for position, word in enumerate(words):
                if position == breaks_at:
                    break
                yield {"$sleep": step.pace_s}
                yield _chunk({"content": word})
                sent.append(word)
            if trouble is not None:
                yield {f"${trouble.kind}": True}
                return
            for element in _ending(run.number, number, step):
                yield element
            whole = True
        finally:
            self._journal.write("sent", **facts, text="".join(sent), whole=whole)


def _ending(run: int, number: int, step: Step) -> list[Element]:
    elements: list[Element] = []
    for index, call in enumerate(step.calls):
        arguments = msgspec.json.encode(tool_input_of(run, number, index, call)).decode()
        head = {"name": call.tool, "arguments": arguments[:9]}
        call_id = f"call_{uuid.uuid4().hex[:20]}"
        elements.append(
            _call({"index": index, "id": call_id, "type": "function", "function": head})
        )
        elements.append(_call({"index": index, "function": {"arguments": arguments[9:]}}))
    elements.append(_chunk({}, "tool_calls" if step.calls else "stop"))
    usage = {"prompt_tokens": 5, "completion_tokens": step.words, "total_tokens": 5 + step.words}
    elements.append({**_chunk({}), "choices": [], "usage": usage})
    return elements


def _call(part: dict[str, Any]) -> dict[str, Any]:
    return _chunk({"tool_calls": [part]})


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


async def _main(folder: Path) -> None:
    provider = Provider(read_plan(folder / "plan.json"), Journal(folder / "provider.jsonl"))
    async with ScriptedProvider(provider.turn) as server:
        print(server.base_url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1])))
