"""Who gets a slot: between namespaces, between agents of one worker, within an agent's limit."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.integration.worker.conftest import Requester, Serve
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import Overloaded
from hayrunner_contracts.testing import eventually

AT_ONCE_S = 2.0


class Gate:
    """Runs that wait until they are let go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running = 0
        self.most = 0

    async def __call__(self, session: Session) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        return "done"


Connect = Callable[[str], Awaitable[RunClient]]


@pytest.fixture
async def connect(nats_server: EmbeddedServer) -> AsyncIterator[Connect]:
    clients: list[RunClient] = []

    async def connect(namespace: str) -> RunClient:
        clients.append(await RunClient.connect(nats_server.url, namespace))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


async def refused_at_once(client: RunClient, agent: str) -> None:
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(Overloaded):
            await client.ask(agent, "hi", timeout=10)


# --- between namespaces


async def test_one_tenants_backlog_neither_refuses_nor_delays_anothers_requests(
    serve: Serve, connect: Connect, requester: Requester
) -> None:
    limits = {"max_queue": 20, "max_queue_total": 1_000, "concurrency": 2}
    gate = Gate()
    flooded, other = ScriptedAgent(script=gate), ScriptedAgent()
    await serve(flooded, namespace="flooded", worker_id="a", **limits)
    await serve(other, namespace="other", worker_id="b", **limits)
    flooding, client = await connect("flooded"), await connect("other")

    for _ in range(20):
        await flooding.submit("support", "hi")
    with pytest.raises(Overloaded, match="the agent's queue"):
        await flooding.submit("support", "one too many")
    await eventually(lambda: gate.running == 2, what="the flooded worker's slots in use")

    for number in range(25):
        # More than its own limit, one after the other: what is done is not queued.
        assert await client.run("support", f"{number}", timeout=10) == "Hello, world"
    assert len(other.finished) == 25
    assert (len(flooded.started), len(flooded.finished)) == (2, 0)
    with pytest.raises(Overloaded):
        await flooding.submit("support", "still too many")

    gate.open.set()
    await eventually(lambda: len(flooded.finished) == 20, what="the backlog")


async def test_all_queues_together_have_a_limit_too(serve: Serve, connect: Connect) -> None:
    limits = {"max_queue": 2, "max_queue_total": 3, "concurrency": 1}
    agents = [ScriptedAgent(name, script=Gate()) for name in ("one", "two")]
    await serve(*agents, **limits)
    client = await connect("default")
    for agent in ("one", "one", "two"):
        await client.submit(agent, "hi")
    with pytest.raises(Overloaded, match="of all agents"):
        await client.submit("two", "hi")


# --- between agents


@pytest.mark.parametrize("concurrency", [1, 2, 8])
async def test_a_single_request_starts_soon_beside_a_backlog(
    serve: Serve, requester: Requester, concurrency: int
) -> None:
    order: list[str] = []

    def noting(name: str) -> ScriptedAgent:
        async def script(session: Session) -> str:
            order.append(name)
            await asyncio.sleep(0.005)
            return "done"

        return ScriptedAgent(name, script)

    idle = [ScriptedAgent(f"idle-{number}") for number in range(4)]
    await serve(noting("busy"), noting("rare"), *idle, concurrency=concurrency, max_queue=1_000)
    for _ in range(500):
        await requester.publish("busy")
    await eventually(lambda: len(order) >= 20, 20, what="the backlog under way")
    for _ in range(3):
        await requester.publish("rare")
        asked_at = len(order)
        await eventually(lambda at=asked_at: "rare" in order[at:], 20, what="the single one")
        waited_for = order[asked_at:].index("rare")
        assert waited_for <= 2 * concurrency + 2, order[asked_at:]
    assert len(order) < 480, "the backlog was over before the test"


async def test_agents_without_requests_cost_the_others_no_time(
    serve: Serve, requester: Requester
) -> None:
    busy = ScriptedAgent("busy")
    idle = [ScriptedAgent(f"idle-{number}") for number in range(7)]
    await serve(busy, *idle, concurrency=1)
    # Seven idle pulls of half a second between two runs would be two minutes.
    for _ in range(40):
        await requester.publish("busy")
    await eventually(lambda: len(busy.finished) == 40, 20, what="the backlog")
    # And everyone is served, when a request comes after a quiet time.
    await asyncio.gather(*(requester.publish(agent.name) for agent in idle))
    await eventually(lambda: all(agent.finished for agent in idle), 10, what="a turn for each")


# --- an agent's own limit


async def test_a_full_agent_is_not_pulled_for_and_the_others_go_on(
    serve: Serve, requester: Requester
) -> None:
    gate = Gate()
    limited = ScriptedAgent("limited", gate, max_concurrent_runs=2)
    other = ScriptedAgent("other")
    worker = await serve(limited, other, concurrency=4)
    ids = [await requester.publish("limited") for _ in range(6)]
    await eventually(lambda: gate.running == 2, what="the limit")

    for _ in range(10):
        assert (await requester.ended(await requester.publish("other"))).status == "completed"
    await eventually(lambda: worker.running == 2, what="only the limited one's runs")
    assert gate.running == 2
    info = await requester.js.consumer_info("AGENT_REQUESTS", "default~limited")
    assert (info.num_ack_pending, info.num_pending) == (2, 4)

    elsewhere = ScriptedAgent("limited")
    await serve(elsewhere, worker_id="second")
    await eventually(lambda: len(elsewhere.finished) == 4, what="the rest, on another worker")
    gate.open.set()
    results = [await requester.ended(message_id) for message_id in ids]
    assert {result.attempts for result in results} == {1}
    assert gate.most == 2


async def test_durable_and_direct_runs_count_together(
    serve: Serve, requester: Requester, connect: Connect
) -> None:
    gate = Gate()
    limited = ScriptedAgent("limited", gate, max_concurrent_runs=2)
    worker = await serve(limited, ScriptedAgent("other"), concurrency=8)
    client = await connect("default")

    await requester.publish("limited")
    await eventually(lambda: gate.running == 1, what="the durable run")
    asking = asyncio.create_task(client.ask("limited", "hi", timeout=20))
    await eventually(lambda: gate.running == 2, what="the direct run")
    await refused_at_once(client, "limited")
    assert (await client.ask("other", "hi", timeout=10)).answer == "Hello, world"
    queued = await requester.publish("limited")

    gate.open.set()
    assert (await asking).status == "completed"
    assert (await requester.ended(queued)).status == "completed"
    assert (gate.most, len(limited.started)) == (2, 3)
    await eventually(lambda: worker.running == 0, what="every place back")
    for _ in range(5):
        assert (await client.ask("limited", "hi", timeout=10)).status == "completed"


async def test_a_limit_of_one_serves_direct_requests_from_its_idle_pull(
    serve: Serve, requester: Requester, connect: Connect
) -> None:
    worker = await serve(ScriptedAgent("limited", max_concurrent_runs=1))
    client = await connect("default")
    for _ in range(10):
        assert (await client.ask("limited", "hi", timeout=10)).status == "completed"
        assert (await requester.ended(await requester.publish("limited"))).status == "completed"
        # A run's result is there a moment before its place is.
        await eventually(lambda: worker.running == 0, what="the place")


# --- nobody there


async def test_a_worker_that_drains_refuses_direct_requests_at_once(
    serve: Serve, requester: Requester, connect: Connect
) -> None:
    gate = Gate()
    worker = await serve(ScriptedAgent(script=gate), drain_timeout_s=10)
    client = await connect("default")
    await requester.publish()
    await eventually(lambda: gate.running == 1, what="a run")
    ending = asyncio.create_task(worker.shutdown())
    await eventually(lambda: worker.problems(), what="readiness off")
    await refused_at_once(client, "support")
    assert not ending.done()

    gate.open.set()
    await ending
    await refused_at_once(client, "support")
    # Durably it can be asked all the same.
    run = await client.submit("support", "later")
    answering: dict[str, Any] = {"worker_id": "second"}
    await serve(ScriptedAgent(), **answering)
    assert (await run.result(timeout=10)).status == "completed"
