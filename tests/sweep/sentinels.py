"""Sentinels: words that stand for what people, models, tools and documents say, one for each way
in and each run, so that a word that is found says what it is and whose.

A sentinel is `ZqSentinel`, the name of its way in, `N`, the number of its run, `zQ`: letters and
digits only, so that no JSON, no repr, no percent-encoding and no header changes it. Number 0 is of
what belongs to no run: an agent's instructions, the provider's key. In base64 it is found by what
its beginning becomes at each of the three places where it may stand.
"""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Found", "made", "mark", "run_of", "scan"]

_START = "ZqSentinel"
_WHOLE = re.compile(_START + r"(?:([A-Za-z]+?)N(\d+))?", re.IGNORECASE)


made: set[str] = set()
"""The ways in whose sentinels were ever made in this process."""


def mark(what: str, run: int) -> str:
    """The sentinel of one way in."""
    made.add(what)
    return f"{_START}{what}N{run}zQ"


def run_of(text: str) -> int:
    """The run that the first sentinel in a text belongs to."""
    found = next(iter(scan(text)), None)
    assert found is not None, "no sentinel"
    return found.run


@dataclass(frozen=True)
class Found:
    """A sentinel that was found. `what` is `Cut` where its end is missing."""

    what: str
    run: int


def _encoded_starts() -> Iterator[str]:
    """What base64 makes of the beginning, without the characters that its neighbours have part
    in."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + _START.encode()).decode().rstrip("=")
        first = -(-before * 8 // 6)
        whole = (before + len(_START)) * 8 // 6
        yield encoded[first:whole]


_ENCODED = re.compile("|".join(map(re.escape, _encoded_starts())))


def scan(text: str) -> Iterator[Found]:
    """Every sentinel in a text."""
    for found in _WHOLE.finditer(text):
        yield Found(found[1] or "Cut", int(found[2] or 0))
    for _ in _ENCODED.finditer(text):
        yield Found("Encoded", 0)
