"""Starting runs, getting their results, commanding them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import nats
import pytest
from msgspec import UNSET

from hayrunner_contracts.client import NotProvisioned, ReadSettings, RunClient
from hayrunner_contracts.errors import (
    Cancelled,
    ClientTimeout,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    ProviderFailed,
    RunFailure,
    UnknownAgent,
)
from hayrunner_contracts.events import MessageStart, StreamEnd, TextChunk
from hayrunner_contracts.headers import MSG_ID
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.options import RunOptions
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import AGENT_REQUESTS, requests
from hayrunner_contracts.testing import eventually

if TYPE_CHECKING:
    from tests.integration.client.conftest import NatsServer, ScriptedWorker

Connect = Callable[..., Awaitable[RunClient]]
Start = Callable[[Any], "asyncio.Task[Any]"]


async def test_a_stream_yields_the_runs_events_in_order_and_ends(
    client: RunClient, worker: ScriptedWorker, script: Any, tasks: Start
) -> None:
    async def work() -> None:
        request = await worker.take("support")
        await worker.publish(request.message_id or "", script(request.message_id, 50))

    tasks(work())
    seen = [event async for event in client.stream("support", "Where is order 7?")]

    assert [event.seq for event in seen] == list(range(1, 54))
    assert isinstance(seen[0], MessageStart)
    assert isinstance(seen[-1], StreamEnd)


async def test_the_request_carries_what_the_caller_said(
    client: RunClient, worker: ScriptedWorker
) -> None:
    run = await client.submit(
        "support",
        "hi",
        thread_id="t1",
        user="u1",
        metadata={"order": "7"},
        timeout_s=30,
        include_messages=True,
        max_turns=3,
        temperature=None,
        options=RunOptions(max_turns=9, preamble="Be brief."),
    )
    request = await worker.take("support")

    assert request.message_id == run.message_id
    assert uuid.UUID(run.message_id).version == 7
    assert (request.prompt, request.thread_id, request.user) == ("hi", "t1", "u1")
    assert (request.metadata, request.timeout_s) == ({"order": "7"}, 30)
    assert request.include_messages
    assert request.options == RunOptions(max_turns=3, preamble="Be brief.", temperature=None)
    assert request.options.max_tokens is UNSET
    assert request.response_format is UNSET


async def test_messages_may_come_in_any_form(client: RunClient, worker: ScriptedWorker) -> None:
    await client.submit(
        "support", [ChatMessage.system("Be kind."), {"role": "user", "content": "hello"}]
    )
    request = await worker.take("support")

    assert request.messages is not None
    assert [message.role for message in request.messages] == ["system", "user"]
    assert request.messages[1].text == "hello"


async def test_a_run_returns_the_answer(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    async def work() -> None:
        request = await worker.take("support")
        assert request.mode == "answer"
        assert request.tools
        await worker.complete(request, "It is on its way.")

    working = tasks(work())
    assert await client.run("support", "Where is it?", tools=True) == "It is on its way."
    await working


async def test_a_failed_run_raises_its_error_with_the_result(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    async def work() -> None:
        request = await worker.take("support")
        await worker.publish_result(
            RunResult(
                message_id=request.message_id or "",
                agent="support",
                status="failed",
                answer="half an",
                error=RunFailure(code="provider_error", message="status 500", retryable=True),
            )
        )

    tasks(work())
    with pytest.raises(ProviderFailed, match="status 500") as raised:
        await client.run("support", "hi")

    assert raised.value.retryable
    assert raised.value.result.answer == "half an"


async def test_a_cancelled_run_raises_cancelled(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    async def work() -> None:
        request = await worker.take("support")
        await worker.publish_result(
            RunResult(message_id=request.message_id or "", agent="support", status="cancelled")
        )

    tasks(work())
    with pytest.raises(Cancelled):
        await client.run("support", "hi")


async def test_a_result_that_is_stored_is_returned_at_once(
    client: RunClient, worker: ScriptedWorker
) -> None:
    run = await client.submit("support", "hi")
    await worker.complete(await worker.take("support"), "stored")

    assert (await run.result(timeout=1)).answer == "stored"
    assert (await client.result(run.message_id, timeout=1)).answer == "stored"


async def test_a_result_that_is_still_to_come_is_waited_for(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    run = await client.submit("support", "hi")
    waiting = tasks(run.result())
    await worker.complete(await worker.take("support"), "later")

    assert (await waiting).answer == "later"


async def test_a_run_that_was_sent_before_is_not_queued_twice(
    client: RunClient, worker: ScriptedWorker, script: Any
) -> None:
    message_id = new_message_id()
    await client.submit("support", "hi", message_id=message_id)
    await worker.take("support")
    await worker.publish(message_id, script(message_id, 3))
    again = client.stream("support", "hi", message_id=message_id)

    assert [event.seq async for event in again] == [1, 2, 3, 4, 5, 6]
    assert (await worker.jetstream.stream_info(AGENT_REQUESTS)).state.messages == 0


@pytest.mark.parametrize("call", ["stream", "run", "submit"])
async def test_an_agent_that_nobody_ever_served_is_unknown_at_once(
    client: RunClient, worker: ScriptedWorker, call: str
) -> None:
    started = (
        anext(client.stream("nobody-home", "hi"))
        if call == "stream"
        else getattr(client, call)("nobody-home", "hi")
    )
    with pytest.raises(UnknownAgent, match="nobody-home"):
        await asyncio.wait_for(started, 5)

    assert (await worker.jetstream.stream_info(AGENT_REQUESTS)).state.messages == 0


async def test_an_agent_whose_workers_are_away_takes_durable_requests(
    client: RunClient, worker: ScriptedWorker
) -> None:
    run = await client.submit("support", "hi")

    assert (await worker.take("support")).message_id == run.message_id


async def test_a_full_queue_is_overloaded(bare_worker: ScriptedWorker, connect: Connect) -> None:
    await bare_worker.create_streams(max_msgs=1)
    await bare_worker.serve("support")
    client = await connect()
    await client.submit("support", "first")

    with pytest.raises(Overloaded) as raised:
        await client.submit("support", "second")
    assert raised.value.retryable


@pytest.mark.usefixtures("bare_worker")
async def test_a_server_without_the_streams_says_what_to_do(connect: Connect) -> None:
    client = await connect()

    with pytest.raises(NotProvisioned, match="hayrunner init"):
        await client.submit("support", "hi")
    with pytest.raises(NotProvisioned, match="hayrunner init"):
        await client.result(new_message_id())
    with pytest.raises(NotProvisioned, match="hayrunner init"):
        await client.cancel(new_message_id())
    with pytest.raises(NotProvisioned, match="hayrunner init"):
        await anext(client.attach(new_message_id()))


async def test_a_request_larger_than_the_client_may_send_is_refused_before_it_is_sent(
    server_of: Callable[..., NatsServer],
) -> None:
    server = server_of(config="max_payload: 16384")
    await server.start()
    settings = ReadSettings(max_blob_bytes=12_000)
    async with await RunClient.connect(server.url, settings=settings) as client:
        with pytest.raises(PayloadTooLarge):
            await client.submit("support", "x" * 12_500)
        assert client.connection.is_connected


async def test_a_client_that_may_not_look_for_consumers_sends_its_requests(
    server_of: Callable[..., NatsServer], worker_on: Callable[..., Awaitable[ScriptedWorker]]
) -> None:
    server = server_of(config=_RESTRICTED)
    await server.start()
    worker = await worker_on(server, user="worker", password="w")
    await worker.create_streams()
    await worker.serve("support")
    async with await RunClient.connect(server.url, user="client", password="c") as client:
        await client.submit("support", "hi")
        started = asyncio.get_running_loop().time()
        run = await client.submit("support", "hi again")
        assert asyncio.get_running_loop().time() - started < 0.5
        await worker.take("support")
        await worker.complete(await worker.take("support"), "seen")
        assert (await run.result()).answer == "seen"


_RESTRICTED = """
authorization: { users: [
  { user: worker, password: w },
  { user: client, password: c, permissions: {
      publish: ["agents.*.*.requests", "runs.*.*.commands", "$JS.API.DIRECT.GET.>"],
      subscribe: ["runs.>", "_INBOX.>"] } } ] }
"""


async def test_a_misspelled_option_is_refused_with_the_nearest_name(client: RunClient) -> None:
    misspelled: Any = {"max_turn": 3}
    with pytest.raises(TypeError, match="max_turns"):
        await client.submit("support", "hi", **misspelled)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("agent", "arguments"),
    [
        ("sup.port", {}),
        ("support", {"message_id": "not-a-uuid"}),
        ("support", {"thread_id": "a b"}),
        ("support", {"max_turns": -1}),
        ("support", {"metadata": {"n": 1}}),
    ],
)
async def test_what_a_worker_would_refuse_is_refused_here(
    client: RunClient, agent: str, arguments: Any
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await client.submit(agent, "hi", **arguments)
    assert raised.value.field is not None


async def test_calls_end_at_their_timeout(client: RunClient, worker: ScriptedWorker) -> None:
    with pytest.raises(ClientTimeout):
        await client.run("support", "hi", timeout=0.2)
    with pytest.raises(ClientTimeout):
        await client.result(new_message_id(), timeout=0.2)
    with pytest.raises(ClientTimeout):
        await anext(client.stream("support", "hi", timeout=0.2))
    with pytest.raises(ClientTimeout):
        await anext(client.attach(new_message_id(), timeout=0.2))


async def test_an_existing_connection_is_used_and_left_open(
    worker: ScriptedWorker, server: NatsServer, script: Any
) -> None:
    connection = await nats.connect(server.url)
    async with RunClient(connection, namespace="default") as client:
        run = await client.submit("support", "hi")
        await worker.take("support")
        await worker.publish(run.message_id, script(run.message_id, 1))
        assert len([event async for event in run.events()]) == 4
    assert connection.is_connected
    await connection.close()


async def test_namespaces_are_kept_apart(worker: ScriptedWorker, connect: Connect) -> None:
    client = await connect(namespace="staging")

    with pytest.raises(UnknownAgent, match="staging"):
        await client.submit("support", "hi")


async def test_plain_json_from_any_client_is_the_same_request(
    client: RunClient, worker: ScriptedWorker, script: Any
) -> None:
    message_id = str(uuid.uuid4())
    body = {"message_id": message_id, "prompt": "hi", "options": {"temperature": None}}
    await worker.jetstream.publish(
        requests("default", "support"), json.dumps(body).encode(), headers={MSG_ID: message_id}
    )
    request = await worker.take("support")
    await worker.publish(message_id, script(message_id, 2))

    assert request.options == RunOptions(temperature=None)
    seen = [event async for event in client.attach(message_id)]
    assert [event.content for event in seen if isinstance(event, TextChunk)] == [
        "piece 0 ",
        "piece 1 ",
    ]


async def test_a_client_closes_quickly_and_its_readers_say_so(
    worker: ScriptedWorker, server: NatsServer, tasks: Start
) -> None:
    client = await RunClient.connect(server.url)
    reading = tasks(anext(client.stream("support", "hi")))
    await worker.take("support")
    started = asyncio.get_running_loop().time()
    await client.close()

    with pytest.raises(ConnectionError):
        await reading
    assert asyncio.get_running_loop().time() - started < 1


async def test_no_server_is_a_connection_error(server_of: Callable[..., NatsServer]) -> None:
    server = server_of()
    await server.start()
    server.stop()

    with pytest.raises(ConnectionError):
        await RunClient.connect(server.url, timeout=0.3)


async def test_a_client_closes_quickly_while_the_server_is_away(
    worker: ScriptedWorker, server: NatsServer, connect: Connect
) -> None:
    client = await connect()
    server.stop()
    await eventually(lambda: not client.connection.is_connected)
    started = asyncio.get_running_loop().time()
    await client.close()

    assert asyncio.get_running_loop().time() - started < 2.5
