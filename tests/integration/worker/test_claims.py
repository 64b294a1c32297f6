"""Who runs what: heartbeats, takeover, fencing, attempts."""

import asyncio
import json
import uuid
from dataclasses import replace

import msgspec
import pytest
from nats.aio.msg import Msg
from tests.integration.worker.conftest import Requester, Serve, kinds
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner.serving.claims import Claims, KeptResult, KeptStep
from hayrunner_contracts.events import RunResumed, TextChunk
from hayrunner_contracts.stream_rules import check_stream
from hayrunner_contracts.subjects import claim_key
from hayrunner_contracts.testing import eventually


async def leave_claim(
    requester: Requester,
    message_id: str,
    *,
    worker: str,
    attempts: int = 1,
    status: str = "running",
) -> None:
    """What a worker leaves that died: a claim, and a delivery that is not acked."""
    bucket = await requester.js.key_value("RUNS")
    record = {
        "status": status,
        "agent": "support",
        "worker": worker,
        "attempt": attempts,
        "counted_attempts": attempts,
        "sequence": 1,
        "created_at": 0.0,
        "updated_at": 0.0,
    }
    await bucket.create(claim_key("default", message_id), json.dumps(record).encode())


async def claim_of(requester: Requester, message_id: str) -> dict[str, object]:
    bucket = await requester.js.key_value("RUNS")
    entry = await bucket.get(claim_key("default", message_id))
    return msgspec.json.decode(entry.value or b"")


async def test_a_run_ten_times_as_long_as_ack_wait_runs_once(
    serve: Serve, requester: Requester
) -> None:
    async def long(session: Session) -> str:
        for _ in range(20):
            await session.say("x")
            await asyncio.sleep(0.25)
        return "done"

    agent = ScriptedAgent(script=long)
    await serve(agent, ack_wait_s=0.5)
    message_id = await requester.publish()
    result = await requester.ended(message_id)

    assert (result.status, result.attempts) == ("completed", 1)
    assert agent.started == [message_id]


async def test_a_blocked_loop_does_not_start_the_run_twice(
    serve: Serve, requester: Requester
) -> None:
    """The request comes again to the worker that is running it: it goes on with that."""
    blocked = asyncio.Event()
    go = asyncio.Event()

    async def block(session: Session) -> str:
        import time

        time.sleep(1.2)  # noqa: ASYNC251 - a badly written tool is what this is about
        blocked.set()
        await go.wait()
        return "done"

    agent = ScriptedAgent(script=block)
    worker = await serve(agent, ack_wait_s=0.5)
    message_id = await requester.publish()
    await eventually(blocked.is_set, what="the block")

    def came_again() -> bool:
        return b"hayrunner_redeliveries_total{agent=" in worker.metrics.exposition()

    await eventually(came_again, what="a redelivery")
    go.set()
    assert (await requester.ended(message_id)).attempts == 1
    assert agent.started == [message_id]
    await eventually(requester.queue_is_empty, what="an empty queue")


async def test_a_run_of_a_silent_worker_is_taken_over_and_starts_over(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent()
    worker = await serve(agent)
    await worker.shutdown()
    message_id = str(uuid.uuid4())
    await leave_claim(requester, message_id, worker="gone")
    subject = f"runs.default.{message_id}.events"
    await requester.js.publish(
        subject,
        json.dumps(
            {"type": "message_start", "seq": 1, "message_id": message_id, "agent": "support"}
        ).encode(),
    )
    # 3 was lost with the worker: a consumer that counts must not wait for it.
    for seq in (2, 4):
        await requester.js.publish(
            subject, json.dumps({"type": "text_chunk", "seq": seq, "content": "old"}).encode()
        )
    await requester.publish(message_id=message_id)
    await serve(agent, worker_id="second")

    result = await requester.ended(message_id)

    assert (result.status, result.attempts) == ("completed", 2)
    stored = sorted(await requester.stored_events(message_id), key=lambda event: event.seq)
    assert check_stream(stored) == []
    resumed = [event for event in stored if isinstance(event, RunResumed)]
    assert [(event.seq, event.attempt, event.discard_after) for event in resumed] == [(5, 2, 1)]
    texts = [event.content for event in stored if isinstance(event, TextChunk) and event.seq > 5]
    assert "".join(texts) == "Hello, world"


async def test_a_run_whose_holder_answers_is_left_alone(serve: Serve, requester: Requester) -> None:
    async def yes(message: Msg) -> None:
        await message.respond(b"1")

    agent = ScriptedAgent()
    worker = await serve(agent, ack_wait_s=0.5)
    await requester.nc.subscribe("workers.busy.holds", cb=yes)
    await requester.nc.flush()
    message_id = str(uuid.uuid4())
    await leave_claim(requester, message_id, worker="busy")
    await requester.publish(message_id=message_id)

    def asked() -> bool:
        return b'hayrunner_redeliveries_total{agent="support"} 2' in worker.metrics.exposition()

    await eventually(asked, what="two redeliveries")
    assert agent.started == []
    assert (await claim_of(requester, message_id))["worker"] == "busy"


async def test_a_worker_that_lost_its_claim_falls_silent(
    serve: Serve, requester: Requester
) -> None:
    go = asyncio.Event()

    async def wait(session: Session) -> str:
        await session.say("one")
        await go.wait()
        return "mine"

    await serve(ScriptedAgent(script=wait))
    message_id = await requester.publish()
    await eventually(lambda: len(requester.events[message_id]) == 2, what="the first text")
    bucket = await requester.js.key_value("RUNS")
    taken = (await claim_of(requester, message_id)) | {"worker": "another", "attempt": 2}
    revision = await bucket.put(claim_key("default", message_id), msgspec.json.encode(taken))
    go.set()

    good = await requester.publish(mode="answer")
    await requester.ended(good)
    assert "stream_end" not in kinds(requester.events[message_id])
    assert requester.results[message_id] == []
    entry = await bucket.get(claim_key("default", message_id))
    assert entry.revision == revision

    # Neither acked nor put back: the other worker does that.
    async def only_it_is_pending() -> bool:
        info = await requester.js.consumer_info("AGENT_REQUESTS", "default~support")
        return info.num_ack_pending == 1

    await eventually(only_it_is_pending, what="the other run's ack")


async def test_a_run_out_of_attempts_is_worker_lost_with_a_dead_letter(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent()
    await serve(agent, max_attempts=3)
    message_id = str(uuid.uuid4())
    await leave_claim(requester, message_id, worker="gone", attempts=3)
    await requester.publish(message_id=message_id)

    result = await requester.ended(message_id)

    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("worker_lost", True)
    assert agent.started == []
    letter = await requester.js.get_last_msg("DEAD_RUNS", "dead.default.support")
    assert (letter.headers or {})["Hayrunner-Dead-Reason"] == "worker_lost"
    await eventually(requester.queue_is_empty, what="an empty queue")


async def test_a_run_that_has_its_result_but_no_end_is_ended_and_not_run(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent()
    await serve(agent)
    message_id = str(uuid.uuid4())
    await leave_claim(requester, message_id, worker="gone", status="finishing")
    for seq, kind in enumerate(("message_start", "message_end"), start=1):
        event = {"type": kind, "seq": seq, "message_id": message_id, "agent": "support"}
        event |= {"finish_reason": "stop"} if kind == "message_end" else {}
        await requester.js.publish(f"runs.default.{message_id}.events", json.dumps(event).encode())
    result = {
        "message_id": message_id,
        "agent": "support",
        "status": "completed",
        "answer": "42",
        "last_seq": 3,
    }
    await requester.js.publish(f"runs.default.{message_id}.result", json.dumps(result).encode())
    await requester.publish(message_id=message_id)

    assert (await requester.ended(message_id)).answer == "42"
    assert agent.started == []
    assert check_stream(await requester.stored_events(message_id)) == []
    await eventually(requester.queue_is_empty, what="an empty queue")
    assert (await claim_of(requester, message_id))["status"] == "completed"


async def test_a_second_request_with_the_same_id_does_not_run_beside_the_first(
    serve: Serve, requester: Requester
) -> None:
    go = asyncio.Event()

    async def wait(session: Session) -> str:
        await go.wait()
        return "done"

    agent = ScriptedAgent(script=wait)
    await serve(agent)
    await serve(agent, worker_id="second")
    message_id = str(uuid.uuid4())
    data = json.dumps({"prompt": "hi", "message_id": message_id}).encode()
    for _ in range(5):
        await requester.publish_raw(data)

    async def only_one_left() -> bool:
        return await requester.count("AGENT_REQUESTS") == 1

    await eventually(only_one_left, what="the doubles to be acked")
    go.set()
    await requester.ended(message_id)
    await eventually(requester.queue_is_empty, what="an empty queue")
    assert agent.started == [message_id]
    assert kinds(requester.events[message_id]).count("stream_end") == 1


async def test_a_write_of_ones_own_whose_answer_was_lost_is_no_lost_claim(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    bucket = await requester.js.key_value("RUNS")
    message_id = str(uuid.uuid4())
    mine = Claims(bucket, namespace="default", worker="mine")
    other = Claims(bucket, namespace="default", worker="other")
    claim = await mine.create(message_id, agent="support", sequence=1, requested_at=0.0)
    assert claim is not None

    await mine.finishing(replace(claim), KeptResult(), patience_s=1)
    assert await mine.still_held(claim)

    found = await other.find(message_id)
    assert found is not None
    await other.take_over(message_id, *found, sequence=1)
    assert not await mine.still_held(claim)


@pytest.mark.parametrize("stale", [0, 2], ids=["silence", "stale words"])
async def test_a_worker_that_takes_over_an_end_writes_what_the_first_one_had_come_to(
    serve: Serve, requester: Requester, stale: int
) -> None:
    agent = ScriptedAgent()
    worker = await serve(agent)
    await worker.shutdown()
    message_id = str(uuid.uuid4())
    subject = f"runs.default.{message_id}.events"
    events = [
        {"type": "message_start", "message_id": message_id, "agent": "support"},
        {"type": "text_chunk", "content": "what was said"},
        {"type": "message_end", "finish_reason": "stop", "usage": {}},
        *({"type": "text_chunk", "content": "stale "} for _ in range(stale)),
    ]
    for seq, event in enumerate(events, start=1):
        await requester.js.publish(subject, json.dumps({**event, "seq": seq}).encode())
    outcome = {
        "message_id": message_id,
        "agent": "support",
        "status": "completed",
        "answer": "what was said",
        "finish_reason": "stop",
        "last_seq": 4,
        "attempts": 1,
    }
    await leave_claim(requester, message_id, worker="gone", status="finishing")
    bucket = await requester.js.key_value("RUNS")
    record = {**await claim_of(requester, message_id), "outcome": {"data": outcome}}
    await bucket.put(claim_key("default", message_id), json.dumps(record).encode())
    await requester.publish(message_id=message_id)
    await serve(agent, worker_id="second")

    result = await requester.ended(message_id)
    assert (result.answer, result.attempts, result.last_seq) == ("what was said", 1, 4)
    assert agent.started == []
    stored = await requester.stored_events(message_id)
    said = ["message_start", "text_chunk", "message_end"]
    void = ["text_chunk", "text_chunk", "run_resumed"] if stale else []
    assert kinds(stored) == [*said, *void, "stream_end"]
    assert check_stream(stored) == []
    await eventually(requester.queue_is_empty, what="an empty queue")
    assert (await claim_of(requester, message_id))["status"] == "completed"


async def test_a_write_that_was_cut_off_does_not_cost_the_claim(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    bucket = await requester.js.key_value("RUNS")
    mine = Claims(bucket, namespace="default", worker="mine")
    message_id = str(uuid.uuid4())
    claim = await mine.create(message_id, agent="support", sequence=1, requested_at=0.0)
    assert claim is not None
    # The write is stored, and its task is gone before it hears of it.
    await mine.keep(replace(claim), KeptStep(seq=3, step=1), patience_s=1)

    await mine.finishing(claim, KeptResult(), patience_s=1)
    assert (await claim_of(requester, message_id))["status"] == "finishing"
