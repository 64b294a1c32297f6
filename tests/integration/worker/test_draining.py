"""A worker that goes away: short runs end, long ones go on elsewhere, nothing is lost."""

import asyncio
import os
import signal

from tests.integration.worker.conftest import Requester, Serve, kinds
from tests.integration.worker.scripted import ScriptedAgent, ScriptedRegistry, Session

from hayrunner.serving.app import Worker
from hayrunner.serving.process import serve_until_signalled
from hayrunner.settings import Settings
from hayrunner_contracts.stream_rules import check_stream
from hayrunner_contracts.testing import eventually


async def wait_for_ever(session: Session) -> str:
    await session.say("first")
    await asyncio.Event().wait()
    return ""


async def test_a_short_run_ends_before_the_worker_does(serve: Serve, requester: Requester) -> None:
    async def short(session: Session) -> str:
        for _ in range(5):
            await session.say("x")
            await asyncio.sleep(0.05)
        return "done"

    agent = ScriptedAgent(script=short)
    worker = await serve(agent, drain_timeout_s=10)
    message_id = await requester.publish()
    await eventually(lambda: agent.started, what="the run")

    await worker.shutdown()

    assert (await requester.ended(message_id)).attempts == 1
    assert agent.finished == [message_id]
    assert await requester.queue_is_empty()


async def test_a_long_run_is_handed_back_at_once_and_not_counted(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent(script=wait_for_ever)
    worker = await serve(agent, drain_timeout_s=0.1, ack_wait_s=60)
    message_id = await requester.publish()
    await eventually(lambda: len(requester.events[message_id]) == 2, what="the first text")
    await worker.shutdown()
    assert agent.cut == [message_id]

    await serve(ScriptedAgent(), worker_id="second", ack_wait_s=60)
    result = await requester.ended(message_id, timeout=5)

    assert (result.status, result.attempts) == ("completed", 1)
    stored = await requester.stored_events(message_id)
    assert kinds(stored)[:3] == ["message_start", "text_chunk", "run_resumed"]
    assert check_stream(stored) == []


async def test_a_draining_worker_takes_nothing_more(serve: Serve, requester: Requester) -> None:
    agent = ScriptedAgent(script=wait_for_ever)
    worker = await serve(agent, drain_timeout_s=1.0)
    await requester.publish()
    await eventually(lambda: agent.started, what="the run")
    ending = asyncio.create_task(worker.shutdown())
    await eventually(lambda: worker.problems(), what="readiness off")
    queued = await requester.publish()
    await ending

    assert queued not in agent.started
    # Both wait for another worker: the one that was cut, and the one that came too late.
    assert await requester.count("AGENT_REQUESTS") == 2


async def test_messages_caught_by_a_pull_that_ends_are_not_lost(
    serve: Serve, requester: Requester
) -> None:
    """Publishing against the moment in which pulls are closed, again and again."""
    agent = ScriptedAgent()
    ids: list[str] = []
    for round_ in range(8):
        worker = await serve(agent, worker_id=f"w{round_}", ack_wait_s=60)
        first, ending, second = await asyncio.gather(
            requester.publish(), worker.shutdown(), requester.publish()
        )
        assert ending is None
        ids += [first, second]
    await serve(agent, worker_id="last", ack_wait_s=60)

    for message_id in ids:
        await requester.ended(message_id, timeout=10)
    await eventually(requester.queue_is_empty, what="an empty queue")
    assert sorted(agent.finished) == sorted(ids)


async def test_a_second_stop_does_not_wait_for_runs(serve: Serve, requester: Requester) -> None:
    agent = ScriptedAgent(script=wait_for_ever)
    worker = await serve(agent, drain_timeout_s=60, ack_wait_s=60)
    message_id = await requester.publish()
    await eventually(lambda: agent.started, what="the run")
    worker.stop()
    ending = asyncio.create_task(worker.shutdown())
    await eventually(lambda: worker.problems(), what="readiness off")
    worker.stop()

    await asyncio.wait_for(ending, 5)
    assert agent.cut == agent.started
    # Its claim was given back all the same: nobody waits for `ack_wait`.
    await serve(ScriptedAgent(), worker_id="second", ack_wait_s=60)
    result = await requester.ended(message_id, timeout=10)
    assert (result.status, result.attempts) == ("completed", 1)


async def test_sigterm_drains_and_ends_the_worker(requester: Requester, serve: Serve) -> None:
    agent = ScriptedAgent()
    await (await serve(agent)).shutdown()
    settings = Settings(nats_url=str(requester.nc.connected_url.geturl()), port=-1)  # pyright: ignore[reportOptionalMemberAccess]
    worker = Worker(settings, ScriptedRegistry(agent))
    serving = asyncio.create_task(serve_until_signalled(worker))
    await eventually(lambda: not worker.problems(), what="a ready worker")
    message_id = await requester.publish()
    await requester.ended(message_id)

    os.kill(os.getpid(), signal.SIGTERM)

    await asyncio.wait_for(serving, 5)
    assert not worker.connection.is_connected


async def test_a_worker_that_still_waits_for_nats_can_be_stopped() -> None:
    worker = Worker(Settings(nats_url="nats://127.0.0.1:1", port=-1), ScriptedRegistry())
    serving = asyncio.create_task(worker.serve())
    await asyncio.sleep(0)
    worker.stop()

    await asyncio.wait_for(serving, 5)
