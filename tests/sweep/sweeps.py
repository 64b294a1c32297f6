"""One sweep from beginning to end: runs on a stage, and what was found of them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from tests.sweep import sentinels
from tests.sweep.capture import Captured, Hit
from tests.sweep.runs import RUNS, play
from tests.sweep.stage import open_stage
from tests.sweep.ways import leaks

from hayrunner.telemetry.gate import ContentPolicy

__all__ = ["OFF", "ON", "Swept", "sweep", "sweep_both", "sweep_now"]

ON: dict[str, Any] = {"record_content_telemetry": True}
OFF: dict[str, Any] = {}


@dataclass
class Swept:
    """What one sweep found. `runs` are the names of runs by their numbers, `made` the ways in that
    were used; `off` are the numbers of runs whose content is not kept."""

    captured: Captured
    spans: list[ReadableSpan]
    runs: dict[int, str]
    made: set[str]
    off: frozenset[int] = frozenset()

    @property
    def hits(self) -> list[Hit]:
        return list(self.captured.hits())

    def leaks(self, *, keeps: bool) -> list[Hit]:
        return leaks(self.hits, keeps=keeps)

    def places(self) -> dict[str, set[str]]:
        """For each way in, the attributes that it was found in."""
        found: dict[str, set[str]] = {}
        for hit in self.hits:
            if hit.channel == "span attributes":
                found.setdefault(hit.found.what, set()).add(hit.place)
        return found

    def counts(self) -> Counter[tuple[str, str, str]]:
        """By way in, channel and run. Run 0 is what belongs to none."""
        names = {**self.runs, 0: "any"}
        return Counter(
            (hit.found.what, hit.channel, names.get(hit.found.run, "?")) for hit in self.hits
        )


async def sweep(
    monkeypatch: pytest.MonkeyPatch,
    names: Iterable[str] = tuple(RUNS),
    options: Mapping[str, Any] = OFF,
    *,
    policy: ContentPolicy | None = None,
    **stage: Any,
) -> Swept:
    """These runs, all of them with these options."""
    sentinels.made.clear()
    async with open_stage(monkeypatch, policy=policy, **stage) as on:
        runs = await play(on, names, options)
    return Swept(on.captured, on.spans, runs, set(sentinels.made))


async def sweep_both(monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> Swept:
    """These runs twice at the same time: once with content, once without."""
    names = tuple(names)
    sentinels.made.clear()
    async with open_stage(monkeypatch) as on:
        kept, off = await asyncio.gather(
            play(on, names, ON), play(on, names, {"record_content_telemetry": False})
        )
    return Swept(on.captured, on.spans, kept | off, set(sentinels.made), frozenset(off))


def sweep_now(*args: Any, both: bool = False, **kwargs: Any) -> Swept:
    """The same for who has no event loop: a fixture that many tests share."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if both:
            return asyncio.run(sweep_both(monkeypatch, *args))
        return asyncio.run(sweep(monkeypatch, *args, **kwargs))
