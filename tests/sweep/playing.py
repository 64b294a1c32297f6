"""How runs are played. Each is given a stage, its number and the options that say whether its
content is kept, and asserts that it ended as it should: what was not reached leaks nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from tests.sweep.model import instruction
from tests.sweep.sentinels import mark
from tests.sweep.stage import Stage

from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.runs import Run

__all__ = ["PLAYS", "Options", "ended", "everything", "play", "prompt", "ran", "run", "submitted"]

Options = Mapping[str, Any]
Play = Callable[[Stage, int, Options], Awaitable[None]]
PLAYS: dict[str, Play] = {}
"""By name; filled by the modules beside this one."""


async def play(
    stage: Stage, names: Iterable[str], options: Options, *, at_once: int = 8
) -> dict[int, str]:
    """These runs, several at a time; each has a number of its own, which are the result."""
    slots = asyncio.Semaphore(at_once)
    numbered = {stage.number(): name for name in names}

    async def one(number: int, name: str) -> None:
        async with slots:
            try:
                await PLAYS[name](stage, number, options)
            except Exception as error:
                error.add_note(f"in the run {name}")
                raise

    playing = (one(number, name) for number, name in numbered.items())
    failures = [e for e in await asyncio.gather(*playing, return_exceptions=True) if e]
    if failures:
        raise BaseExceptionGroup("runs that did not go as they should", failures)
    return numbered


def run(function: Play) -> Play:
    PLAYS[function.__name__] = function
    return function


def prompt(script: str, number: int) -> str:
    return f"{instruction(script, number)} {mark('Prompt', number)}"


def everything(number: int, options: Options) -> dict[str, Any]:
    """All that a request can say beside its prompt."""
    return {
        "user": mark("User", number),
        "metadata": {"order": mark("Metadata", number)},
        "preamble": f"Be brief. {mark('Preamble', number)}",
        "history": [
            ChatMessage.user(mark("History", number), name=mark("AuthorName", number)),
            ChatMessage.assistant(mark("History", number)),
        ],
        "documents": [
            {
                "id": "a",
                "content": mark("Document", number),
                "meta": {"k": mark("DocumentMeta", number)},
            }
        ],
        "tool_context": {"tenant": mark("ToolContext", number), "run": number},
        "merge_params": {"metadata": {"who": mark("Parameter", number)}},
        "include_messages": True,
        **options,
    }


async def submitted(stage: Stage, agent: str, text: Any, options: Options, **more: Any) -> Run:
    return await stage.client.submit(agent, text, **{**options, **more})


async def ended(run: Run, code: str | None = None) -> None:
    """Wait for the end; `code` is the error's, None for a completed run."""
    result = await run.result(timeout=30)
    found = None if result.error is None else result.error.code
    assert found == code, (found, code, result.answer)


async def ran(
    stage: Stage,
    agent: str,
    script: str,
    number: int,
    options: Options,
    code: str | None = None,
    **more: Any,
) -> None:
    await ended(await submitted(stage, agent, prompt(script, number), options, **more), code)
