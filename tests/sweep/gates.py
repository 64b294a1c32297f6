"""Every gate, and how to take it away: then the sweep has to find what the gate holds back, in the
channel that it guards."""

import re
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tests.sweep.open_tracer import OpenTracer
from tests.sweep.sweeps import OFF, ON

from hayrunner.telemetry import tracing
from hayrunner.telemetry.gate import ContentPolicy

__all__ = ["GATES", "Gate"]

Remove = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`remove` takes it away. Then these `runs`, with these `options`, show `bites` in `channel`;
    `kinds` are the generators they need."""

    name: str
    holds_back: str
    channel: str
    bites: frozenset[str]
    runs: tuple[str, ...]
    remove: Remove
    options: dict[str, Any] = field(default_factory=lambda: dict(OFF))
    policy: ContentPolicy | None = None
    kinds: tuple[str, ...] = ("own",)

    @property
    def keeps(self) -> bool:
        """Whether content is allowed in these runs."""
        return bool(self.options) and not (self.policy and self.policy.forbidden)


def _replaced(path: str, value: Any) -> Remove:
    return lambda monkeypatch: monkeypatch.setattr(path, value)


def _set(*whats: str) -> frozenset[str]:
    return frozenset(whats)


# --- spans


def _recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(span: Span, error: BaseException) -> None:
        span.record_exception(error)

    monkeypatch.setattr(tracing, "note_exception", note)


def _status_with_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(span: Span, error: BaseException) -> None:
        span.set_status(Status(StatusCode.ERROR, str(error)))

    monkeypatch.setattr(tracing, "note_exception", note)


_SPANS = [
    Gate(
        name="the operator's `never`",
        holds_back="content of whoever wants it kept",
        channel="span attributes",
        bites=_set("Prompt", "Preamble", "ModelText", "ToolArgument", "ToolResult"),
        runs=("with_history",),
        remove=_replaced("hayrunner.telemetry.gate.content_allowed", lambda policy: True),
        options=ON,
        policy=ContentPolicy(forbidden=True),
    ),
    Gate(
        name="a run's own word",
        holds_back="content of who did not ask for it",
        channel="span attributes",
        bites=_set("Prompt", "Preamble", "ModelText", "ToolArgument", "ToolResult"),
        runs=("with_history",),
        remove=_replaced("hayrunner.telemetry.gate.wants_content", lambda recorded, policy: True),
    ),
    Gate(
        name="the decision of a run",
        holds_back="content",
        channel="span attributes",
        bites=_set("Prompt", "Document", "History", "Reasoning", "ToolResult"),
        runs=("with_history",),
        remove=_replaced("hayrunner.telemetry.gate.keeps_content", lambda *_: True),
    ),
    Gate(
        name="a run within a run",
        holds_back="content that an agent in a tool would keep",
        channel="span attributes",
        bites=_set("Task", "SubAnswer"),
        runs=("an_agent_in_a_tool",),
        remove=_replaced("hayrunner.telemetry.gate.no_more_than", lambda outer, keeps: keeps),
    ),
    Gate(
        name="what a run says to those elsewhere",
        holds_back="content that a subagent on another worker would keep",
        channel="span attributes",
        bites=_set("Task", "SubAnswer"),
        runs=("careful_parent",),
        remove=_replaced("hayrunner.adapters.subagents.inherited_content", lambda recorded: True),
    ),
    Gate(
        name="content attributes",
        holds_back="content, where a span is made of it",
        channel="span attributes",
        bites=_set("Prompt", "Memory", "Instructions", "Source"),
        runs=("success", "sources"),
        remove=_replaced("hayrunner.telemetry.gate.kept", lambda keeps, content: content()),
    ),
    Gate(
        name="the form of content",
        holds_back="images and files",
        channel="span attributes",
        bites=_set("Encoded"),
        runs=("attachments",),
        remove=_replaced(
            "hayrunner.telemetry.content._blob",
            lambda modality, mime_type, size: (
                {"content": _caller("part").image.base64_image} if modality == "image" else {}
            ),
        ),
        options=ON,
    ),
    Gate(
        name="Haystack's ordinary tags",
        holds_back="what components say of themselves",
        channel="span attributes",
        bites=_set("ToolArgument"),
        runs=("pipeline",),
        remove=_replaced("hayrunner.telemetry.gate.ordinary_tag", lambda key: key),
        kinds=("own", "openai"),
    ),
    Gate(
        name="the worker's own Haystack tracer",
        holds_back="inputs of pipelines, texts of exceptions",
        channel="span attributes",
        bites=_set("Prompt"),
        runs=("pipeline",),
        remove=_replaced("hayrunner.telemetry.tracer.HaystackTracer", OpenTracer),
        kinds=("own", "openai"),
    ),
    Gate(
        name="names of tools",
        holds_back="tools that a model invents",
        channel="span names",
        bites=_set("UnknownTool"),
        runs=("unknown_tool",),
        remove=_replaced("hayrunner.telemetry.gate.tool_name", lambda name, registered: name),
    ),
    Gate(
        name="destinations",
        holds_back="agents that nobody serves",
        channel="span names",
        bites=_set("AgentName", "AgentText"),
        runs=("unknown_agent",),
        remove=_replaced(
            "hayrunner.telemetry.gate.destination", lambda subject, agent, served: subject
        ),
    ),
    Gate(
        name="plain names",
        holds_back="ids and names of models that are sentences",
        channel="span attributes",
        bites=_set("CallId", "ModelName"),
        runs=("odd_names",),
        remove=_replaced("hayrunner.telemetry.gate.plain_name", lambda value: value),
    ),
    Gate(
        name="reasons to stop",
        holds_back="those that there are none of",
        channel="span attributes",
        bites=_set("FinishReason"),
        runs=("odd_names",),
        kinds=("own", "openai"),
        remove=_replaced("hayrunner.telemetry.gate.finish_reason", lambda value: str(value)),
    ),
    Gate(
        name="codes in place of errors",
        holds_back="texts of exceptions",
        channel="span attributes",
        bites=_set("ProviderCode"),
        runs=("provider_4xx_here",),
        remove=_replaced("hayrunner.telemetry.gate.error_type", lambda error: repr(error)),
    ),
    Gate(
        name="no recorded exceptions",
        holds_back="texts and stacks of exceptions",
        channel="span events",
        bites=_set("ProviderCode"),
        runs=("provider_4xx_here",),
        remove=_recording,
    ),
    Gate(
        name="no texts of statuses",
        holds_back="texts of exceptions",
        channel="span status",
        bites=_set("ProviderCode"),
        runs=("provider_4xx_here",),
        remove=_status_with_text,
    ),
]


def _caller(name: str) -> Any:
    """A variable of the function that called the one that calls this."""
    return sys._getframe(2).f_locals[name]  # pyright: ignore[reportPrivateUsage]


# --- logs


def _cause_with_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def cause(error: BaseException) -> dict[str, str]:
        notes = getattr(error, "__notes__", None)
        return {"error_type": f"{error!r} {error.__cause__!r} {notes!r}"}

    for module in ("telemetry.log_records", "telemetry.unhandled", "serving.failures"):
        monkeypatch.setattr(f"hayrunner.{module}.cause_of", cause)


def _warnings_as_python_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    monkeypatch.setattr("hayrunner.telemetry.unhandled._warned", show)


def _threads_as_python_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hayrunner.telemetry.unhandled._ended_a_thread", threading.__excepthook__)


def _log_gate(name: str, holds_back: str, bites: frozenset[str], remove: Remove) -> Gate:
    return Gate(
        name=name,
        holds_back=holds_back,
        channel="log, another handler",
        bites=bites,
        runs=("with_history", "tool_error", "own_adapter"),
        remove=remove,
    )


_RECORDS = "hayrunner.telemetry.log_records"
_LOGS = [
    _log_gate(
        "the guard of records",
        "everything that libraries and tools log",
        _set("ToolArgument", "ToolException", "Cause", "Note", "Prompt"),
        _replaced("hayrunner.telemetry.logs.guard_records", lambda trusted: None),
    ),
    _log_gate(
        "arguments of records",
        "what is put into a message",
        _set("ToolArgument", "Prompt", "User"),
        _replaced(f"{_RECORDS}._kept_arguments", lambda args: args),
    ),
    _log_gate(
        "literal messages",
        "messages that are put together at run time",
        _set("ToolArgument", "Prompt"),
        _replaced(f"{_RECORDS}._is_literal", lambda text, path, func: True),
    ),
    _log_gate(
        "extra fields",
        "values that are logged beside a message",
        _set("ToolArgument", "Prompt"),
        _replaced(f"{_RECORDS}._with_kept_extras", lambda attributes: attributes),
    ),
    _log_gate(
        "exceptions of records",
        "their texts, causes and notes",
        _set("ToolException", "Cause", "Note"),
        _replaced(f"{_RECORDS}._kept_exception", lambda info: info),
    ),
    Gate(
        name="type and place of an exception",
        holds_back="its text, where only those are shown",
        channel="log, as JSON",
        bites=_set("ToolException", "Cause", "Note"),
        runs=("with_history", "tool_error", "own_adapter"),
        remove=_cause_with_text,
    ),
    Gate(
        name="warnings",
        holds_back="their texts",
        channel="process output",
        bites=_set("ToolArgument"),
        runs=("with_history",),
        remove=_warnings_as_python_shows_them,
    ),
    Gate(
        name="exceptions that end a thread",
        holds_back="their texts",
        channel="process output",
        bites=_set("ToolArgument"),
        runs=("tool_error",),
        remove=_threads_as_python_shows_them,
    ),
    Gate(
        name="exceptions that nobody can catch",
        holds_back="their texts",
        channel="process output",
        bites=_set("ToolArgument"),
        runs=("tool_error",),
        remove=_replaced("hayrunner.telemetry.unhandled._not_raised", sys.__unraisablehook__),
    ),
    Gate(
        name="fields of runs",
        holds_back="agents' names that are none",
        channel="log, as JSON",
        bites=_set("AgentText"),
        runs=("unknown_agent",),
        remove=_replaced("hayrunner.telemetry.log_fields._AGENT_NAME", re.compile(".*")),
    ),
    Gate(
        name="codes of the contract",
        holds_back="codes that authors make up",
        channel="log, as JSON",
        bites=_set("ErrorCode"),
        runs=("own_adapter",),
        remove=_replaced("hayrunner.adapters.session.wire_code", lambda error: error.code),
    ),
    Gate(
        name="addresses of NATS",
        holds_back="passwords in them",
        channel="log, as JSON",
        bites=_set("NatsPassword"),
        runs=("headless",),
        remove=_replaced("hayrunner.serving.app.shown_servers", lambda settings: settings.servers),
    ),
]

# --- metrics and messages


def _anthropics_own_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_OPEN_TELEMETRY", "ANTHROPIC_OPEN_TELEMETRY_PROPAGATION"):
        monkeypatch.delenv(name)


_OTHERS = [
    Gate(
        name="labels of agents",
        holds_back="agents that nobody serves",
        channel="metrics, Prometheus",
        bites=_set("AgentName", "AgentText"),
        runs=("unknown_agent",),
        remove=_replaced("hayrunner.telemetry.metrics.Metrics._agent", lambda self, agent: agent),
    ),
    Gate(
        name="labels of models",
        holds_back="models that a request asks for",
        channel="metrics, OpenTelemetry",
        bites=_set("AskedModel"),
        runs=("another_model",),
        remove=_replaced(
            "hayrunner.adapters.metering._configured_model",
            lambda generator, inputs: (getattr(generator, "generation_kwargs", None) or {}).get(
                "model", inputs.get("generation_kwargs", {}).get("model")
            ),
        ),
    ),
    Gate(
        name="headers that carry a trace",
        holds_back="baggage",
        channel="NATS headers",
        bites=_set("Baggage"),
        runs=("headless",),
        remove=_replaced(
            "hayrunner_contracts.otel._PROPAGATOR",
            CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()]),
        ),
    ),
    Gate(
        name="clients that trace by themselves",
        holds_back="baggage, and what a provider sends",
        channel="HTTP headers",
        bites=_set("Baggage"),
        runs=("other_generators",),
        remove=_anthropics_own_tracing,
        kinds=("own", "openai", "responses", "anthropic"),
    ),
]

GATES = {gate.name: gate for gate in (*_SPANS, *_LOGS, *_OTHERS)}
