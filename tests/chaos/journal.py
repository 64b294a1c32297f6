"""Journals: what a process did, one JSON object a line, there even where it was killed.

A line is one `write` to a file opened for appending, so it survives the process; the machine
does not die here, so nothing is synced.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Journal", "read_journals"]

_ENCODER = msgspec.json.Encoder()


class Journal:
    """One process's journal. `t` of a line is seconds since the epoch."""

    def __init__(self, path: Path, **always: Any) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._always = always

    def write(self, what: str, **facts: Any) -> None:
        """One line. From any thread."""
        line = {"what": what, "t": time.time(), **self._always, **facts}
        os.write(self._file, _ENCODER.encode(line) + b"\n")


def read_journals(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """The lines of every journal whose name matches, in order of time."""
    lines = [line for path in folder.glob(pattern) for line in _lines(path)]
    return sorted(lines, key=lambda line: line["t"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        yield msgspec.json.decode(line, type=dict[str, Any])
