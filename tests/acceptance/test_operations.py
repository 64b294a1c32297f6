"""What an operator does: init, and dead letters, of which one kills every worker that tries it."""

import json
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.processes import Run, Serve
from tests.acceptance.scripted import slow_text, text_of_slow_run

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.testing import eventually

KILLER = """
import os, signal
from pathlib import Path
from hayrunner import Agent

class Killer(Agent):
    name = "killer"
    model = "scripted"

    def get_system_prompt(self):
        if not Path(__file__).with_name("repaired").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return "Be kind."
"""


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "killer.py"
    target.write_text(KILLER)
    return target


async def test_a_request_that_kills_every_worker_ends_and_is_run_again_when_that_is_repaired(
    run: Run, serve: Serve, hayrunner: str, target: Path, nats_server: EmbeddedServer
) -> None:
    at = ("--nats", nats_server.url)
    async with (
        ScriptedProvider(lambda _: slow_text(0.1)) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        environment = {
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": provider.base_url,
            "HAYRUNNER_ACK_WAIT_S": "1",
            "HAYRUNNER_MAX_ATTEMPTS": "2",
        }
        worker = await serve(target, **environment)
        submitted = await client.submit("killer", "hello")
        for _ in range(2):
            assert await worker.ended() == -signal.SIGKILL
            worker = await serve(target, **environment)
        result = await submitted.result(timeout=30)
        assert result.error is not None
        assert (result.status, result.error.code, result.attempts) == ("failed", "worker_lost", 2)

        (listed,) = lines_of((await run(hayrunner, "dead", "list", "--json", *at)).out)
        number = str(listed["number"])
        assert (listed["agent"], listed["reason"], listed["message_id"]) == (
            "killer",
            "worker_lost",
            submitted.message_id,
        )
        shown = await run(hayrunner, "dead", "show", number, *at)
        assert shown.code == 0, shown
        assert '"prompt":"hello"' in shown.out

        target.with_name("repaired").touch()
        retried = await run(hayrunner, "dead", "retry", number, "--json", *at)
        assert retried.code == 0, retried
        new_id = json.loads(retried.out)["message_id"]
        result = await client.result(new_id, timeout=20)
        assert (result.status, result.attempts) == ("completed", 1)
        assert result.answer == text_of_slow_run()
        assert (await run(hayrunner, "dead", "list", *at)).out == ""
        again = await run(hayrunner, "dead", "retry", number, *at)
        assert again.code == 2, again
        assert again.err == (
            f"hayrunner: there is no dead letter {number} in namespace default: "
            "see `hayrunner dead list`\n"
        )


async def test_dead_letters_are_run_again_or_dropped_by_number_or_all_of_an_agent(
    run: Run, hayrunner: str, target: Path, serve: Serve, nats_server: EmbeddedServer
) -> None:
    at = ("--nats", nats_server.url)
    await serve(target)
    async with await RunClient.connect(nats_server.url) as client:
        js = client.connection.jetstream()
        for body in (b"\xff\x00", b'{"prompt": "\x1b[2J"}', b"{}"):
            await js.publish("agents.default.killer.requests", body)
        await js.publish("agents.default.nobody.requests", b'{"prompt": "hi"}')

        async def all_dead() -> bool:
            return (await js.stream_info("DEAD_RUNS")).state.messages == 4

        await eventually(all_dead, 20, what="four dead letters")

    listed = await run(hayrunner, "dead", "list", *at)
    assert len(listed.out.splitlines()) == 4, listed
    numbers = [
        entry["number"]
        for entry in lines_of(
            (await run(hayrunner, "dead", "list", "--json", "--agent", "killer", *at)).out
        )
    ]
    assert len(numbers) == 3
    assert numbers == sorted(numbers, reverse=True)

    for number in numbers:
        shown = await run(hayrunner, "dead", "show", str(number), *at)
        assert shown.code == 0, shown
        assert "\x1b" not in shown.out
    as_json = await run(hayrunner, "dead", "show", str(numbers[-1]), "--json", *at)
    assert json.loads(as_json.out)["body_base64"] == "/wA="

    for arguments in ((), ("--agent", "killer"), (str(numbers[0]), "--all")):
        refused = await run(hayrunner, "dead", "drop", *arguments, *at)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
        assert "--all" in refused.err
    one = await run(hayrunner, "dead", "drop", str(numbers[0]), *at)
    assert (one.code, one.out) == (0, f"dropped {numbers[0]}\n")
    rest = await run(hayrunner, "dead", "drop", "--all", "--agent", "killer", *at)
    assert rest.out.splitlines() == [f"dropped {number}" for number in sorted(numbers[1:])]
    unknown = await run(hayrunner, "dead", "retry", "--all", *at)
    assert unknown.code == 2, unknown
    assert "nobody" in unknown.err
    assert len((await run(hayrunner, "dead", "list", *at)).out.splitlines()) == 1


async def test_init_changes_nothing_twice_and_refuses_what_loses_data_line_by_line(
    run: Run, hayrunner: str, nats_server: EmbeddedServer
) -> None:
    init = (hayrunner, "init", "--agent", "support", "--nats", nats_server.url)
    first = await run(*init)
    assert first.code == 0, first
    assert {line.split()[0] for line in first.out.splitlines()} == {"created"}
    second = await run(*init)
    assert {line.split()[0] for line in second.out.splitlines()} == {"unchanged"}

    async with await RunClient.connect(nats_server.url) as client:
        js = client.connection.jetstream()
        for _ in range(3):
            await client.submit("support", "hi")
            await js.publish("dead.default.support", b"x")
        for _ in range(2):
            await client.connection.publish(f"runs.default.{uuid.uuid4()}.events", b"{}")
        await client.connection.flush()
        old = time.monotonic() + 1.1
        await eventually(lambda: time.monotonic() > old, what="events that are a second old")

    changed = {"HAYRUNNER_MAX_QUEUE": "2", "HAYRUNNER_MAX_DEAD_LETTERS": "1"}
    refused = await run(*init, **changed, HAYRUNNER_EVENTS_MAX_AGE_S="1")
    assert refused.code == 2, refused
    assert refused.err.splitlines() == [
        "hayrunner: stream AGENT_REQUESTS holds 3 messages of agents.default.support.requests: "
        "a limit of 2 loses some",
        "hayrunner: stream RUN_EVENTS holds messages older than 1 s: that limit loses them",
        "hayrunner: stream DEAD_RUNS holds 3 messages of dead.default.support: "
        "a limit of 1 loses some",
    ]
    assert refused.out == ""
    after = await run(*init)
    assert {line.split()[0] for line in after.out.splitlines()} == {"unchanged"}

    copies = await run(*init, HAYRUNNER_REPLICAS="3")
    assert copies.code == 2, copies
    assert "cannot have 3 copies" in copies.err
    assert copies.err.count("\n") == 1
