"""Direct requests: answered at once, or refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from nats.aio.msg import Msg

from hayrunner_contracts.client import ReadSettings, RunClient
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import (
    ClientTimeout,
    DeadlineExceeded,
    Overloaded,
    PayloadTooLarge,
    RunFailure,
    UnknownAgent,
)
from hayrunner_contracts.following import EventsLost
from hayrunner_contracts.headers import STATUS_CODE
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import ask

if TYPE_CHECKING:
    from tests.integration.client.conftest import NatsServer, ScriptedWorker

Connect = Callable[..., Awaitable[RunClient]]
Script = Callable[..., list[Any]]


def outcome(request: RunRequest, **fields: Any) -> bytes:
    fields = {"status": "completed", **fields}
    return encode(RunResult(message_id=request.message_id or "", agent="support", **fields))


async def test_an_ask_returns_the_one_result(client: RunClient, worker: ScriptedWorker) -> None:
    seen: list[tuple[RunRequest, Any]] = []

    async def reply(message: Msg, request: RunRequest) -> None:
        seen.append((request, message.headers))
        await message.respond(outcome(request, answer=f"You said {request.prompt}"))

    await worker.answer_asks("support", reply)
    result = await client.ask("support", "hi", tools=True, headers={"traceparent": "00-a-b-01"})

    assert result.answer == "You said hi"
    [(request, headers)] = seen
    assert (request.mode, request.tools) == ("answer", True)
    assert headers == {"traceparent": "00-a-b-01"}


async def test_a_streamed_ask_yields_events_until_the_end(
    client: RunClient, worker: ScriptedWorker, server: NatsServer, script: Script
) -> None:
    async def reply(message: Msg, request: RunRequest) -> None:
        assert request.mode == "stream"
        for event in script(request.message_id, 200):
            await message.respond(encode(event))

    await worker.answer_asks("support", reply)
    seen = [event.seq async for event in client.ask_stream("support", "hi")]

    assert seen == list(range(1, 204))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_ask_raises_its_error(
    client: RunClient, worker: ScriptedWorker, stream: bool
) -> None:
    async def reply(message: Msg, request: RunRequest) -> None:
        failure = RunFailure(code="deadline_exceeded", message="too late")
        await message.respond(outcome(request, status="failed", error=failure))

    await worker.answer_asks("support", reply)
    with pytest.raises(DeadlineExceeded, match="too late") as raised:
        await asyncio.wait_for(_asked(client, stream), 5)
    assert raised.value.result.status == "failed"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body", [b"", encode(RunFailure(code="overloaded", message="no free slot", retryable=True))]
)
async def test_a_worker_without_a_free_slot_is_overloaded(
    client: RunClient, worker: ScriptedWorker, stream: bool, body: bytes
) -> None:
    async def reply(message: Msg, _: RunRequest) -> None:
        await worker.connection.publish(message.reply, body, headers={STATUS_CODE: "overloaded"})

    await worker.answer_asks("support", reply)
    with pytest.raises(Overloaded) as raised:
        await asyncio.wait_for(_asked(client, stream), 5)
    assert raised.value.retryable


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_without_a_worker_is_overloaded_at_once(
    client: RunClient, stream: bool
) -> None:
    with pytest.raises(Overloaded, match="no worker"):
        await asyncio.wait_for(_asked(client, stream), 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_nobody_ever_served_is_unknown_at_once(
    client: RunClient, stream: bool
) -> None:
    with pytest.raises(UnknownAgent):
        await asyncio.wait_for(_asked(client, stream, "nobody-home"), 2)


async def test_a_server_without_jetstream_can_be_asked(
    server_of: Callable[..., NatsServer],
) -> None:
    server = server_of(jetstream=False)
    await server.start()
    async with await RunClient.connect(server.url) as client:
        with pytest.raises(Overloaded):
            await asyncio.wait_for(client.ask("support", "hi"), 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_ask_without_an_answer_ends_at_its_timeout(
    client: RunClient, worker: ScriptedWorker, stream: bool
) -> None:
    async def reply(_: Msg, __: RunRequest) -> None:
        """Say nothing."""

    await worker.answer_asks("support", reply)
    with pytest.raises(ClientTimeout):
        await _asked(client, stream, timeout=0.2)


async def test_an_event_of_a_streamed_ask_that_was_missed_is_said_to_be_lost(
    client: RunClient, worker: ScriptedWorker, script: Script
) -> None:
    async def reply(message: Msg, request: RunRequest) -> None:
        run = script(request.message_id, 5)
        for event in (*run[:2], *run[3:]):
            await message.respond(encode(event))

    await worker.answer_asks("support", reply)
    with pytest.raises(EventsLost) as raised:
        await asyncio.wait_for(_asked(client, stream=True), 5)
    assert (raised.value.first, raised.value.last) == (3, 3)


async def test_a_request_larger_than_the_client_may_send_is_not_sent(
    server_of: Callable[..., NatsServer],
) -> None:
    server = server_of(config="max_payload: 16384")
    await server.start()
    settings = ReadSettings(max_blob_bytes=12_000)
    async with await RunClient.connect(server.url, settings=settings) as client:
        with pytest.raises(PayloadTooLarge):
            await client.ask("support", "x" * 12_500)
        with pytest.raises(PayloadTooLarge):
            await anext(client.ask_stream("support", "x" * 12_500))
        assert await server.subscribers(ask("default", "support")) == 0


async def _asked(
    client: RunClient, stream: bool, agent: str = "support", **arguments: Any
) -> object:
    if stream:
        return [event async for event in client.ask_stream(agent, "hi", **arguments)]
    return await client.ask(agent, "hi", **arguments)
