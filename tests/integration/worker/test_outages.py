"""Events that the stream did not get, and servers that go away: nothing is missing afterwards."""

import asyncio
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from tests.integration.worker.conftest import Requester, Serve, kinds
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner.embedded import EmbeddedServer
from hayrunner.serving.claims import ClaimLost
from hayrunner.serving.connection import Link
from hayrunner.serving.publisher import EventPublisher
from hayrunner.serving.run_events import RunPublisher
from hayrunner_contracts.events import ReasoningChunk, StreamEvent, TextChunk, UnknownEvent
from hayrunner_contracts.stream_rules import check_stream
from hayrunner_contracts.testing import eventually


def text_of(events: list[StreamEvent | UnknownEvent]) -> str:
    return "".join(event.content for event in events if isinstance(event, TextChunk))


def in_order(events: list[StreamEvent | UnknownEvent]) -> list[StreamEvent | UnknownEvent]:
    """As a consumer reads them, who goes by `seq`: each once."""
    return list({event.seq: event for event in reversed(events)}.values())[::-1]


def leaky(lost: set[int]) -> Any:
    """A publisher whose first try at these `seq` is never captured."""

    def publisher(nc: Client, js: JetStreamContext, link: Link, **more: Any) -> RunPublisher:
        async def send(subject: str, data: bytes) -> None:
            if msgspec.json.decode(data)["seq"] not in lost:
                await nc.publish(subject, data)

        return RunPublisher(nc, js, link, send=send, **more)

    return publisher


async def count_to(session: Session, most: int, pause: float = 0.0) -> str:
    for number in range(most):
        await session.say(f"{number} ")
        await asyncio.sleep(pause)
    return "done"


def counted(most: int) -> str:
    return "".join(f"{number} " for number in range(most))


async def test_events_the_stream_lacks_are_published_again_before_the_end(
    serve: Serve, requester: Requester
) -> None:
    async def script(session: Session) -> str:
        return await count_to(session, 100)

    worker = await serve(ScriptedAgent(script=script), publisher=leaky({2, 3, 50, 102}))
    message_id = await requester.publish()
    await requester.ended(message_id)

    for events in (requester.events[message_id], await requester.stored_events(message_id)):
        ordered = sorted(in_order(events), key=lambda event: event.seq)
        assert check_stream(ordered) == []
        assert text_of(ordered) == counted(100)
        assert kinds(events)[-1] == "stream_end"
    assert b"hayrunner_events_repaired_total 4.0" in worker.metrics.exposition()


async def test_a_long_run_lets_go_of_what_is_stored(serve: Serve, requester: Requester) -> None:
    async def script(session: Session) -> str:
        return await count_to(session, 10_000)

    kept: list[int] = []

    def publisher(nc: Client, js: JetStreamContext, link: Link, **more: Any) -> RunPublisher:
        async def send(subject: str, data: bytes) -> None:
            kept.append(made.kept)
            if msgspec.json.decode(data)["seq"] % 1000:
                await nc.publish(subject, data)

        made = RunPublisher(nc, js, link, send=send, **more)
        return made

    await serve(ScriptedAgent(script=script), publisher=publisher)
    message_id = await requester.publish()
    await requester.ended(message_id, timeout=60)

    stored = sorted(await requester.stored_events(message_id), key=lambda event: event.seq)
    assert check_stream(stored) == []
    assert text_of(stored) == counted(10_000)
    assert max(kept) <= 4_096


async def test_a_run_goes_on_through_a_restart_of_the_server(
    serve: Serve, requester: Requester, nats_server: EmbeddedServer
) -> None:
    async def script(session: Session) -> str:
        return await count_to(session, 150, 0.01)

    agent = ScriptedAgent(script=script)
    await serve(agent)
    ids = [await requester.publish() for _ in range(5)]
    await eventually(lambda: len(requester.events[ids[-1]]) > 20, what="some events")
    await nats_server.kill()
    await eventually(lambda: not requester.nc.is_connected, what="the outage")
    await nats_server.start()

    for message_id in ids:
        result = await requester.ended(message_id, timeout=30)
        assert (result.status, result.attempts) == ("completed", 1)
        stored = sorted(
            in_order(await requester.stored_events(message_id)), key=lambda event: event.seq
        )
        assert check_stream(stored) == []
        assert text_of(stored) == counted(150)
    assert sorted(agent.started) == sorted(ids)
    await eventually(requester.queue_is_empty, what="an empty queue")
    # And it takes new requests at once, not when an old pull expires.
    again = await requester.publish(mode="answer")
    await requester.ended(again, timeout=5)


async def test_an_outage_longer_than_ack_wait_does_not_start_a_run_twice(
    serve: Serve, requester: Requester, nats_server: EmbeddedServer
) -> None:
    go = asyncio.Event()

    async def script(session: Session) -> str:
        await session.say("before ")
        await go.wait()
        await session.say("after")
        return "done"

    agent = ScriptedAgent(script=script)
    await serve(agent, ack_wait_s=0.5)
    await serve(agent, ack_wait_s=0.5, worker_id="second")
    ids = [await requester.publish() for _ in range(4)]
    await eventually(lambda: len(agent.started) == 4, what="the runs")
    await nats_server.kill()
    loop = asyncio.get_running_loop()
    away_until = loop.time() + 1.5
    await eventually(lambda: loop.time() > away_until, what="a long outage")
    await nats_server.start()
    await eventually(lambda: requester.nc.is_connected, what="the way back")
    again_until = loop.time() + 1.0
    await eventually(lambda: loop.time() > again_until, what="redeliveries")
    go.set()

    for message_id in ids:
        assert (await requester.ended(message_id, timeout=30)).attempts == 1
    assert sorted(agent.started) == sorted(ids)
    await eventually(requester.queue_is_empty, what="an empty queue")


async def test_events_wait_merged_while_the_server_is_away_and_none_is_lost(
    nats_server: EmbeddedServer, nc: Client
) -> None:
    link = Link()
    link.bind(nc)
    got: list[dict[str, Any]] = []

    async def take(message: Any) -> None:
        got.append(msgspec.json.decode(message.data))

    await nc.subscribe("out", cb=take)
    await nats_server.kill()
    await eventually(lambda: not nc.is_connected, what="the outage")
    link.outages += 1
    publisher = EventPublisher(nc, link, "out")
    for number in range(3_000):
        await publisher.emit(TextChunk(content=f"{number} ", step=1))
    await publisher.emit(ReasoningChunk(content="think", step=1))
    await publisher.emit(TextChunk(content="end", step=2))
    assert publisher.last_seq == 0

    await nats_server.start()
    await publisher.flush()
    await eventually(lambda: got and got[-1]["content"] == "end", what="the last event")

    assert [event["seq"] for event in got] == list(range(1, len(got) + 1))
    assert len(got) < 100
    texts = [event["content"] for event in got if event["type"] == "text_chunk"]
    assert "".join(texts) == counted(3_000) + "end"
    assert got[-2]["type"] == "reasoning_chunk"


async def test_past_the_bound_of_a_worker_all_its_runs_wait(
    nats_server: EmbeddedServer, nc: Client
) -> None:
    link = Link()
    link.bind(nc)
    await nats_server.kill()
    await eventually(lambda: not nc.is_connected, what="the outage")
    link.outages += 1
    publishers = [EventPublisher(nc, link, f"out.{number}") for number in range(60)]

    async def talk(publisher: EventPublisher) -> None:
        for number in range(18):
            await publisher.emit(TextChunk(content="x" * 100_000, step=number))

    talking = [asyncio.create_task(talk(publisher)) for publisher in publishers]
    await eventually(lambda: link.held_characters > 64_000_000, what="the bound")
    await eventually(lambda: sum(not task.done() for task in talking) > 5, what="runs to wait")
    assert link.held_characters <= 64_000_000 + 60 * 100_000

    await nats_server.start()
    await asyncio.wait_for(asyncio.gather(*talking), 30)
    await asyncio.gather(*(publisher.flush() for publisher in publishers))
    assert link.held_characters == 0


async def test_past_the_second_bound_the_run_waits(nats_server: EmbeddedServer, nc: Client) -> None:
    link = Link()
    link.bind(nc)
    await nats_server.kill()
    await eventually(lambda: not nc.is_connected, what="the outage")
    publisher = EventPublisher(nc, link, "out")
    emitted = 0

    async def emit() -> None:
        nonlocal emitted
        for step in range(5_000):
            await publisher.emit(TextChunk(content="x", step=step))
            emitted += 1

    task = asyncio.create_task(emit())
    await eventually(lambda: emitted == 999, what="the bound")
    await asyncio.sleep(0)
    assert emitted == 999
    await nats_server.start()
    await asyncio.wait_for(task, 20)
    await publisher.flush()
    assert publisher.last_seq == 5_000


async def test_after_an_outage_nothing_is_said_for_a_run_that_another_worker_has(
    nc: Client,
) -> None:
    link = Link()
    link.bind(nc)
    asked = 0
    got: list[bytes] = []

    async def lost() -> bool:
        nonlocal asked
        asked += 1
        return False

    async def take(message: Any) -> None:
        got.append(message.data)

    await nc.subscribe("out", cb=take)
    publisher = EventPublisher(nc, link, "out", may_go_on=lost)
    await publisher.emit(TextChunk(content="before"))
    link.outages += 1
    await publisher.emit(TextChunk(content="after"))
    await publisher.flush()
    speaking = asyncio.create_task(publisher.emit(TextChunk(content="later")))
    await nc.flush()

    assert asked == 1
    assert len(got) == 1
    assert not speaking.done()
    speaking.cancel()


async def test_events_of_a_lost_run_are_not_taken_for_stored(nc: Client) -> None:
    link = Link()
    link.bind(nc)

    async def lost() -> bool:
        return False

    message_id = "01981a60-0000-7000-8000-000000000001"
    publisher = RunPublisher(
        nc, nc.jetstream(), link, namespace="default", message_id=message_id, may_go_on=lost
    )
    link.outages += 1
    await publisher.emit(TextChunk(content="thrown away"))

    with pytest.raises(ClaimLost):
        await publisher.verify(patience_s=5)


async def test_a_deleted_consumer_is_noticed_and_made_again(
    serve: Serve, requester: Requester
) -> None:
    worker = await serve(ScriptedAgent())
    assert worker.problems() == []
    await requester.js.delete_consumer("AGENT_REQUESTS", "default~support")
    await eventually(lambda: worker.problems(), what="readiness off")
    await eventually(lambda: not worker.problems(), what="readiness on again")

    assert (await requester.ended(await requester.publish())).status == "completed"


async def test_a_worker_that_does_not_provision_says_that_its_consumer_is_gone(
    serve: Serve, requester: Requester
) -> None:
    await (await serve(ScriptedAgent())).shutdown()
    worker = await serve(ScriptedAgent(), provision=False, worker_id="second")
    await requester.js.delete_consumer("AGENT_REQUESTS", "default~support")
    await eventually(lambda: worker.problems(), what="readiness off")
    assert worker.problems() == ["not every agent's requests can be pulled"]


async def test_a_worker_ends_while_the_server_is_away(
    serve: Serve, requester: Requester, nats_server: EmbeddedServer
) -> None:
    agent = ScriptedAgent()
    worker = await serve(agent)
    await requester.ended(await requester.publish())
    await nats_server.kill()
    await eventually(lambda: worker.problems(), what="the outage")

    await asyncio.wait_for(worker.shutdown(), 15)


async def test_runs_of_a_worker_that_drained_while_the_server_was_away_go_on_elsewhere(
    serve: Serve, requester: Requester, nats_server: EmbeddedServer
) -> None:
    async def wait_for_ever(session: Session) -> str:
        await session.say("first ")
        await asyncio.Event().wait()
        return ""

    leaving = await serve(ScriptedAgent(script=wait_for_ever), drain_timeout_s=0.1, ack_wait_s=1)
    message_id = await requester.publish()
    await eventually(lambda: len(requester.events[message_id]) == 2, what="the first text")
    await nats_server.kill()
    await eventually(lambda: leaving.problems(), what="the outage")
    await asyncio.wait_for(leaving.shutdown(), 30)

    await nats_server.start()
    await serve(ScriptedAgent(), worker_id="second", ack_wait_s=1)
    result = await requester.ended(message_id, timeout=30)
    assert result.status == "completed"
    assert check_stream(await requester.stored_events(message_id)) == []
    await eventually(requester.queue_is_empty, what="an empty queue")
