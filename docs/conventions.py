"""Holds what a worker really emits against OpenTelemetry's GenAI and messaging conventions.

    make conventions

Records the spans of one run, from a requester to an agent on another worker, with content, and the
metrics of its model calls; compares names, types, documented values, kinds and units, and writes
what differs into docs/observability.md. Two packages carry the conventions: the registry of GenAI
attributes is in `pytest-genai-semconv`, everything else in `opentelemetry-semantic-conventions`.
Needs what the tests need.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from haystack.utils import Secret
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from pytest_genai_semconv import spec

from hayrunner import Agent, Registry
from hayrunner.embedded import EmbeddedServer
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner.telemetry import names
from hayrunner.telemetry.definitions import ALL
from hayrunner.telemetry.logs import set_up_logs
from hayrunner.telemetry.metrics import Metrics
from hayrunner.telemetry.model_meter import counting
from hayrunner.telemetry.tracer import start_tracing, stop_tracing
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_request
from hayrunner_contracts.events import StreamEvent
from hayrunner_contracts.otel import OpenTelemetryTracing
from hayrunner_contracts.testing import eventually

__all__ = ["DOCUMENT", "Recorded", "differences", "document_with", "record"]

DOCUMENT = Path(__file__).with_name("observability.md")

_BEGIN, _END = "<!-- conventions -->", "<!-- end of conventions -->"
_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


# --- the run


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What was emitted. `metrics` are the SDK's, by their names."""

    spans: tuple[ReadableSpan, ...]
    metrics: Mapping[str, Any]


def _chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    told = {"id": "c", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice]}
    return {**told, **more}


def _turn(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    offered = [tool["function"]["name"] for tool in body.get("tools", [])]
    if any(message["role"] == "tool" for message in body["messages"]):
        yield _chunk({"content": "It comes tomorrow."})
        yield _chunk({}, "stop")
    else:
        arguments = {"carrier": '{"task": "Where is it?"}', "look_up": '{"number": 7}'}
        for index, name in enumerate(offered):
            function = {"name": name, "arguments": arguments.get(name, "{}")}
            call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
            yield _chunk({"tool_calls": [call]})
        yield _chunk({}, "tool_calls")
    yield {**_chunk({}), "choices": [], "usage": _USAGE}


async def look_up(number: int) -> str:
    """Looks something up."""
    return f"order {number}"


async def broken() -> str:
    """Fails."""
    raise ValueError


def _agent(generator: Any, **attributes: Any) -> Agent:
    kind = type("Recorded", (Agent,), {**attributes, "get_llm": lambda self: generator})
    return kind()


class _Nowhere:
    async def emit(self, event: StreamEvent) -> None:
        return None


async def record() -> Recorded:
    """One run over NATS and two workers, and one more without them for the metrics."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    start_tracing(provider)
    try:
        async with ScriptedProvider(_turn) as model, AsyncExitStack() as stack:
            generators: list[Any] = []
            for _ in range(2):
                generators.append(
                    OpenAICompatibleChatGenerator(
                        model="m", api_key=Secret.from_token("k"), api_base_url=model.base_url
                    )
                )
                stack.push_async_callback(generators[-1].close_async)
            await _over_nats(generators, exporter, provider)
            spans = exporter.get_finished_spans()
            await _counted(generators[1], Metrics(["carrier"], meter=meters.get_meter("hayrunner")))
    finally:
        stop_tracing()
        provider.shutdown()
    found = _metrics_of(reader)
    meters.shutdown()
    return Recorded(spans=spans, metrics=found)


def _metrics_of(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def _over_nats(
    generators: list[Any], exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    support = _agent(
        generators[0],
        name="support",
        tools=(look_up, broken),
        subagents=("carrier",),
        instructions="Be short.",
        record_content_telemetry=True,
    )
    carrier = _agent(generators[1], name="carrier", tools=(look_up,))
    async with EmbeddedServer() as server:
        one, other = (Settings(nats_url=server.url, port=-1, storage="memory") for _ in range(2))
        async with (
            Worker(one, Registry([support])),
            Worker(other, Registry([carrier])),
            await RunClient.connect(server.url, tracing=OpenTelemetryTracing(provider)) as client,
        ):
            await client.run("support", "Where is order 7?", tools=True, thread_id="t1")
            await eventually(lambda: _is_whole(exporter.get_finished_spans()), 10)


def _is_whole(spans: tuple[ReadableSpan, ...]) -> bool:
    return sum(span.name.startswith("process") for span in spans) == 2


async def _counted(generator: Any, metrics: Metrics) -> None:
    agent = _agent(generator, name="carrier", tools=(look_up,))
    request = decode_request(b'{"prompt": "Where is it?"}')
    with counting(metrics):
        session = agent.open_session(request, message_id="m", sink=_Nowhere(), agent_name="carrier")
        await session.run()


# --- what the conventions say


def _constants(*modules: Any) -> set[str]:
    return {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }


def _values(kind: type[Enum]) -> frozenset[str]:
    return frozenset(str(item.value) for item in kind)


_KNOWN = {*spec.ATTRIBUTE_TYPES, *_constants(messaging_attributes, error_attributes)}
_CLOSED: Mapping[str, frozenset[str]] = {
    **spec.ENUM_ATTRIBUTES,
    names.MESSAGING_SYSTEM: _values(messaging_attributes.MessagingSystemValues),
    names.MESSAGING_OPERATION_TYPE: _values(messaging_attributes.MessagingOperationTypeValues),
}
_TYPES = {"string": str, "int": int, "double": float, "boolean": bool}


def _type_of(value: Any) -> str:
    if isinstance(value, tuple):
        return "string[]"
    return next(name for name, kind in _TYPES.items() if type(value) is kind)


def _metric_forms() -> dict[str, tuple[str, str]]:
    """Of every GenAI metric that the package makes: its kind and its unit."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    for name, make in vars(gen_ai_metrics).items():
        if name.startswith("create_"):
            make(meters.get_meter("conventions")).record(1)
    found = _metrics_of(reader)
    meters.shutdown()
    return {name: _form(metric) for name, metric in found.items()}


def _form(metric: Any) -> tuple[str, str]:
    return type(metric.data).__name__.lower(), metric.unit


# --- what differs


def differences(recorded: Recorded) -> list[str]:
    """Everything that is not as the conventions have it, a Markdown line each, sorted."""
    found: dict[str, set[str]] = defaultdict(set)
    for span in recorded.spans:
        operation = span.name.partition(" ")[0]
        for problem, what in _of_span(span, operation):
            found[problem].add(what)
    forms = _metric_forms()
    for metric in recorded.metrics.values():
        for problem, what in _of_metric(metric, forms):
            found[problem].add(what)
    for provider in set(names.PROVIDERS.values()) - _CLOSED[names.PROVIDER_NAME]:
        found[f"`{names.PROVIDER_NAME}` has values that are not documented"].add(f"`{provider}`")
    own = {definition.name for definition in ALL if not definition.name.startswith("gen_ai.")}
    found["metrics that the conventions do not have"] |= {f"`{name}`" for name in own}
    left_out = {f"`{name}`" for name in spec.ATTRIBUTE_TYPES if name not in _emitted(recorded)}
    found["attributes of the GenAI registry that are never set"] = left_out
    return [f"- {problem}: {', '.join(sorted(found[problem]))}" for problem in sorted(found)]


def _emitted(recorded: Recorded) -> set[str]:
    of_spans = {name for span in recorded.spans for name in span.attributes or {}}
    return of_spans | {
        name
        for metric in recorded.metrics.values()
        for point in metric.data.data_points
        for name in point.attributes
    }


def _of_span(span: ReadableSpan, operation: str) -> Iterable[tuple[str, str]]:
    attributes = dict(span.attributes or {})
    for name, value in attributes.items():
        yield from _of_attribute(name, value)
        if name not in _KNOWN:
            yield f"attributes that the conventions do not have, on `{operation}`", f"`{name}`"
    if span.status.status_code.name == "ERROR" and names.ERROR_TYPE not in attributes:
        yield "failed spans without `error.type`", f"`{operation}`"
    profile = spec.profile_for_operation(operation)
    if profile is None:
        return
    for name in profile.required_attributes:
        if name not in attributes:
            yield f"required attributes that are missing on `{operation}`", f"`{name}`"
    if span.kind.name not in profile.allowed_kinds:
        yield "spans of another kind", f"`{operation}` ({span.kind.name.lower()})"


def _of_attribute(name: str, value: Any) -> Iterable[tuple[str, str]]:
    wanted, got = spec.ATTRIBUTE_TYPES.get(name), _type_of(value)
    if wanted == "any":
        # What the SDK takes has no other form for it, and the conventions allow it then.
        yield "objects that are recorded as JSON in a string", f"`{name}`"
    elif wanted is not None and wanted != got:
        yield "attributes of another type", f"`{name}` ({got} for {wanted})"
    closed = _CLOSED.get(name)
    if closed is not None and value not in closed:
        yield f"`{name}` has values that are not documented", f"`{value}`"


def _of_metric(metric: Any, forms: Mapping[str, tuple[str, str]]) -> Iterable[tuple[str, str]]:
    form = forms.get(metric.name)
    if form is None:
        yield "metrics that the conventions do not have", f"`{metric.name}`"
    elif form != _form(metric):
        yield "metrics of another kind or unit", f"`{metric.name}`"
    for point in metric.data.data_points:
        for name, value in point.attributes.items():
            yield from _of_attribute(name, value)
            if name not in _KNOWN:
                yield f"labels that the conventions do not have, of `{metric.name}`", f"`{name}`"


def document_with(lines: list[str], text: str) -> str:
    """The document with these lines in their place; `ValueError` if it has none."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{DOCUMENT.name} has no marks for the conventions")
    return "\n".join([f"{before}{begin}", *lines, f"{end}{after}"])


if __name__ == "__main__":
    set_up_logs(form="console", level="ERROR")
    DOCUMENT.write_text(document_with(differences(asyncio.run(record())), DOCUMENT.read_text()))
