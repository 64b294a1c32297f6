"""`hayrunner runs`, in processes of their own."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from tests.acceptance.processes import Finished, Run, Serve, Start
from tests.acceptance.scripted import SLOW_AGENT, chunk

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.replay import StoredSubject
from hayrunner_contracts.subjects import RUN_EVENTS, events
from hayrunner_contracts.testing import assert_valid_stream, eventually

ENDLESS = [[chunk({"content": "piece "}), {"$hang": True}]]


async def test_a_run_is_listed_shown_tailed_and_cancelled(
    run: Run,
    start: Start,
    serve: Serve,
    hayrunner: str,
    tmp_path: Path,
    nats_server: EmbeddedServer,
) -> None:
    target = tmp_path / "slow.py"
    target.write_text(SLOW_AGENT)
    at = ("--nats", nats_server.url)

    async def runs(*arguments: str) -> Finished:
        return await run(hayrunner, "runs", *arguments, *at)

    async def listed(*arguments: str) -> list[dict[str, Any]]:
        done = await runs("list", "--json", *arguments)
        assert done.code == 0, done
        return [json.loads(line) for line in done.out.splitlines()]

    async with (
        ScriptedProvider(ENDLESS) as provider,
        await RunClient.connect(nats_server.url) as client,
    ):
        await run(hayrunner, "init", "--agent", "slow", *at)
        message_id = (await client.submit("slow", "hi")).message_id
        [queued] = await listed("--status", "queued")
        assert (queued["message_id"], queued["agent"]) == (message_id, "slow")

        worker = await serve(target, OPENAI_API_KEY="k", OPENAI_BASE_URL=provider.base_url)
        tail = await start(hayrunner, "runs", "tail", message_id, *at)
        await tail.read_until(b"piece")
        left = await start(hayrunner, "runs", "tail", message_id, *at)
        await left.read_until(b"piece")
        left.send(signal.SIGINT)
        assert await left.ended() == 130
        assert "the run goes on" in left.errors
        [running] = await listed("--agent", "slow", "--limit", "5")
        assert running["status"] == "running"
        shown = await runs("show", message_id)
        assert "status     running" in shown.out, shown
        assert "text       piece" in shown.out

        cancelled = await runs("cancel", message_id, "--reason", "enough")
        assert (cancelled.code, cancelled.out) == (0, "cancel taken\n"), cancelled
        assert await tail.ended() == 1
        [ended] = await listed("--status", "done")
        assert ended["status"] == "cancelled"
        details = json.loads((await runs("show", message_id, "--json")).out)
        assert details["result"]["error"]["code"] == "cancelled"
        again = await runs("cancel", message_id)
        assert again.code == 0, again

        replayed, rest = await asyncio.gather(
            runs("tail", message_id, "--json"), runs("tail", message_id, "--json", "--after", "2")
        )
        lines = replayed.out.encode().splitlines()
        assert_valid_stream([decode_event(line) for line in lines])
        stored, _ = await StoredSubject(
            client.connection, RUN_EVENTS, events("default", message_id)
        ).after(0)
        assert lines == [message.data for message in stored]
        assert rest.out.encode().splitlines() == lines[2:]

        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0
        await eventually(lambda: provider.disconnects)
