"""Draws docs/trace.svg: the spans of one real run, as they were exported.

    make trace-picture

An agent on one worker runs a tool and asks a second agent, which is on another worker; a scripted
provider stands in for the model and takes its time, so that the picture is nearly the same each
time. Needs what the tests need.
"""

import asyncio
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from haystack.utils import Secret
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from hayrunner import Agent, Registry
from hayrunner.embedded import EmbeddedServer
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner.telemetry.logs import set_up_logs
from hayrunner.telemetry.tracer import start_tracing, stop_tracing
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.otel import OpenTelemetryTracing
from hayrunner_contracts.testing import eventually

OUT = Path(__file__).with_name("trace.svg")

_ROUND_MS = 10
_WIDTH, _LABELS, _ROW, _TOP = 980, 420, 24, 40
_COLOURS = {
    SpanKind.PRODUCER: "#8e6bbf",
    SpanKind.CONSUMER: "#5b7fc7",
    SpanKind.INTERNAL: "#4a9d8e",
    SpanKind.CLIENT: "#d08a3c",
}


# --- the run


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m"} | {"choices": [choice]}


def _calls(**calls: str) -> Iterator[dict[str, Any]]:
    yield {"$sleep": 0.06}
    for index, (name, arguments) in enumerate(calls.items()):
        function = {"name": name, "arguments": arguments}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        yield _chunk({"tool_calls": [call]})
    yield {"$sleep": 0.06}
    yield _chunk({}, "tool_calls")


def _text(*words: str) -> Iterator[dict[str, Any]]:
    yield {"$sleep": 0.05}
    for word in words:
        yield _chunk({"content": word})
        yield {"$sleep": 0.03}
    yield _chunk({}, "stop")


def _turn(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    tools = [tool["function"]["name"] for tool in body.get("tools", [])]
    if any(message["role"] == "tool" for message in body["messages"]):
        return _text("It ", "comes ", "tomorrow", ".")
    if "carrier" in tools:
        return _calls(find_order='{"number": 7}', carrier='{"task": "Where is parcel 12?"}')
    return _calls(track='{"parcel": 12}')


async def find_order(number: int) -> str:
    """Find an order."""
    await asyncio.sleep(0.08)
    return f"order {number} went out as parcel 12"


async def track(parcel: int) -> str:
    """Track a parcel."""
    await asyncio.sleep(0.1)
    return f"parcel {parcel} is in Ulm"


def _agent(generator: Any, **attributes: Any) -> Agent:
    kind = type("Shown", (Agent,), {**attributes, "get_llm": lambda self: generator})
    return kind()


async def _run(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    async with EmbeddedServer() as server, ScriptedProvider(_turn) as model:
        generators = [
            OpenAICompatibleChatGenerator(
                model="m", api_key=Secret.from_token("k"), api_base_url=model.base_url
            )
            for _ in range(2)
        ]
        support = _agent(
            generators[0],
            name="support",
            tools=(find_order,),
            subagents=("carrier",),
            tool_concurrency=2,
        )
        carrier = _agent(generators[1], name="carrier", tools=(track,))
        settings = Settings(nats_url=server.url, port=-1, storage="memory")
        other = Settings(nats_url=server.url, port=-1, storage="memory")
        async with (
            Worker(settings, Registry([support])),
            Worker(other, Registry([carrier])),
            await RunClient.connect(server.url, tracing=OpenTelemetryTracing(provider)) as client,
        ):
            # Once to open what is opened once; the second run is drawn.
            for _ in range(2):
                exporter.clear()
                await client.run("support", "Where is order 7?", tools=True)
                await eventually(lambda: _is_whole(exporter.get_finished_spans()), 10)
        for generator in generators:
            await generator.close_async()


def _is_whole(spans: tuple[ReadableSpan, ...]) -> bool:
    return sum(span.name.startswith("process") for span in spans) == 2


# --- the picture


def _rows(spans: list[ReadableSpan]) -> list[tuple[int, ReadableSpan]]:
    """Depth and span, parents before what is below them, in the order they began."""
    spans = sorted(spans, key=lambda span: span.start_time or 0)

    def below(parent: int | None, depth: int) -> Iterator[tuple[int, ReadableSpan]]:
        for span in spans:
            above = span.parent.span_id if span.parent is not None else None
            if above == parent and span.context is not None:
                yield depth, span
                yield from below(span.context.span_id, depth + 1)

    return list(below(None, 0))


def _ms(nanoseconds: int) -> int:
    return round(nanoseconds / 1e6 / _ROUND_MS) * _ROUND_MS


def draw(spans: list[ReadableSpan]) -> str:
    """The spans of one trace as an SVG: a row for each, its bar where and as long as it was."""
    rows = _rows(spans)
    began = min(span.start_time or 0 for _, span in rows)
    whole = max(_ms((span.end_time or 0) - began) for _, span in rows) or 1
    scale = (_WIDTH - _LABELS - 80) / whole
    height = _TOP + _ROW * len(rows) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for at, (kind, colour) in enumerate(_COLOURS.items()):
        x = 16 + at * 110
        lines.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="22" fill="#333333">{kind.name.lower()}</text>')
    for row, (depth, span) in enumerate(rows):
        y = _TOP + row * _ROW
        start = _ms((span.start_time or 0) - began)
        length = _ms((span.end_time or 0) - (span.start_time or 0))
        x, width = _LABELS + start * scale, max(2.0, length * scale)
        if row % 2 == 0:
            lines.append(f'<rect y="{y}" width="{_WIDTH}" height="{_ROW}" fill="#f5f6f8"/>')
        lines.append(
            f'<text x="{16 + depth * 10}" y="{y + 16}" fill="#1d1f23">{escape(span.name)}</text>'
        )
        lines.append(
            f'<rect x="{x:.0f}" y="{y + 5}" width="{width:.0f}" height="{_ROW - 10}" rx="2" '
            f'fill="{_COLOURS[span.kind]}"/>'
        )
        told = f"{length} ms" if length else f"under {_ROUND_MS} ms"
        lines.append(f'<text x="{x + width + 6:.0f}" y="{y + 16}" fill="#555555">{told}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    set_up_logs(level="ERROR")
    start_tracing(provider)
    try:
        asyncio.run(_run(exporter, provider))
    finally:
        stop_tracing()
    OUT.write_text(draw(list(exporter.get_finished_spans())))
    print(f"{OUT.name}: {len(exporter.get_finished_spans())} spans")


if __name__ == "__main__":
    main()
