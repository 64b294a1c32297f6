"""Workers that are killed in the middle of a run with tools: what was done is not done again."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.processes import Serve
from tests.acceptance.scripted import calls_turn, slow_text, text_of_slow_run

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.events import RunResumed, ToolExecutionCommitted
from hayrunner_contracts.following import Event, MessageBuilder
from hayrunner_contracts.testing import assert_valid_stream, eventually

AGENT = """
import asyncio, json, os
from hayrunner import Agent, current_tool_call

def note(what, name):
    with open(os.environ["JOURNAL"], "a") as journal:
        key = current_tool_call().idempotency_key
        journal.write(json.dumps([what, name, key]) + "\\n")

async def work(name: str) -> str:
    '''Work.'''
    note("began", name)
    while name.startswith("slow") and not os.path.exists(os.environ["GATE"]):
        await asyncio.sleep(0.02)
    note("ended", name)
    return "did " + name

class Worker(Agent):
    name = "works"
    model = "scripted"
    tools = [work]
    tool_concurrency = 4
"""


class Journal:
    """What the tools wrote down."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal"
        self.path.touch()

    def of(self, what: str) -> list[tuple[str, str]]:
        """Name and key of each call that began, or ended, in that order."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [(name, key) for kind, name, key in lines if kind == what]


def _turns(body: dict[str, Any]) -> Any:
    """Two steps of tools, then a text. Every call has another id each time it is asked for."""
    done = sum(1 for message in body["messages"] if message["role"] == "assistant")
    if done == 2:
        return slow_text(0.5)
    names = ["one"] if done == 0 else ["quick", "slow-a", "slow-b"]
    return calls_turn("work", *({"name": name} for name in names))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def _settings(
    provider: ScriptedProvider, journal: Journal, gate: Path, **more: str
) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": provider.base_url,
        "JOURNAL": str(journal.path),
        "GATE": str(gate),
        **more,
    }


async def test_a_killed_workers_run_goes_on_from_its_last_step(
    serve: Serve, tmp_path: Path, journal: Journal, nats_server: EmbeddedServer
) -> None:
    target, gate = tmp_path / "works.py", tmp_path / "gate"
    target.write_text(AGENT)
    async with (
        ScriptedProvider(_turns) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        settings = _settings(provider, journal, gate, HAYRUNNER_ACK_WAIT_S="1")
        killed = await serve(target, **settings)
        run = await client.submit("works", "go")
        await eventually(lambda: len(journal.of("began")) == 4, what="the second step's tools")
        await eventually(lambda: len(journal.of("ended")) == 2, what="the quick one's end")
        killed.send(signal.SIGKILL)
        await killed.ended()
        gate.touch()
        await serve(target, **settings)

        events: list[Event] = [event async for event in run.events(timeout=30)]
        result = await run.result()

    assert (result.status, result.attempts, result.answer) == ("completed", 2, text_of_slow_run())
    began = journal.of("began")
    assert [name for name, _ in began].count("one") == 1
    # The interrupted step's calls run again, under the keys they had.
    for name in ("quick", "slow-a", "slow-b"):
        keys = [key for called, key in began if called == name]
        assert (len(keys), len(set(keys))) == (2, 1)
    # The model was not asked again for what it had said.
    assert len(provider.requests) == 3
    assert_valid_stream(events)
    message = MessageBuilder()
    for event in events:
        message.add(event)
    assert message.text == text_of_slow_run()
    assert [call.output for call in message.tool_calls] == [
        f"did {name}" for name in ("one", "quick", "slow-a", "slow-b")
    ]
    (resumed,) = [event for event in events if isinstance(event, RunResumed)]
    first = next(event for event in events if isinstance(event, ToolExecutionCommitted))
    assert resumed.discard_after > first.seq


async def test_a_worker_that_drains_lets_the_tools_of_a_step_end_first(
    serve: Serve, tmp_path: Path, journal: Journal, nats_server: EmbeddedServer
) -> None:
    target, gate = tmp_path / "works.py", tmp_path / "gate"
    target.write_text(AGENT)
    async with (
        ScriptedProvider(_turns) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        settings = _settings(provider, journal, gate, HAYRUNNER_DRAIN_TIMEOUT_S="0.1")
        leaving = await serve(target, **settings)
        run = await client.submit("works", "go")
        await eventually(lambda: len(journal.of("began")) == 4, what="the second step's tools")
        await serve(target, **settings)
        leaving.send(signal.SIGTERM)
        await leaving.said("waiting for the tools of runs to end")
        gate.touch()
        assert await leaving.ended() == 0
        result = await run.result()

    assert (result.status, result.attempts) == ("completed", 1)
    assert len(journal.of("began")) == len(journal.of("ended")) == 4
    assert len(provider.requests) == 3
