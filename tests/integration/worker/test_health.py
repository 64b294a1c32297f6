"""Health, metrics and the contract over HTTP."""

import asyncio
import socket
import urllib.error
import urllib.request

import pytest
from tests.integration.worker.conftest import Requester, Serve
from tests.integration.worker.scripted import ScriptedAgent, ScriptedRegistry, Session

from hayrunner.embedded import EmbeddedServer
from hayrunner.errors import ConfigurationError
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner_contracts.testing import eventually


async def get(worker: Worker, path: str) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{worker.http_url}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def test_a_worker_is_alive_and_ready_and_shows_its_contract(serve: Serve) -> None:
    worker = await serve(ScriptedAgent(), port=0)

    assert await get(worker, "/livez") == (200, '{"alive":true}')
    assert await get(worker, "/readyz") == (200, '{"ready":true,"problems":[]}')
    status, document = await get(worker, "/asyncapi.json")
    assert status == 200
    assert document.startswith('{"asyncapi":"3.')
    assert (await get(worker, "/nothing"))[0] == 404


async def test_readiness_follows_the_connection_and_liveness_does_not(
    serve: Serve, nats_server: EmbeddedServer
) -> None:
    worker = await serve(ScriptedAgent(), port=0)
    await nats_server.kill()
    await eventually(lambda: worker.problems(), what="the outage")

    status, body = await get(worker, "/readyz")
    assert status == 503
    assert "not connected to NATS" in body
    assert (await get(worker, "/livez"))[0] == 200

    await nats_server.start()
    await eventually(lambda: not worker.problems(), what="the way back")
    assert (await get(worker, "/readyz"))[0] == 200


async def test_a_draining_worker_is_alive_and_not_ready(serve: Serve, requester: Requester) -> None:
    go = asyncio.Event()

    async def wait(session: Session) -> str:
        await go.wait()
        return "done"

    agent = ScriptedAgent(script=wait)
    worker = await serve(agent, port=0, drain_timeout_s=10)
    await requester.publish()
    await eventually(lambda: agent.started, what="the run")
    ending = asyncio.create_task(worker.shutdown())
    await eventually(lambda: worker.problems(), what="the drain")

    assert (await get(worker, "/readyz"))[0] == 503
    assert (await get(worker, "/livez"))[0] == 200
    go.set()
    await ending


async def test_metrics_have_closed_labels_and_no_ids(serve: Serve, requester: Requester) -> None:
    worker = await serve(ScriptedAgent(), port=0)
    good = await requester.publish()
    await requester.ended(good)
    bad = await requester.publish(promt="x")
    await requester.ended(bad)
    await requester.ended(await requester.publish("nobody"))

    _, text = await get(worker, "/metrics")

    for line in (
        'hayrunner_runs_started_total{agent="support"} 2.0',
        'hayrunner_runs_ended_total{agent="support",error_code="",outcome="completed"} 1.0',
        'hayrunner_dead_letters_total{agent="support",error_code="invalid_request"} 1.0',
        'hayrunner_dead_letters_total{agent="_OTHER",error_code="unknown_agent"} 1.0',
        'hayrunner_runs_active{agent="support"} 0.0',
    ):
        assert line in text
    assert good not in text
    assert "nobody" not in text


async def test_a_port_in_use_is_one_clear_error(nats_server: EmbeddedServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(nats_url=nats_server.url, port=taken.getsockname()[1])
        worker = Worker(settings, ScriptedRegistry(ScriptedAgent()))
        with pytest.raises(ConfigurationError, match=r"HAYRUNNER_PORT.*cannot listen"):
            await worker.serve()
