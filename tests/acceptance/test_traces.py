"""Traces as an operator gets them: processes that export over the wire, and those that do not."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.otlp import Receiver
from tests.acceptance.processes import Run, Running, Serve
from tests.acceptance.scripted import SLOW_AGENT, chunk, slow_text, tool_turn

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.testing import eventually

SUPPORT = """
from hayrunner import Agent

def order(number: int) -> str:
    "Looks an order up."
    return f"order {number} is on its way"

class Support(Agent):
    name = "support"
    model = "scripted"
    tools = (order,)
    subagents = ("researcher",)
"""

RESEARCHER = """
from hayrunner import Agent

def look_up(name: str) -> str:
    "Looks a thing up."
    return f"{name} is blue"

class Researcher(Agent):
    name = "researcher"
    model = "scripted"
    tools = (look_up,)
"""

MODULES = """
import sys
from hayrunner import Agent

class Modules:
    async def run(self, messages, *, system_prompt=None, response_format=None):
        return " ".join(sorted(sys.modules))

class Support(Agent):
    name = "support"
    model = "none"
    def get_run_adapter(self, thread_id=None, user=None):
        return Modules()
"""


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


def target(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def turn(body: dict[str, Any]) -> Any:
    """Support looks an order up and asks the researcher, who looks something up, too."""
    names = [tool["function"]["name"] for tool in body.get("tools", [])]
    if any(message["role"] == "tool" for message in body["messages"]):
        return iter([chunk({"content": "It is blue."}), chunk({}, "stop")])
    if "researcher" in names:
        return tool_turn(order='{"number": 7}', researcher='{"task": "sentinel"}')
    return tool_turn(look_up='{"name": "tea"}')


async def ended(worker: Running) -> None:
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0, worker.errors


async def test_a_run_over_four_processes_is_one_trace_in_a_receiver(
    serve: Serve,
    run: Run,
    hayrunner: str,
    nats_server: EmbeddedServer,
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    async with ScriptedProvider(turn) as provider:
        settings = {
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": provider.base_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        }
        support = await serve(target(tmp_path, "support", SUPPORT), **settings)
        # Its name is the operator's to give.
        researcher = await serve(
            target(tmp_path, "researcher", RESEARCHER), OTEL_SERVICE_NAME="research", **settings
        )
        asked = await run(
            *(hayrunner, "ask", "support", "sentinel", "--nats", nats_server.url),
            **{**settings, "OTEL_SERVICE_NAME": "cli"},
        )
        assert asked.code == 0, asked
        assert "It is blue." in asked.out
        await ended(support)
        await ended(researcher)

    assert len({span.trace_id for span in receiver.spans}) == 1
    (tool,) = receiver.named("execute_tool look_up")
    assert receiver.path_of(tool) == [
        "execute_tool look_up",
        "invoke_agent researcher",
        "process agents.default.researcher.requests",
        "send agents.default.researcher.requests",
        "execute_tool researcher",
        "invoke_agent support",
        "process agents.default.support.requests",
        "send agents.default.support.requests",
    ]
    services = [
        (span.service, span.name.split()[0])
        for span in receiver.named("")
        if span.name.startswith(("send", "process", "invoke"))
    ]
    assert services == [
        ("cli", "send"),
        ("hayrunner", "process"),
        ("hayrunner", "invoke_agent"),
        ("hayrunner", "send"),
        ("research", "process"),
        ("research", "invoke_agent"),
    ]
    assert [span.kind for span in receiver.named("chat")] == ["SPAN_KIND_CLIENT"] * 4
    assert len(receiver.named("execute_tool")) == 3
    told = str([span.raw for span in receiver.spans])
    assert "sentinel" not in told
    assert "is blue" not in told


async def test_content_goes_over_the_wire_where_the_run_says_so(
    serve: Serve,
    run: Run,
    hayrunner: str,
    nats_server: EmbeddedServer,
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    async with ScriptedProvider([slow_text(0)]) as provider:
        worker = await serve(
            target(tmp_path, "slow", SLOW_AGENT),
            OPENAI_API_KEY="k",
            OPENAI_BASE_URL=provider.base_url,
            OTEL_TRACES_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{receiver.url}/v1/traces",
        )
        option = ["--option", "record_content_telemetry=true"]
        asked = await run(hayrunner, "ask", "slow", "sentinel", "--nats", nats_server.url, *option)
        assert asked.code == 0, asked
        await ended(worker)

    (chat,) = receiver.named("chat")
    (message,) = json.loads(chat.attributes["gen_ai.input.messages"])
    assert message == {"role": "user", "parts": [{"type": "text", "content": "sentinel"}]}
    # The command was not told to trace, so that the worker's is where the trace begins.
    assert receiver.path_of(chat) == [
        "chat scripted",
        "invoke_agent slow",
        "process agents.default.slow.requests",
    ]


async def test_the_demo_is_one_trace_where_traces_are_configured(
    run: Run, hayrunner: str, receiver: Receiver
) -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    shown, plain = await run(hayrunner, "demo", **given), await run(hayrunner, "demo")
    assert (shown.code, plain.code) == (0, 0), shown
    assert shown.out.splitlines()[1:] == plain.out.splitlines()[1:]

    assert len({span.trace_id for span in receiver.spans}) == 1
    for chat in receiver.named("chat"):
        assert receiver.path_of(chat)[1:] == [
            "invoke_agent shop",
            "process agents.default.shop.requests",
            "send agents.default.shop.requests",
        ]
    assert receiver.named("execute_tool")


@pytest.mark.parametrize(
    ("variables", "imported"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "{url}"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "{url}", "OTEL_SDK_DISABLED": "true"}, False),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "{url}",
                "OTEL_TRACES_EXPORTER": "none",
                "OTEL_METRICS_EXPORTER": "none",
            },
            False,
        ),
    ],
)
async def test_nothing_of_the_sdk_is_imported_unless_traces_are_configured(
    serve: Serve,
    run: Run,
    hayrunner: str,
    nats_server: EmbeddedServer,
    receiver: Receiver,
    tmp_path: Path,
    variables: dict[str, str],
    imported: bool,
) -> None:
    given = {name: value.format(url=receiver.url) for name, value in variables.items()}
    worker = await serve(target(tmp_path, "support", MODULES), **given)
    asked = await run(
        *(hayrunner, "ask", "support", "hi", "--answer", "--nats", nats_server.url), **given
    )
    assert asked.code == 0, asked
    await ended(worker)

    modules = asked.out.split()
    assert "hayrunner.serving.app" in modules
    sdk = [n for n in modules if n.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
    assert bool(sdk) is imported
    assert bool(receiver.spans) is imported


async def test_a_collector_that_is_away_holds_up_neither_runs_nor_the_end(
    serve: Serve,
    run: Run,
    hayrunner: str,
    nats_server: EmbeddedServer,
    tmp_path: Path,
) -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    worker = await serve(target(tmp_path, "support", MODULES), **given)
    asked = await run(
        *(hayrunner, "ask", "support", "hi", "--answer", "--nats", nats_server.url), **given
    )
    assert asked.code == 0, asked

    worker.send(signal.SIGTERM)
    assert await worker.ended(limit_s=20) == 0


async def test_what_was_traced_last_is_sent_before_the_end(
    serve: Serve,
    run: Run,
    hayrunner: str,
    nats_server: EmbeddedServer,
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    # A batch would wait for minutes.
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "300000"}
    worker = await serve(target(tmp_path, "support", MODULES), **given)
    asked = await run(hayrunner, "ask", "support", "hi", "--answer", "--nats", nats_server.url)
    assert asked.code == 0, asked
    assert receiver.spans == []

    await ended(worker)

    await eventually(lambda: len(receiver.spans) == 2, what="the spans of the one run")
