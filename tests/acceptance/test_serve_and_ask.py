"""`hayrunner serve` and `hayrunner ask`, in processes of their own."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.processes import Finished, Run, Serve, Start
from tests.acceptance.scripted import SLOW_AGENT, chunk, slow_text

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.codec import decode_event, encode
from hayrunner_contracts.testing import assert_valid_stream, eventually

PROMPT = "Where is order 1042, and what is that in GBP?"


async def test_one_worker_answers_in_every_way_of_asking(
    run: Run, serve: Serve, hayrunner: str, examples: Path, nats_server: EmbeddedServer
) -> None:
    """One worker for all of them: starting it is what takes time."""
    worker = await serve(examples / "support.py")

    async def ask(*arguments: str, stdin: str | None = None) -> Finished:
        return await run(
            *(hayrunner, "ask", "support", *arguments, "--nats", nats_server.url), stdin=stdin
        )

    streamed = await ask(PROMPT)
    assert streamed.code == 0, streamed
    assert '→ find_order {"order_number":1042}' in streamed.out
    assert '← convert_price {"price": 26.77, "currency": "GBP"}' in streamed.out
    assert "offline-demo" in streamed.out

    async def ask_each_way(way: str) -> None:
        as_json = await ask(PROMPT, "--json", way)
        assert as_json.code == 0, as_json
        lines = [line.encode() for line in as_json.out.splitlines()]
        assert_valid_stream([decode_event(line) for line in lines])
        assert [encode(decode_event(line)) for line in lines] == lines

        answered = await ask("--answer", "--tools", way, "-", stdin="order 7")
        assert answered.code == 0, answered
        assert "walnut chess board" in answered.out
        assert "→" not in answered.out

        result: dict[str, Any] = json.loads((await ask("--answer", "--json", way, "hi")).out)
        assert result["status"] == "completed"
        assert result["model_calls"] == 1

    await asyncio.gather(ask_each_way("--durable"), ask_each_way("--direct"))

    failed = await ask(PROMPT, "--max-turns", "1")
    assert failed.code == 1, failed
    assert "max_turns: " in failed.out

    failed = await ask(PROMPT, "--answer", "--tools", "--option", "max_turns=1")
    assert failed.code == 1, failed
    assert failed.err.startswith("hayrunner: max_turns: ")

    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert "Traceback" not in worker.errors


QUESTIONS_AND_REFUSALS = (
    (("nobody", "hi"), "unknown_agent: "),
    (("nobody", "hi", "--direct"), "unknown_agent: "),
    (("a b", "hi"), "invalid_request: agent: "),
    (("support", "hi", "--option", "max_turn=1"), "did you mean 'max_turns'"),
    (("support", "hi", "--namespace", "a.b"), "HAYRUNNER_NAMESPACE: "),
    (("support",), "invalid_request: prompt: must not be empty"),
)


async def test_a_question_that_cannot_be_asked_says_why_in_one_line(
    run: Run, hayrunner: str, nats_server: EmbeddedServer
) -> None:
    at = ("--nats", nats_server.url)
    await run(hayrunner, "init", *at)
    outcomes = await asyncio.gather(
        *(run(hayrunner, "ask", *arguments, *at) for arguments, _ in QUESTIONS_AND_REFUSALS)
    )
    for done, (_, said) in zip(outcomes, QUESTIONS_AND_REFUSALS, strict=True):
        assert done.code == 2, done
        assert said in done.err
        assert done.err.count("\n") == 1
        assert done.out == ""


async def test_without_a_server_the_code_is_3_and_the_line_says_what_to_do(
    run: Run, hayrunner: str
) -> None:
    commands = (("ask", "support", "hi"), ("check",), ("init",))
    for done in await asyncio.gather(
        *(run(hayrunner, *command, "--nats", "nats://127.0.0.1:1") for command in commands)
    ):
        assert done.code == 3, done
        assert "cannot reach NATS at nats://127.0.0.1:1" in done.out + done.err
        assert "start `nats-server -js`" in done.out + done.err
        assert "Traceback" not in done.err


async def test_a_target_that_cannot_be_served_is_refused_before_anything_starts(
    run: Run, hayrunner: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_thing\n")
    done = await run(hayrunner, "serve", str(broken))
    assert done.code == 2, done
    assert done.err == (
        f"hayrunner: {broken}, line 1: ModuleNotFoundError: No module named 'no_such_thing'\n"
    )


async def test_init_and_check_agree_and_init_can_be_repeated(
    run: Run, hayrunner: str, examples: Path, nats_server: EmbeddedServer
) -> None:
    support = str(examples / "support.py")
    at = ("--nats", nats_server.url)
    first = await run(hayrunner, "init", support, *at)
    assert first.code == 0, first
    assert "created    consumer of support" in first.out
    again = await run(hayrunner, "init", "--agent", "support", "--json", *at)
    assert set(json.loads(again.out).values()) == {"unchanged"}
    checked = await run(hayrunner, "check", support, *at, HAYRUNNER_PROVISION="false")
    assert checked.code == 0, checked
    assert "Everything is well." in checked.out
    report = await run(hayrunner, "check", "--json", *at)
    assert json.loads(report.out)["ok"] is True


async def test_a_run_that_takes_longer_than_its_timeout_is_code_4(
    run: Run, serve: Serve, hayrunner: str, tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    target = tmp_path / "slow.py"
    target.write_text(SLOW_AGENT)
    at = ("--nats", nats_server.url)
    async with ScriptedProvider([slow_text(60)]) as provider:
        await serve(target, OPENAI_API_KEY="k", OPENAI_BASE_URL=provider.base_url)
        done = await run(hayrunner, "ask", "slow", "hi", "--timeout", "0.5", *at)
        assert done.code == 4, done
        assert "deadline_exceeded" in done.out


@pytest.mark.parametrize(("choice", "ends"), [("leave", False), ("cancel", True)])
async def test_ctrl_c_leaves_the_run_or_cancels_it(
    start: Start,
    serve: Serve,
    hayrunner: str,
    tmp_path: Path,
    nats_server: EmbeddedServer,
    choice: str,
    ends: bool,
) -> None:
    target = tmp_path / "slow.py"
    target.write_text(SLOW_AGENT)
    endless = [[chunk({"content": "piece "}), {"$hang": True}]]
    async with ScriptedProvider(endless) as provider:
        worker = await serve(target, OPENAI_API_KEY="k", OPENAI_BASE_URL=provider.base_url)
        asking = await start(
            *(hayrunner, "ask", "slow", "hi", "--on-interrupt", choice),
            *("--nats", nats_server.url),
        )
        await asking.read_until(b"piece")
        asking.send(signal.SIGINT)
        assert await asking.ended() == 130
        if ends:
            await eventually(lambda: provider.disconnects, what="the provider call to be cut")
            await worker.said("status=cancelled")
        else:
            assert "no longer watching; the run goes on: " in asking.errors
            assert provider.disconnects == []


async def test_schemas_are_written_and_checked(run: Run, hayrunner: str, tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    assert (await run(hayrunner, "schema", "--check", "--folder", str(folder))).code == 1
    assert (await run(hayrunner, "schema", "--folder", str(folder))).code == 0
    assert (await run(hayrunner, "schema", "--check", "--folder", str(folder))).code == 0
    assert (folder / "asyncapi.json").exists()


async def test_a_reader_that_leaves_ends_the_command_quietly(run: Run, hayrunner: str) -> None:
    done = await run("/bin/sh", "-c", f"{{ '{hayrunner}' demo --json; echo $? >&2; }} | head -n 2")
    assert len(done.out.splitlines()) == 2
    assert done.err == "141\n"
