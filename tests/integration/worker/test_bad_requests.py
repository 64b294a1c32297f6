"""What cannot be run is answered, kept as a dead letter, and leaves the worker alive."""

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from tests.contracts.bad_requests import BAD_REQUESTS
from tests.integration.worker.conftest import Requester, Serve, kinds
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner_contracts.codec import peek_message_id
from hayrunner_contracts.stream_rules import check_stream
from hayrunner_contracts.subjects import derived_message_id
from hayrunner_contracts.testing import eventually


@pytest.fixture
def server_arguments(tmp_path: Path) -> tuple[str, ...]:
    """A server that takes more than the worker does: the table has a body of 2 MB."""
    config = tmp_path / "server.conf"
    config.write_text("max_payload: 8388608")
    return ("-c", str(config))


async def test_every_bad_request_is_answered_with_its_code_and_field(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent()
    await serve(agent)
    for bad in BAD_REQUESTS:
        # An id of its own for each, where the table's is not the point.
        sequence = await requester.publish_raw(bad.data)
        message_id = peek_message_id(bad.data) or derived_message_id("AGENT_REQUESTS", sequence)
        result = await requester.ended(message_id)
        error = result.error
        assert error is not None, bad.name
        assert (bad.name, error.code, error.field) == (bad.name, bad.code, bad.field)
        assert bad.message in error.message, bad.name
        assert check_stream(requester.events[message_id]) == [], bad.name

    assert agent.started == []
    await eventually(requester.queue_is_empty, what="an empty queue")
    assert await requester.count("DEAD_RUNS") == len(BAD_REQUESTS)
    good = await requester.publish()
    assert (await requester.ended(good)).status == "completed"


async def test_a_dead_letter_has_the_original_bytes_headers_and_the_reason(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    message_id = str(uuid.uuid4())
    data = json.dumps({"message_id": message_id, "promt": "hi"}).encode()
    await requester.js.publish(
        "agents.default.support.requests",
        data,
        headers={"Nats-Msg-Id": message_id, "traceparent": "00-abc"},
    )
    await requester.ended(message_id)

    letter = await requester.js.get_last_msg("DEAD_RUNS", "dead.default.support")
    assert letter.data == data
    headers = letter.headers or {}
    assert headers["traceparent"] == "00-abc"
    assert headers["Hayrunner-Dead-Reason"] == "invalid_request"
    assert headers["Hayrunner-Original-Subject"] == "agents.default.support.requests"


async def test_a_request_over_the_limit_is_payload_too_large(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent(), max_request_bytes=2_000)
    message_id = await requester.publish(prompt="x" * 3_000)
    result = await requester.ended(message_id)

    assert result.error is not None
    assert result.error.code == "payload_too_large"


async def test_a_bad_request_with_the_id_of_a_running_run_does_not_touch_it(
    serve: Serve, requester: Requester
) -> None:
    go = asyncio.Event()

    async def wait(session: Session) -> str:
        await go.wait()
        return "done"

    await serve(ScriptedAgent(script=wait))
    message_id = await requester.publish()
    await eventually(lambda: requester.events[message_id], what="the run's start")
    await requester.publish_raw(json.dumps({"message_id": message_id, "promt": 1}).encode())

    async def buried() -> bool:
        return await requester.count("DEAD_RUNS") == 1

    await eventually(buried, what="the dead letter")
    go.set()
    assert (await requester.ended(message_id)).status == "completed"
    assert "error" not in kinds(requester.events[message_id])
    await eventually(requester.queue_is_empty, what="an empty queue")


async def test_an_agent_nobody_serves_fails_as_unknown_and_leaves_the_queue(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    message_id = await requester.publish("suport")
    result = await requester.ended(message_id)

    assert result.error is not None
    assert result.error.code == "unknown_agent"
    assert check_stream(requester.events[message_id]) == []
    await eventually(requester.queue_is_empty, what="an empty queue")
    letter = await requester.js.get_last_msg("DEAD_RUNS", "dead.default.suport")
    assert (letter.headers or {})["Hayrunner-Dead-Reason"] == "unknown_agent"


async def test_another_namespace_is_left_alone(serve: Serve, requester: Requester) -> None:
    await serve(ScriptedAgent())
    await requester.js.publish("agents.other.suport.requests", b'{"prompt": "hi"}')
    message_id = await requester.publish("suport")
    await requester.ended(message_id)

    async def one_left() -> bool:
        return await requester.count("AGENT_REQUESTS") == 1

    await eventually(one_left, what="the ack of the one, and not of the other")


async def test_a_request_that_was_delivered_too_often_becomes_worker_lost(
    serve: Serve, requester: Requester
) -> None:
    first = await serve(ScriptedAgent(), ack_wait_s=0.5)
    await first.__aexit__(None, None, None)
    config = (await requester.js.consumer_info("AGENT_REQUESTS", "default~support")).config
    await requester.js.add_consumer("AGENT_REQUESTS", config.evolve(max_deliver=1))
    message_id = await requester.publish()
    pull = await requester.js.pull_subscribe_bind("default~support", "AGENT_REQUESTS")
    await pull.fetch(1, timeout=5)
    await pull.unsubscribe()

    # Nothing is pending for this worker any more; it has to find the request by looking.
    await serve(ScriptedAgent(), ack_wait_s=0.5, worker_id="second", provision=False)
    result = await requester.ended(message_id, timeout=30)

    assert result.error is not None
    assert result.error.code == "worker_lost"
    await eventually(requester.queue_is_empty, what="an empty queue")
