"""Threads on a terminal, and as JSON."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from hayrunner.cli.rendering import make_console, safe_text
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.threads import Rating, Thread, ThreadInfo, ThreadRating

__all__ = ["parse_rating", "print_change", "print_list", "print_thread"]

_LONGEST_RESULT = 400


def parse_rating(text: str) -> Rating | None:
    """`up`, `down`, a number; `none` for no rating."""
    if text == "up" or text == "down":
        return text
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError("a rating is up, down, a number, or none") from None


def print_list(threads: Sequence[ThreadInfo], *, as_json: bool) -> None:
    """A line for each; as JSON one object a line."""
    if as_json:
        for thread in threads:
            _write_json(thread)
        return
    for thread in threads:
        said = f"{thread.runs} run{'' if thread.runs == 1 else 's'}, {thread.messages} messages"
        mark = "  (deleted)" if thread.deleted else ""
        title = f"  {safe_text(thread.title)}" if thread.title else ""
        print(f"{thread.updated_at}  {thread.thread_id}  {said}{title}{mark}")


def print_thread(thread: Thread, *, as_json: bool) -> None:
    """The whole conversation."""
    if as_json:
        _write_json(thread)
        return
    console = make_console()
    title = f" · {thread.title}" if thread.title else ""
    mark = " · deleted" if thread.deleted else ""
    console.out(safe_text(f"{thread.thread_id}{title}{mark}"), style="bold", highlight=False)
    for added in thread.log:
        agent = f" · {added.agent}" if added.agent else ""
        console.out(f"\n{added.at} · {added.message_id}{agent}", style="dim", highlight=False)
        for message in added.messages:
            for line in _lines(message):
                console.file.write(safe_text(line) + "\n")
        rating = thread.ratings.get(added.message_id)
        if rating is not None:
            console.out(safe_text(f"rated {_rated(rating)}"), style="yellow", highlight=False)


def print_change(thread_id: str, change: str, *, as_json: bool) -> None:
    """That something was done."""
    if as_json:
        _write_json({"thread_id": thread_id, "change": change})
    else:
        print(f"{change} {thread_id}")


def _lines(message: ChatMessage) -> list[str]:
    found: list[str] = []
    if message.text:
        found.append(f"{message.role}: {message.text}")
    for call in message.tool_calls:
        found.append(f"  → {call.tool_name} {msgspec.json.encode(call.arguments).decode()}")
    for result in message.tool_call_results:
        text = result.result if isinstance(result.result, str) else "(parts)"
        shown = text if len(text) <= _LONGEST_RESULT else f"{text[:_LONGEST_RESULT]} …"
        found.append(f"  {'✗' if result.error else '←'} {result.origin.tool_name} {shown}")
    kinds = [part for part in message.content if part.image or part.file]
    if kinds:
        found.append(f"{message.role}: ({len(kinds)} image or file)")
    return found


def _rated(rating: ThreadRating) -> str:
    shown = rating.rating if isinstance(rating.rating, str) else f"{rating.rating:g}"
    return f"{shown}: {rating.comment}" if rating.comment else shown


def _write_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()
