"""Every example, run as it says."""

import json
import sys
from pathlib import Path

from tests.acceptance.processes import Finished, Run, Serve
from tests.acceptance.scripted import chunk

from hayrunner.embedded import EmbeddedServer
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.testing import assert_valid_stream


async def test_the_clients_talk_to_the_support_agent(
    run: Run, serve: Serve, examples: Path, nats_server: EmbeddedServer
) -> None:
    await serve(examples / "support.py")

    async def example(name: str) -> Finished:
        done = await run(
            sys.executable, str(examples / name), "Where is order 1042?", nats_server.url
        )
        assert done.code == 0, done
        return done

    streamed = await example("client_stream.py")
    assert "-> find_order {'order_number': 1042}" in streamed.out
    assert "blue teapot" in streamed.out

    answered = (await example("client_answer.py")).out.splitlines()
    assert answered[0].startswith("durable: ")
    assert answered[1].startswith("direct:  ")
    assert answered[0][9:] == answered[1][9:]

    *events, result, asked = (await example("plain_json.py")).out.splitlines()
    assert_valid_stream([decode_event(line.encode()) for line in events])
    assert json.loads(result)["status"] == json.loads(asked)["status"] == "completed"


async def test_a_haystack_agent_is_served_as_it_is(
    run: Run, serve: Serve, hayrunner: str, examples: Path, nats_server: EmbeddedServer
) -> None:
    await serve(examples / "haystack_agent.py")
    done = await run(hayrunner, "ask", "counter", "Cube 12", "--nats", nats_server.url)
    assert done.code == 0, done
    assert '← cube {"cube": 1728}' in done.out


async def test_a_pipeline_is_served_from_yaml(
    run: Run, serve: Serve, hayrunner: str, examples: Path, nats_server: EmbeddedServer
) -> None:
    turn = [chunk({"content": "From "}), chunk({"content": "YAML."}), chunk({}, "stop")]
    async with ScriptedProvider([turn]) as provider:
        await serve(
            examples / "pipeline.yaml", OPENAI_API_KEY="k", OPENAI_BASE_URL=provider.base_url
        )
        done = await run(hayrunner, "ask", "pipeline", "hi", "--nats", nats_server.url)
    assert done.code == 0, done
    assert "From YAML." in done.out
