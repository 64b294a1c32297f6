"""The same of a worker that is a process: what it exports over the wire, logs, prints, shows as
metrics, and is called with. Runs with and without content, one after the other."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import nats
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.acceptance.conftest import HAYRUNNER, environment, start, temporary
from tests.acceptance.processes import Start
from tests.sweep.capture import Captured, span_kind
from tests.sweep.model import scripted
from tests.sweep.playing import play
from tests.sweep.stage import KEY, PASSWORD, Stage, without_key
from tests.sweep.sweeps import OFF, ON
from tests.sweep.ways import WAYS, leaks

from hayrunner.telemetry.gate import ContentPolicy
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient

__all__ = ["environment", "start", "temporary"]

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
TARGET = f"""
import logging, sys
sys.path.insert(0, {str(ROOT)!r})
from hayrunner import Registry
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.settings import load_settings
from haystack.components.generators.chat import OpenAIChatGenerator
from tests.sweep.agents import agents_over
from tests.sweep.logging_caught import everything_at_debug

own = OpenAICompatibleChatGenerator(
    model="m", api_base_url=load_settings().openai_base_url
)
openai = OpenAIChatGenerator(model="m")
near, far = agents_over({{"own": own, "openai": openai, "responses": own, "anthropic": own}})
registry = Registry([*near, *far])
everything_at_debug()
"""
PLAYED = (
    *("with_history", "headless", "direct", "thread", "sources", "subagent_here", "denied"),
    *("tool_error", "unknown_tool", "invalid_arguments", "odd_names", "provider_4xx_here"),
    *("hook_stops", "hook_raises", "cancel", "deadline", "structured_fails", "own_adapter"),
    *("bad_requests", "bad_commands"),
)


class Receiver:
    """Takes whatever is exported, as it comes."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append((request.path, await request.read()))
        return web.Response(content_type="application/x-protobuf")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/{rest:.*}", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield receiver
    await runner.cleanup()


async def test_a_process_leaks_nothing_and_keeps_what_it_may(
    start: Start, receiver: Receiver, tmp_path: Path
) -> None:
    target = tmp_path / "served.py"
    target.write_text(TARGET)
    captured = Captured()
    stage = Stage(captured, ContentPolicy())
    async with stage.server as server, ScriptedProvider(scripted("own")) as model:
        command = (HAYRUNNER, "serve", str(target), "--nats", server.url, "--port", "0", "--json")
        worker = await start(
            *command,
            OPENAI_API_KEY=KEY,
            OPENAI_BASE_URL=model.base_url,
            HAYRUNNER_NATS_USER="sweep",
            HAYRUNNER_NATS_PASSWORD=PASSWORD,
            HAYRUNNER_LOG_LEVEL="DEBUG",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            PYTHONASYNCIODEBUG="1",
            PYTHONWARNINGS="always",
        )
        await worker.said("worker ready")
        captured.add("process arguments", "cmdline", _arguments(worker.pid))
        stage.models["own"] = model
        stage.nc = await nats.connect(stage.url)
        stage.client = RunClient(stage.nc)
        off = await play(stage, PLAYED, OFF, at_once=4)
        kept = await play(stage, PLAYED, ON, at_once=4)
        async with aiohttp.ClientSession() as http, http.get(_address(worker.errors)) as metrics:
            captured.add("metrics, Prometheus", "text", await metrics.text())
        await stage.nc.close()
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0, worker.errors
        for request in model.requests:
            captured.add_request(request.path, without_key(request.headers))
    for line in worker.errors.splitlines():
        captured.add("log, as JSON", "line", json.dumps(json.loads(line)))
    assert worker.process.stdout is not None
    captured.add("process output", "stdout", (await worker.process.stdout.read()).decode())
    _add_exported(captured, receiver.bodies)

    hits = list(captured.hits())
    assert leaks(hits, keeps=True) == []
    found = {hit.found for hit in hits if WAYS[hit.found.what].kind == "content"}
    assert {one.run for one in found} & off.keys() == set()
    assert {one.run for one in found} - {0} == kept.keys() - _silent(kept)
    assert {"Prompt", "Preamble", "Reasoning", "ToolResult", "Source", "SubAnswer"} <= {
        one.what for one in found
    }
    for channel in ("span attributes", "log, as JSON", "metrics, Prometheus", "HTTP headers"):
        assert captured.amounts[channel] > 0, channel
    assert len(captured.of("log, as JSON")) > 300
    # No line of it is anything but a record.
    assert captured.of("process output") == [""]
    assert any(path.endswith("/metrics") for path, _ in receiver.bodies)


def _arguments(pid: int) -> str:
    """As everybody on the machine can see them; empty where there is no /proc."""
    file = Path(f"/proc/{pid}/cmdline")
    return file.read_text() if file.exists() else ""


def _silent(runs: dict[int, str]) -> set[int]:
    """Those that have no content to be kept: they end before anything is said."""
    silent = ("bad_requests", "hook_stops")
    return {number for number, name in runs.items() if name in silent}


def _address(log: str) -> str:
    ready = next(json.loads(line) for line in log.splitlines() if "worker ready" in line)
    return f"{ready['http']}/metrics"


def _add_exported(captured: Captured, bodies: list[tuple[str, bytes]]) -> None:
    """Spans by their parts; everything else that was exported as the bytes it is."""
    for path, body in bodies:
        if not path.endswith("/traces"):
            captured.add("metrics, OpenTelemetry", "bytes", body.decode("latin-1"))
            continue
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    kind = span_kind(span.name)
                    for item in span.attributes:
                        place = f"{kind}: {item.key}"
                        captured.add("span attributes", place, str(item))
                    del span.attributes[:]
        # What is left once the attributes are taken out.
        captured.add("span resources", "bytes", sent.SerializeToString().decode("latin-1"))
