"""Workers that go away while runs are going on: told to, or killed."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.processes import Running, Serve
from tests.acceptance.scripted import SLOW_AGENT, slow_text, text_of_slow_run

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.events import RunResumed, TextChunk
from hayrunner_contracts.following import Event, MessageBuilder
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import RUN_RESULTS
from hayrunner_contracts.testing import assert_valid_stream, eventually

RUNS = 12


class Watched:
    """A run that is being read."""

    def __init__(self, client: RunClient, message_id: str) -> None:
        self.events: list[Event] = []
        self.message_id = message_id
        self._client = client
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self._client.attach(self.message_id, timeout=30):
            self.events.append(event)

    @property
    def has_begun(self) -> bool:
        return any(isinstance(event, TextChunk) for event in self.events)

    async def finished(self) -> tuple[MessageBuilder, RunResult]:
        """The message that a consumer is left with, and the one result."""
        async with asyncio.timeout(40):
            await self._reading
            result = await self._client.result(self.message_id, timeout=10)
        assert_valid_stream(self.events)
        message = MessageBuilder()
        for event in self.events:
            message.add(event)
        return message, result


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "slow.py"
    target.write_text(SLOW_AGENT)
    return target


async def begin(client: RunClient, count: int) -> list[Watched]:
    """Runs that have all begun to stream."""
    handles = await asyncio.gather(*(client.submit("slow", f"run {n}") for n in range(count)))
    runs = [Watched(client, handle.message_id) for handle in handles]
    await eventually(lambda: all(run.has_begun for run in runs), 20, what="every run to stream")
    return runs


async def results_stored(client: RunClient) -> int:
    info = await client.connection.jetstream().stream_info(RUN_RESULTS)
    # The stream keeps the last per subject; a second result of a run shows in the sequence.
    assert info.state.last_seq == info.state.messages
    return info.state.messages


async def start_worker(
    serve: Serve, target: Path, provider: ScriptedProvider, **more: str
) -> Running:
    return await serve(
        target,
        OPENAI_API_KEY="k",
        OPENAI_BASE_URL=provider.base_url,
        HAYRUNNER_ACK_WAIT_S="1",
        **more,
    )


async def test_runs_that_end_within_the_drain_end_where_they_are(
    serve: Serve, target: Path, nats_server: EmbeddedServer
) -> None:
    async with (
        ScriptedProvider(_slow(2)) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        worker = await start_worker(serve, target, provider)
        runs = await begin(client, RUNS)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        for run in runs:
            message, result = await run.finished()
            assert message.text == text_of_slow_run()
            assert (result.status, result.attempts) == ("completed", 1)
        assert await results_stored(client) == RUNS
        assert len(provider.requests) == RUNS


async def test_runs_that_outlast_the_drain_are_finished_by_another_worker(
    serve: Serve, target: Path, nats_server: EmbeddedServer
) -> None:
    async with (
        ScriptedProvider(_slow(6)) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        leaving = await start_worker(serve, target, provider, HAYRUNNER_DRAIN_TIMEOUT_S="0.3")
        runs = await begin(client, RUNS)
        staying = await start_worker(serve, target, provider)
        leaving.send(signal.SIGTERM)
        assert await leaving.ended() == 0
        outcomes = [await run.finished() for run in runs]
        assert [message.text for message, _ in outcomes] == [text_of_slow_run()] * RUNS
        assert {result.status for _, result in outcomes} == {"completed"}
        assert await results_stored(client) == RUNS
        assert any(isinstance(event, RunResumed) for run in runs for event in run.events)
        staying.send(signal.SIGTERM)
        assert await staying.ended() == 0


async def test_a_killed_workers_run_is_taken_over_from_its_start(
    serve: Serve, target: Path, nats_server: EmbeddedServer
) -> None:
    async with (
        ScriptedProvider(_slow(6)) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        killed = await start_worker(serve, target, provider)
        (run,) = await begin(client, 1)
        await start_worker(serve, target, provider)
        killed.send(signal.SIGKILL)
        await killed.ended()
        message, result = await run.finished()
        resumed = [event for event in run.events if isinstance(event, RunResumed)]
        assert [event.attempt for event in resumed] == [2]
        assert message.text == text_of_slow_run()
        assert message.finish_reason == "stop"
        assert (result.status, result.attempts, result.answer) == ("completed", 2, message.text)
        assert await results_stored(client) == 1


def _slow(seconds: float) -> Callable[[dict[str, Any]], Any]:
    return lambda _: slow_text(seconds)
