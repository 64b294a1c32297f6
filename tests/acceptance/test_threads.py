"""Threads from the command line, and workers that are killed while they have one."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.processes import Finished, Run, Serve
from tests.acceptance.scripted import SLOW_AGENT, slow_text

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.testing import eventually


async def test_a_conversation_from_beginning_to_restored(
    run: Run, serve: Serve, hayrunner: str, examples: Path, nats_server: EmbeddedServer
) -> None:
    await serve(examples / "support.py")
    at = ("--nats", nats_server.url)

    async def threads(*arguments: str) -> Finished:
        return await run(hayrunner, "threads", *arguments, *at)

    async def chat(*arguments: str, stdin: str) -> Finished:
        return await run(hayrunner, "chat", "support", *arguments, *at, stdin=stdin)

    talked = await chat("--thread", "t", stdin="Where is order 7?\n/thread\n/what\n\nThanks!\n")
    assert talked.code == 0, talked
    assert "walnut chess board" in talked.out
    assert "\nt\n" in talked.out
    assert "no such command; /exit ends" in talked.err
    told = await chat("--thread", "t", "--json", stdin="And order 1042?\n/exit\nnever asked\n")
    events = [json.loads(line) for line in told.out.splitlines()]
    assert [event["thread_id"] for event in events if event["type"] == "message_start"] == ["t"]

    listed = await threads("list", "--json")
    assert listed.code == 0, listed
    info: dict[str, Any] = json.loads(listed.out)
    assert (info["thread_id"], info["runs"]) == ("t", 3)

    shown = json.loads((await threads("show", "t", "--json")).out)
    message_id = shown["log"][0]["message_id"]
    assert shown["log"][0]["agent"] == "support"
    rated = await threads("rate", "t", message_id, "down", "--comment", "Too slow.")
    assert (rated.code, rated.out) == (0, "rated t\n")
    text = (await threads("show", "t")).out
    assert "user: Where is order 7?" in text
    assert "rated down: Too slow." in text

    deleted = await threads("delete", "t", "--json")
    assert json.loads(deleted.out) == {"thread_id": "t", "change": "deleted"}
    assert (await threads("list")).out == ""
    assert "(deleted)" in (await threads("list", "--deleted")).out
    refused = await chat("--thread", "t", stdin="Still there?\n")
    assert refused.code == 1, refused
    assert "thread is deleted" in refused.out
    assert (await threads("restore", "t")).code == 0
    assert (await chat("--thread", "t", stdin="Still there?\n")).code == 0
    again = json.loads((await threads("show", "t", "--json")).out)
    assert (again["runs"], again["ratings"][message_id]["rating"]) == (4, "down")

    for arguments, said in (
        (("show", "nobody"), "there is no such thread"),
        (("rate", "t", message_id, "great"), "a rating is up, down, a number, or none"),
        (("rate", "t", "x", "up"), "message_id: must be a UUID"),
        (("delete", "a.b"), "thread_id: must be"),
    ):
        failed = await threads(*arguments)
        assert failed.code == 2, failed
        assert said in failed.err
        assert failed.err.count("\n") == 1


@pytest.mark.parametrize("direct", [False, True], ids=["durable", "direct"])
async def test_a_thread_of_a_killed_worker_goes_on(
    serve: Serve, nats_server: EmbeddedServer, tmp_path: Path, direct: bool
) -> None:
    """A durable run is taken over and keeps its turn; a direct one died with its worker."""
    target = tmp_path / "slow.py"
    target.write_text(SLOW_AGENT)
    calls = 0

    def turn(_: dict[str, Any]) -> list[dict[str, Any]]:
        nonlocal calls
        calls += 1
        return [{"$hang": True}] if calls == 1 else list(slow_text(0.1))

    async with (
        ScriptedProvider(turn) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        more = {
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": provider.base_url,
            "HAYRUNNER_ACK_WAIT_S": "1",
        }
        killed = await serve(target, **more)
        call = client.ask if direct else client.run
        first = asyncio.create_task(call("slow", "one", thread_id="t", timeout=30))
        await eventually(lambda: provider.requests, what="the first model call")
        await serve(target, **more)
        second = asyncio.create_task(client.run("slow", "two", thread_id="t", timeout=30))
        killed.send(signal.SIGKILL)
        await second
        last = provider.requests[-1].body["messages"]
        asked = [message["content"] for message in last if message["role"] == "user"]
        if direct:
            first.cancel()
            assert asked == ["two"]
        else:
            await first
            assert asked == ["one", "two"]
        said = [message.role for message in await client.threads.messages("t")]
        assert said == ["user", "assistant"] * len(asked)
