"""The tables of a sweep: what was found where, in counts for the terminal, and in words for the
documents."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.sweep.capture import CHANNELS
from tests.sweep.gates import GATES
from tests.sweep.runs import RUNS
from tests.sweep.sweeps import Swept
from tests.sweep.ways import WAYS, Way

__all__ = ["DOCUMENT", "in_document", "printed", "short_form"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "observability.md"
_BEGIN, _END = "<!-- made by `make sweep` -->", "<!-- end -->"
_SPANS = {"invoke_agent": "run", "chat": "model call", "execute_tool": "tool call"}


def printed(off: Swept, on: Swept) -> str:
    """By way in and channel, by run and channel, by all three where anything was found; each count
    as `off/on`."""
    without, kept = off.counts(), on.counts()
    return "\n\n".join(
        [
            "Searched: " + ", ".join(_amounts(off, on)),
            "By way in. Texts found without content/with content; · is 0/0.",
            _grid(_summed(without, 0), _summed(kept, 0), list(WAYS)),
            "By run.",
            _grid(_summed(without, 2), _summed(kept, 2), [*RUNS, "any"]),
            "Way in, channel and run of whatever was found.",
            "\n".join(_triples(without, kept)),
            _verdict(off, on),
        ]
    )


def _amounts(off: Swept, on: Swept) -> Iterator[str]:
    for channel in CHANNELS:
        yield f"{channel} {off.captured.amounts[channel]}/{on.captured.amounts[channel]}"


def _summed(counts: Counter[tuple[str, str, str]], part: int) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for key, count in counts.items():
        found[key[part], key[1]] += count
    return found


def _grid(off: Counter[tuple[str, str]], on: Counter[tuple[str, str]], rows: list[str]) -> str:
    width = max(map(len, rows)) + 1
    lines = [" " * width + " ".join(f"{n:>7}" for n in range(1, len(CHANNELS) + 1))]
    for row in rows:
        cells = ((off[row, channel], on[row, channel]) for channel in CHANNELS)
        shown = (f"{one}/{two}" if one or two else "·" for one, two in cells)
        lines.append(f"{row:<{width}}" + " ".join(f"{cell:>7}" for cell in shown))
    lines += [f"  {number:>2}: {channel}" for number, channel in enumerate(CHANNELS, start=1)]
    return "\n".join(lines)


def _triples(
    off: Counter[tuple[str, str, str]], on: Counter[tuple[str, str, str]]
) -> Iterator[str]:
    for key in sorted({*off, *on}):
        yield f"{key[0]:<18}{key[1]:<24}{key[2]:<22}{off[key]}/{on[key]}"


def _verdict(off: Swept, on: Swept) -> str:
    leaked, beside = off.leaks(keeps=False), on.leaks(keeps=True)
    kinds = Counter(way.kind for way in WAYS.values())
    found = {what for what in on.places() if WAYS[what].kind == "content"}
    return (
        f"{len(leaked)} leaks without content, {len(beside)} with. "
        f"{len(found)} of {kinds['content']} ways in of content found with content, "
        f"{kinds['never']} never, {kinds['address']} addresses."
    )


# --- for the documents


def short_form() -> str:
    """What the tests hold: where everything may be found, and the gates."""
    kinds = Counter(way.kind for way in WAYS.values())
    lines = [
        _BEGIN,
        f"{len(WAYS)} ways in, {len(CHANNELS)} channels, {len(RUNS)} runs.",
        "",
        "| content | where, in a run that keeps it |",
        "|---|---|",
        *(f"| {way.what} | {_where(way)} |" for way in _of("content")),
        "",
        f"Nowhere, whatever a run keeps ({kinds['never']}): "
        + ", ".join(way.what for way in _of("never"))
        + ".",
        "",
        "| address | where, in every run |",
        "|---|---|",
        *(f"| {way.what} | {_where(way)} |" for way in _of("address")),
        "",
        "| without this gate | the sweep finds | in |",
        "|---|---|---|",
        *(f"| {g.name} | {g.holds_back} | {g.channel} |" for g in GATES.values()),
        _END,
    ]
    return "\n".join(lines)


def in_document(text: str, short: str) -> str:
    """A document's text with this short form in the place of its own."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    assert pattern.search(text), f"no {_BEGIN} in {DOCUMENT.name}"
    return pattern.sub(lambda _: short, text)


def _of(kind: str) -> Iterator[Way]:
    return (way for way in WAYS.values() if way.kind == kind)


def _where(way: Way) -> str:
    places: dict[str, list[str]] = {}
    for place in sorted(way.places):
        span, _, attribute = place.partition(": ")
        places.setdefault(_SPANS.get(span, span), []).append(attribute)
    told = [
        f"{span}: {', '.join(f'`{name}`' for name in names)}" if names[0] else span
        for span, names in places.items()
    ]
    return "; ".join(told)
