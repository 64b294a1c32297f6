"""Streams, consumers and the bucket: made, changed, or refused."""

from typing import Any

import pytest
from nats.js import JetStreamContext
from tests.integration.worker.conftest import Requester
from tests.integration.worker.scripted import ScriptedAgent, ScriptedRegistry

from hayrunner.embedded import EmbeddedServer
from hayrunner.errors import ConfigurationError, LossRefused
from hayrunner.serving.app import Worker
from hayrunner.serving.provisioning import check_provisioned, provision
from hayrunner.settings import Settings

STREAMS = [
    "AGENT_REQUESTS",
    "DEAD_RUNS",
    "KV_RUNS",
    "OBJ_RUN_BLOBS",
    "OBJ_THREAD_BLOBS",
    "RUN_COMMANDS",
    "RUN_EVENTS",
    "RUN_RESULTS",
    "THREADS",
]


async def state(js: JetStreamContext) -> dict[str, Any]:
    streams: dict[str, Any] = {
        str(info.config.name): info.config for info in await js.streams_info()
    }
    consumers = await js.consumers_info("AGENT_REQUESTS")
    return {**streams, **{info.name: info.config for info in consumers}}


async def test_everything_is_made_and_a_second_time_changes_nothing(requester: Requester) -> None:
    settings = Settings()
    await provision(requester.js, settings, ["support", "billing"])
    first = await state(requester.js)
    await provision(requester.js, settings, ["support", "billing"])

    assert sorted(first) == sorted([*STREAMS, "default~support", "default~billing"])
    assert await state(requester.js) == first
    assert first["AGENT_REQUESTS"].retention == "workqueue"
    assert first["AGENT_REQUESTS"].discard == "new"
    assert first["AGENT_REQUESTS"].discard_new_per_subject
    limits = (first["AGENT_REQUESTS"].max_msgs_per_subject, first["AGENT_REQUESTS"].max_msgs)
    assert limits == (10_000, 100_000)
    assert first["DEAD_RUNS"].discard == "old"
    assert first["DEAD_RUNS"].max_msgs_per_subject == 10_000
    assert first["default~support"].filter_subject == "agents.default.support.requests"
    await check_provisioned(requester.js, settings, ["support"])


async def test_changed_settings_change_what_is_there(requester: Requester) -> None:
    await provision(requester.js, Settings(), ["support"])
    changed = Settings(
        max_queue=30_000,
        max_queue_total=40_000,
        max_dead_letters=7,
        ack_wait_s=60,
        max_attempts=7,
        events_max_age_s=600,
        results_max_age_s=999,
    )
    await provision(requester.js, changed, ["support"])

    now = await state(requester.js)
    assert now["AGENT_REQUESTS"].max_msgs_per_subject == 30_000
    assert now["AGENT_REQUESTS"].max_msgs == 40_000
    assert now["DEAD_RUNS"].max_msgs_per_subject == 7
    assert now["RUN_EVENTS"].max_age == 600
    assert now["KV_RUNS"].max_age == 999
    assert now["default~support"].ack_wait == 60
    assert now["default~support"].max_ack_pending == 30_000
    assert now["default~support"].max_deliver == 27


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"storage": "memory"}, "AGENT_REQUESTS has storage file and should have memory"),
        (
            {"max_queue": 2},
            "AGENT_REQUESTS holds 3 messages of agents.default.support.requests: a limit of 2",
        ),
        (
            {"max_queue": 2, "max_queue_total": 2},
            "AGENT_REQUESTS holds 3 messages: a limit of 2 loses some",
        ),
    ],
)
async def test_a_change_that_loses_data_is_refused(
    requester: Requester, change: dict[str, Any], said: str
) -> None:
    await provision(requester.js, Settings(), ["support"])
    for _ in range(3):
        await requester.publish()
    before = await state(requester.js)

    with pytest.raises(ConfigurationError, match=said):
        await provision(requester.js, Settings(**change), ["support"])
    assert await state(requester.js) == before


async def test_nothing_is_changed_where_anything_would_be_lost(requester: Requester) -> None:
    await provision(requester.js, Settings(), ["support"])
    for _ in range(3):
        await requester.publish()
    before = await state(requester.js)
    with pytest.raises(LossRefused) as refused:
        await provision(
            requester.js, Settings(max_queue=2, storage="memory", ack_wait_s=60), ["support"]
        )
    assert len(refused.value.problems) == len(STREAMS) + 1
    assert await state(requester.js) == before


async def test_a_queue_with_one_limit_over_all_gets_one_for_each(requester: Requester) -> None:
    await requester.js.add_stream(
        name="AGENT_REQUESTS",
        subjects=["agents.*.*.requests"],
        retention="workqueue",
        max_msgs=10_000,
        discard="new",
    )
    await requester.publish()
    await provision(requester.js, Settings(), ["support"])
    queue = (await requester.js.stream_info("AGENT_REQUESTS")).config
    assert (queue.max_msgs_per_subject, queue.max_msgs) == (10_000, 100_000)
    assert queue.discard_new_per_subject
    assert await requester.count("AGENT_REQUESTS") == 1


async def test_ages_below_the_window_of_doubles_can_be_set_on_everything(
    requester: Requester,
) -> None:
    await provision(requester.js, Settings(), ["support"])
    await provision(requester.js, Settings(results_max_age_s=30, events_max_age_s=30), [])
    now = await state(requester.js)
    assert (now["KV_RUNS"].max_age, now["KV_RUNS"].duplicate_window) == (30, 30)


async def test_a_server_without_jetstream_says_so(requester: Requester) -> None:
    js = requester.nc.jetstream(prefix="$JS.NOBODY.API")
    with pytest.raises(ConfigurationError, match="has no JetStream: start it with -js"):
        await provision(js, Settings(), [])


async def test_a_stream_with_other_subjects_is_refused(requester: Requester) -> None:
    await requester.js.add_stream(name="RUN_EVENTS", subjects=["mine.>"])
    with pytest.raises(ConfigurationError, match=r"RUN_EVENTS takes the subjects mine\.>"):
        await provision(requester.js, Settings(), ["support"])


async def test_a_worker_that_may_not_provision_says_what_is_missing(
    nats_server: EmbeddedServer,
) -> None:
    settings = Settings(nats_url=nats_server.url, port=-1, provision=False)
    worker = Worker(settings, ScriptedRegistry(ScriptedAgent()))
    with pytest.raises(ConfigurationError, match=r"AGENT_REQUESTS is missing.*hayrunner init"):
        await worker.serve()


async def test_a_worker_with_a_user_and_password_connects(
    nats_server: EmbeddedServer, requester: Requester
) -> None:
    async with EmbeddedServer(arguments=("--user", "ada", "--pass", "pw")) as server:
        settings = Settings.model_validate(
            {"nats_url": server.url, "nats_user": "ada", "nats_password": "pw", "port": -1}
        )
        async with Worker(settings, ScriptedRegistry(ScriptedAgent())) as worker:
            assert worker.problems() == []
