"""Everything a run goes through, in one process: a nats-server with a password, two workers, models
on loopback, a requester that traces, and whatever of it can be seen from outside, captured."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any

import nats
import pytest
from anthropic import AsyncAnthropic
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator
from nats.aio.client import Client
from nats.aio.msg import Msg
from opentelemetry import baggage, context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.sweep.agents import agents_over, moving_agent
from tests.sweep.capture import Captured
from tests.sweep.logging_caught import caught_logs, everything_at_debug
from tests.sweep.model import scripted
from tests.sweep.sentinels import mark

from hayrunner.agent import Agent
from hayrunner.embedded import EmbeddedServer
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.serving.claims import Claims
from hayrunner.serving.stored import messages_of
from hayrunner.serving.sweeper import Sweeper
from hayrunner.settings import Settings
from hayrunner.telemetry.gate import ContentPolicy
from hayrunner.telemetry.noting_provider import NotingProvider
from hayrunner.telemetry.tracer import start_tracing, stop_tracing
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.otel import OpenTelemetryTracing
from hayrunner_contracts.read_settings import ReadSettings
from hayrunner_contracts.testing import eventually

__all__ = ["KEY", "PASSWORD", "Stage", "open_stage", "without_key"]

KEY, PASSWORD = mark("ApiKey", 0), mark("NatsPassword", 0)
KINDS = ("own", "openai", "responses", "anthropic")


class Stage:
    """One sweep: `play` runs on it, and what was `captured` once it is closed."""

    def __init__(self, captured: Captured, policy: ContentPolicy) -> None:
        self.captured = captured
        self.exporter = InMemorySpanExporter()
        self.provider = NotingProvider(
            Resource({"service.name": "hayrunner"}), self.exporter, SimpleSpanProcessor
        )
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.policy = policy
        self.server = EmbeddedServer(arguments=("--user", "sweep", "--pass", PASSWORD))
        self.models: dict[str, ScriptedProvider] = {}
        self.generators: dict[str, Any] = {}
        self.workers: list[Worker] = []
        self.nc: Client
        self.client: RunClient
        self._numbers = 0
        self._stack = AsyncExitStack()

    def number(self) -> int:
        """The number of one more run."""
        self._numbers += 1
        return self._numbers

    @property
    def url(self) -> str:
        password = mark("NatsPassword", 0)
        return self.server.url.replace("nats://", f"nats://sweep:{password}@")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    async def serve(self, *agents: Agent, **settings: Any) -> Worker:
        given: dict[str, Any] = {
            "port": -1,
            "drain_timeout_s": 0.2,
            "park_after_s": 0.3,
            "storage": "memory",
        }
        worker = Worker(Settings(nats_url=self.url, **(given | settings)), Registry(agents))
        self.workers.append(worker)
        await self._stack.enter_async_context(worker)
        return worker

    async def open(self, *, kinds: tuple[str, ...] = KINDS) -> None:
        """Start all of it."""
        enter = self._stack.enter_async_context
        await enter(self.server)
        for kind in kinds:
            self.models[kind] = await enter(ScriptedProvider(scripted(kind)))
            self.generators[kind] = _generator(kind, self.models[kind])
            self._stack.push_async_callback(self.generators[kind].close_async)
        self.nc = await nats.connect(self.url)
        self._stack.push_async_callback(self.nc.close)
        await self.nc.subscribe(">", cb=self._note, pending_bytes_limit=0)
        await self.nc.flush()
        near, far = agents_over(_all_kinds(self.generators))
        await self.serve(*near)
        await self.serve(*far)
        self.client = RunClient(
            self.nc,
            tracing=OpenTelemetryTracing(self.provider),
            settings=ReadSettings(max_blob_bytes=2_000_000),
        )
        everything_at_debug()

    async def close(self) -> None:
        """End all of it, and take what is left to be taken."""
        try:
            await self._end_workers()
        finally:
            await self._stack.aclose()
        self.read()

    async def _end_workers(self) -> None:
        for worker in self.workers:
            worker.stop()
        await asyncio.gather(*(worker.shutdown() for worker in self.workers))
        for worker in self.workers:
            self.captured.add("metrics, Prometheus", "text", worker.metrics.exposition().decode())
        await self.nc.flush()
        for stream in await self.nc.jetstream().streams_info():
            # Pieces of large content were seen when they came by.
            name = stream.config.name or ""
            if stream.config.allow_direct and not name.startswith("OBJ_"):
                async for message in messages_of(self.nc, name, ">"):
                    self.captured.add_message(message.subject, message.headers)

    def read(self) -> None:
        """What can be read once everything is closed."""
        for model in self.models.values():
            for request in model.requests:
                self.captured.add_request(request.path, without_key(request.headers))
        for span in self.spans:
            self.captured.add_span(span)
        if (data := self.reader.get_metrics_data()) is not None:
            self.captured.add("metrics, OpenTelemetry", "json", data.to_json())
        self.provider.shutdown()
        self.meters.shutdown()

    async def parked(self, message_id: str) -> None:
        """Wait until the run has given up its slot."""
        claims = Claims(
            await self.nc.jetstream().key_value("RUNS"), namespace="default", worker="w"
        )

        async def is_parked() -> bool:
            found = await claims.find(message_id)
            return found is not None and found[0].parked is not None

        await eventually(is_parked, 20, what="the run to be parked")

    @asynccontextmanager
    async def moving(self) -> AsyncGenerator[Callable[[int], Awaitable[None]]]:
        """A worker of the agent `moving`; called with the number of a run, another one takes that
        over, in the middle of its second model call."""
        first = await self.serve(moving_agent(self.generators["own"]), drain_timeout_s=0.0)

        async def move(number: int) -> None:
            told = mark("ToolResult", number)

            def is_hanging() -> bool:
                requests = self.models["own"].requests
                return any(told in str(r.body["messages"]) and r.emitted for r in requests)

            await eventually(is_hanging, 20, what="the second model call")
            first.stop()
            await first.shutdown()
            await self.serve(moving_agent(self.generators["own"]))

        yield move

    async def _note(self, message: Msg) -> None:
        self.captured.add_message(message.subject, message.headers)


def _all_kinds(made: Mapping[str, Any]) -> dict[str, Any]:
    """For agents that are not used, any generator will do."""
    return {kind: made.get(kind, made["own"]) for kind in KINDS}


def without_key(headers: Mapping[str, str]) -> dict[str, str]:
    """The key belongs into the one header that it is sent in, and there alone."""
    kept: dict[str, str] = {}
    for name, value in headers.items():
        if name.lower() in ("authorization", "x-api-key"):
            assert KEY in value
            value = value.replace(KEY, "", 1)
        kept[name] = value
    return kept


def _generator(kind: str, model: ScriptedProvider) -> Any:
    key = Secret.from_token(mark("ApiKey", 0))
    if kind == "anthropic":
        generator = AnthropicChatGenerator(model="m", api_key=key, max_retries=0)
        # It takes no address: the client that it would make is made here.
        generator.async_client = AsyncAnthropic(api_key=KEY, base_url=model.root_url, max_retries=0)
        return generator
    made: Any = {
        "own": OpenAICompatibleChatGenerator,
        "openai": OpenAIChatGenerator,
        "responses": OpenAIResponsesChatGenerator,
    }[kind]
    return made(model="m", api_key=key, api_base_url=model.base_url, max_retries=0)


@asynccontextmanager
async def open_stage(
    monkeypatch: pytest.MonkeyPatch,
    *,
    policy: ContentPolicy | None = None,
    kinds: tuple[str, ...] = KINDS,
) -> AsyncGenerator[Stage]:
    """A stage, open; closed and read at the end. The requester has baggage that goes nowhere."""
    captured = Captured()
    stage = Stage(captured, policy or ContentPolicy())
    monkeypatch.setattr(
        "hayrunner.telemetry.metrics.meter_of_the_process",
        lambda: stage.meters.get_meter("hayrunner"),
    )
    # So that requests for agents that nobody serves need not be waited for.
    often = functools.partial(Sweeper, interval_s=0.1)
    monkeypatch.setattr("hayrunner.serving.parts.Sweeper", often)
    monkeypatch.setattr("hayrunner.serving.sweeper._GRACE_S", 0.1)
    # What a library traces by itself goes there, as under `hayrunner serve`.
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: stage.provider)
    with ExitStack() as stack:
        stack.enter_context(caught_logs(captured))
        start_tracing(stage.provider, stage.policy)
        stack.callback(stop_tracing)
        stack.enter_context(_carrying(mark("Baggage", 0)))
        try:
            await stage.open(kinds=kinds)
            yield stage
        finally:
            await asyncio.shield(stage.close())


@contextmanager
def _carrying(text: str) -> Generator[None]:
    token = context.attach(baggage.set_baggage("who", text))
    try:
        yield
    finally:
        context.detach(token)
