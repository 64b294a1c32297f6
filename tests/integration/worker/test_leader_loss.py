"""A cluster of three: copies added and taken away, and leaders that die in the middle of runs."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.errors import NoStreamResponseError
from tests.integration.cluster import Cluster
from tests.integration.worker.scripted import ScriptedAgent, ScriptedRegistry, Session

from hayrunner.errors import ConfigurationError
from hayrunner.serving.app import Worker
from hayrunner.serving.provisioning import blob_configs, provision, stream_configs
from hayrunner.serving.stored import messages_of
from hayrunner.settings import Settings
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.errors import Overloaded
from hayrunner_contracts.events import Error, RunResumed
from hayrunner_contracts.following import Event
from hayrunner_contracts.testing import assert_valid_stream, eventually

pytestmark = [
    pytest.mark.timeout(120),
    # A server that stands still takes connections and answers none: nats-py gives up on such a
    # connection and leaves it to the garbage collector, which warns.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STREAMS = [
    *(str(c.name) for c in (*stream_configs(Settings()), *blob_configs(Settings()))),
    "KV_RUNS",
]
RUNS = 4
PIECES = [f"{number} " for number in range(60)]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
async def js(cluster: Cluster) -> AsyncIterator[JetStreamContext]:
    connection = await cluster.connect()
    yield connection.jetstream()
    await connection.close()


async def copies(js: JetStreamContext) -> dict[str, int | None]:
    infos = await js.streams_info()
    return {str(info.config.name): info.config.num_replicas for info in infos}


async def configs(js: JetStreamContext) -> dict[str, Any]:
    infos = {str(info.config.name): info.config for info in await js.streams_info()}
    return infos | {info.name: info.config for info in await js.consumers_info("AGENT_REQUESTS")}


async def test_copies_are_added_and_taken_away(cluster: Cluster, js: JetStreamContext) -> None:
    await provision(js, Settings(), ["support"])

    async def is_stored() -> bool:
        # The server that is asked may not have heard yet who takes this subject.
        try:
            await js.publish("agents.default.support.requests", b"kept")
        except NoStreamResponseError:
            return False
        return True

    await eventually(is_stored, 20, what="a stored request")

    for replicas in (3, 1):
        settings = Settings(replicas=replicas)
        await provision(js, settings, ["support"])
        await cluster.settled(*STREAMS)
        assert await copies(js) == dict.fromkeys(STREAMS, replicas)
        before = await configs(js)
        await provision(js, settings, ["support"])
        assert await configs(js) == before
        stored = await js.get_msg("AGENT_REQUESTS", seq=1)
        assert stored.data == b"kept"


async def test_more_copies_than_servers_are_refused(cluster: Cluster, js: JetStreamContext) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot have 5 copies.*HAYRUNNER_REPLICAS"):
        await provision(js, Settings(replicas=5), ["support"])
    await provision(js, Settings(), ["support"])
    with pytest.raises(ConfigurationError, match=r"cannot have 5 copies.*HAYRUNNER_REPLICAS"):
        await provision(js, Settings(replicas=5), ["support"])


async def test_a_meta_leader_that_is_just_gone_is_waited_for(
    cluster: Cluster, js: JetStreamContext
) -> None:
    await cluster.kill(await cluster.meta_leader())
    await provision(js, Settings(), ["support"])
    assert len(await copies(js)) == len(STREAMS)


async def test_a_full_queue_with_copies_is_overloaded(cluster: Cluster) -> None:
    settings = Settings(nats_url=cluster.url, replicas=3, max_queue=2, max_queue_total=3)
    async with await RunClient.connect(cluster.urls) as client:
        await provision(client.connection.jetstream(), settings, ["support", "billing"])
        for agent, accepted in (("support", 2), ("billing", 1)):
            for _ in range(accepted):
                await client.submit(agent, "hi")
            with pytest.raises(Overloaded):
                await client.submit(agent, "hi")


class Halves:
    """Runs say half of their pieces, wait for each other and for the test, and say the rest."""

    def __init__(self) -> None:
        self.waiting = 0
        self.goes_on = asyncio.Event()

    async def __call__(self, session: Session) -> str:
        for number, piece in enumerate(PIECES):
            if number == len(PIECES) // 2:
                self.waiting += 1
                await self.goes_on.wait()
            await session.say(piece)
        return "".join(PIECES)


async def read(client: RunClient, message_id: str) -> list[Event]:
    stream = client.stream("support", "hi", message_id=message_id, timeout=60)
    return [event async for event in stream]


@pytest.mark.parametrize(
    ("stream", "paused"),
    [
        ("AGENT_REQUESTS", False),
        ("RUN_EVENTS", False),
        ("RUN_EVENTS", True),
        ("KV_RUNS", False),
        ("KV_RUNS", True),
    ],
)
async def test_runs_go_on_when_a_leader_is_lost(
    cluster: Cluster, stream: str, paused: bool
) -> None:
    script = Halves()
    agent = ScriptedAgent(script=script)
    settings = Settings(nats_url=cluster.url, replicas=3, port=-1, ack_wait_s=4)
    ids = [str(uuid.uuid4()) for _ in range(RUNS)]
    later = [str(uuid.uuid4()) for _ in range(RUNS)]
    async with (
        Worker(settings, ScriptedRegistry(agent)),
        await RunClient.connect(cluster.urls) as client,
    ):
        await cluster.settled(*STREAMS)
        reading = [asyncio.create_task(read(client, message_id)) for message_id in ids]
        await eventually(lambda: script.waiting == RUNS, what="runs that are half done")

        lost = await cluster.leader_of(stream)
        if paused:
            cluster.pause(lost)
        else:
            await cluster.kill(lost)
        # Said, and asked for, while nobody leads.
        script.goes_on.set()
        reading += [asyncio.create_task(read(client, message_id)) for message_id in later]
        async with asyncio.timeout(60):
            seen = dict(zip([*ids, *later], await asyncio.gather(*reading), strict=True))

        if paused:
            cluster.resume(lost)
        else:
            await cluster.restart(lost)
        await cluster.settled(*STREAMS)
        await check(client, seen)
        # Every request was run once, by one attempt.
        assert sorted(agent.started) == sorted(seen)


async def check(client: RunClient, seen: dict[str, list[Event]]) -> None:
    js = client.connection.jetstream()
    for message_id, events in seen.items():
        assert_valid_stream(events)
        assert not any(isinstance(event, Error | RunResumed) for event in events)
        result = await client.result(message_id, timeout=10)
        assert (result.status, result.attempts, result.answer) == ("completed", 1, "".join(PIECES))
        subject = f"runs.default.{message_id}.events"
        stored = [
            decode_event(message.data)
            async for message in messages_of(client.connection, "RUN_EVENTS", subject)
        ]
        assert {event.seq for event in stored} == set(range(1, len(events) + 1))
    results = (await js.stream_info("RUN_RESULTS")).state
    assert results.messages == results.last_seq == len(seen)

    async def empty() -> bool:
        return (await js.stream_info("AGENT_REQUESTS")).state.messages == 0

    await eventually(empty, 20, what="an empty queue")
