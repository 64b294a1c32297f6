"""Dead letters on a terminal, and as JSON."""

import base64
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from hayrunner.cli.rendering import safe_text
from hayrunner_contracts.dead_letters import DeadLetter

__all__ = ["print_drop", "print_letter", "print_list", "print_retry"]

_SHOWN_CHARACTERS = 20_000
_BLOB_HEADER = "Hayrunner-Blob"


def print_list(letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    """A line for each; as JSON one object a line, without bodies."""
    for letter in letters:
        if as_json:
            _write_json(_facts(letter))
            continue
        run = letter.message_id or "-"
        line = f"{letter.at}  {letter.agent}  {letter.reason}  {run}  {letter.size} bytes"
        print(f"{letter.number:<7} {safe_text(line)}")


def print_letter(letter: DeadLetter, *, as_json: bool) -> None:
    """All of it. A body that is no text is given in base64 as JSON, and not at all otherwise."""
    text = _text(letter.body)
    if as_json:
        body = (
            {"body_base64": base64.b64encode(letter.body).decode()}
            if text is None
            else {"body": text}
        )
        _write_json({**_facts(letter), "headers": letter.headers, "whole": letter.whole, **body})
        return
    for name, value in _facts(letter).items():
        print(f"{name:<11} {safe_text(str(value))}")
    for name, value in letter.headers.items():
        print(f"{'header':<11} {safe_text(f'{name}: {value}')}")
    print()
    if text is None:
        print(f"({len(letter.body)} bytes that are no text; --json has them)")
        return
    print(safe_text(text[:_SHOWN_CHARACTERS]))
    if len(text) > _SHOWN_CHARACTERS:
        print(f"(… {len(text) - _SHOWN_CHARACTERS} more characters; --json has them)")
    if not letter.whole:
        print(f"(cut: {len(letter.body)} of {letter.size} bytes were kept)")


def print_retry(number: int, message_id: str, *, as_json: bool) -> None:
    """That it is a run again, and which."""
    if as_json:
        _write_json({"number": number, "message_id": message_id})
    else:
        print(f"queued {number} as {message_id}")


def print_drop(number: int, *, as_json: bool) -> None:
    """That it is gone."""
    if as_json:
        _write_json({"number": number, "dropped": True})
    else:
        print(f"dropped {number}")


def _facts(letter: DeadLetter) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "number": letter.number,
        "agent": letter.agent,
        "reason": letter.reason,
        "at": letter.at,
        "message_id": letter.message_id,
        "subject": letter.subject,
        "size": letter.size,
    }
    reference = letter.headers.get(_BLOB_HEADER)
    return facts if reference is None else {**facts, "reference": reference}


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _write_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()
