"""`hayrunner check` against real servers: each mistake an operator can make is named."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hayrunner.cli.checks import Check, Report, examine
from hayrunner.cli.connecting import connect
from hayrunner.cli.exits import ExitCode
from hayrunner.cli.provisioned import Inventory
from hayrunner.embedded import EmbeddedServer
from hayrunner.errors import ConfigurationError
from hayrunner.serving.provisioning import provision
from hayrunner.settings import Settings, load_settings

EXAMPLES = Path(__file__).parents[3] / "examples"
SUPPORT = str(EXAMPLES / "support.py")

USERS = """
authorization { users = [
  {user: full, password: x}
  {user: some, password: x, permissions: {
    publish: ["$JS.API.>", "runs.*.*.events"], subscribe: ["_INBOX.>", "workers.>"]}}
  {user: none, password: x, permissions: {publish: ["nothing"], subscribe: ["_INBOX.>"]}}
] }
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    config = tmp_path / "users.conf"
    config.write_text(USERS)
    async with EmbeddedServer(arguments=("-c", str(config))) as server:
        yield server


@pytest.fixture
def settings(server: EmbeddedServer) -> Settings:
    return as_user(server, "full")


def as_user(server: EmbeddedServer, user: str, **more: object) -> Settings:
    return load_settings(
        nats_url=server.url, nats_user=user, nats_password="x", storage="memory", **more
    )


async def set_up(settings: Settings, *agents: str) -> None:
    async with await connect(settings) as client:
        await provision(client.connection.jetstream(), settings, agents)


def found(report: Report, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


async def test_a_server_that_has_everything_passes(settings: Settings) -> None:
    await set_up(settings, "support")
    report = await examine(settings, SUPPORT)
    assert {check.state for check in report.checks} == {"ok"}
    assert report.exit_code is ExitCode.DONE
    assert found(report, "agents").detail == "support"


async def test_nothing_that_is_tried_is_stored(settings: Settings) -> None:
    await set_up(settings, "support")
    await examine(settings, SUPPORT)
    async with await connect(settings) as client:
        for stream in await client.connection.jetstream().streams_info():
            assert stream.state.messages == 0, stream.config.name


async def test_no_server_is_a_code_of_its_own() -> None:
    report = await examine(load_settings(nats_url="nats://127.0.0.1:1"), None)
    assert report.exit_code is ExitCode.UNREACHABLE
    assert found(report, "connection").advice.startswith("start `nats-server -js`")


async def test_missing_streams_are_a_note_where_workers_make_them_and_a_problem_where_not(
    server: EmbeddedServer, settings: Settings
) -> None:
    report = await examine(settings, SUPPORT)
    assert found(report, "streams and consumers").state == "note"
    assert report.exit_code is ExitCode.DONE

    report = await examine(as_user(server, "full", provision=False), SUPPORT)
    check = found(report, "streams and consumers")
    assert check.state == "problem"
    assert "consumer of support" in check.detail
    assert check.advice == "run `hayrunner init` --agent support"
    assert report.exit_code is ExitCode.USAGE


async def test_what_a_user_may_not_do_is_listed(server: EmbeddedServer, settings: Settings) -> None:
    await set_up(settings, "support")
    report = await examine(as_user(server, "some"), SUPPORT)
    detail = found(report, "permissions").detail
    assert "publish on runs.default.*.result" in detail
    assert "publish on agents.default.support.requests" in detail
    assert "subscribe to agents.default.support.ask" in detail
    assert "events" not in detail
    assert "workers" not in detail
    assert report.exit_code is ExitCode.USAGE


async def test_a_user_that_may_not_ask_jetstream_is_told_so(server: EmbeddedServer) -> None:
    report = await examine(as_user(server, "none"), None)
    assert "$JS.API.>" in found(report, "JetStream").advice


async def test_agents_that_cannot_be_loaded_are_a_problem(
    settings: Settings, tmp_path: Path
) -> None:
    report = await examine(settings, str(tmp_path / "nowhere.py"))
    assert "there is no such file" in found(report, "agents").detail
    assert report.exit_code is ExitCode.USAGE


async def test_a_missing_key_is_a_problem_of_the_agent_that_needs_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    target = tmp_path / "keyed.py"
    target.write_text(
        "from hayrunner import Agent\n"
        "class A(Agent):\n    name = 'a'\n    model = 'm'\n"
        "class B(Agent):\n    name = 'b'\n"
    )
    report = await examine(settings, str(target))
    assert "OPENAI_API_KEY is not set" in found(report, "model of a").detail
    assert "b has no model" in found(report, "model of b").detail
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    report = await examine(settings, str(target))
    assert found(report, "model of a").state == "ok"


async def test_an_inventory_tells_created_from_updated_from_unchanged(
    server: EmbeddedServer, settings: Settings
) -> None:
    async def changes(settings: Settings, *agents: str) -> dict[str, str]:
        async with await connect(settings) as client:
            jetstream = client.connection.jetstream()
            inventory = Inventory(jetstream, settings, agents)
            before = await inventory.take()
            await provision(jetstream, settings, agents)
            return inventory.changes(before, await inventory.take())

    assert set((await changes(settings)).values()) == {"created"}
    again = await changes(as_user(server, "full", results_max_age_s=99_999), "support")
    assert again["stream RUN_RESULTS"] == "updated"
    assert again["stream RUN_EVENTS"] == "unchanged"
    assert again["consumer of support"] == "created"


async def test_an_agents_name_that_cannot_be_one_is_refused(settings: Settings) -> None:
    async with await connect(settings) as client:
        with pytest.raises(ConfigurationError, match="--agent"):
            Inventory(client.connection.jetstream(), settings, ["a b"])
