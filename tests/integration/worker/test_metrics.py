"""`/metrics` of a worker with a real agent, a scripted provider and a real nats-server."""

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from tests.integration.worker.conftest import Requester
from tests.unit.agent.conftest import KEY
from tests.unit.agent.runs import agent_over, call_turn, text_turn

from hayrunner.embedded import EmbeddedServer
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner.telemetry.definitions import ALL
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.testing import eventually

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(worker: Worker) -> tuple[str, Series]:
    """The exposition, as it is and as a scraper reads it."""

    def fetch() -> str:
        with urllib.request.urlopen(f"{worker.http_url}/metrics", timeout=5) as answer:
            return answer.read().decode()

    text = await asyncio.to_thread(fetch)
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)
            assert key not in series, f"{key} is there twice"
            series[key] = sample.value
    return text, series


def secret_tool(word: str) -> str:
    """Looks a word up."""
    return f"secret {word}"


async def test_runs_and_model_calls_are_counted_without_a_word_of_them(
    nats_server: EmbeddedServer, requester: Requester
) -> None:
    good = [call_turn(("secret_tool", {"word": "secret"})), text_turn("a", " secret")]
    bad = [[{"$status": 400, "body": {"error": {"message": "secret"}}}]]
    async with ScriptedProvider(good) as answering, ScriptedProvider(bad) as failing:
        registry = Registry()
        for name, provider in (("good", answering), ("bad", failing)):
            generator = OpenAICompatibleChatGenerator(
                model=f"model-of-{name}", api_base_url=provider.base_url, api_key=KEY
            )
            registry.add(name, agent_over(generator, tools=[secret_tool]))
        settings = Settings(nats_url=nats_server.url, port=0, drain_timeout_s=0.2)
        async with Worker(settings, registry) as worker:
            await requester.watch()
            runs = [
                await requester.publish("good", prompt="secret", mode="stream", user="secret"),
                await requester.publish("bad", prompt="secret", mode="stream"),
                await requester.publish(
                    "good",
                    prompt="secret",
                    mode="stream",
                    options={"merge_params": {"model": "secret"}},
                ),
            ]
            for message_id in runs:
                await requester.ended(message_id)
            # A run is counted once its request is acked, after its last event.
            await eventually(lambda: worker.running == 0, what="the runs to be counted")
            text, series = await scraped(worker)

    assert "secret" not in text
    assert all(message_id not in text for message_id in runs)
    for definition in ALL:
        assert f"# HELP {definition.prometheus_name} " in text

    def of(name: str, **labels: str) -> float:
        return series[name, frozenset(labels.items())]

    assert of("hayrunner_runs_started_total", agent="good") == 2
    assert of("hayrunner_runs_ended_total", agent="good", outcome="completed") == 2
    failed = {"outcome": "failed", "error_code": "provider_error"}
    assert of("hayrunner_runs_ended_total", agent="bad", **failed) == 1
    assert of("hayrunner_runs_active", agent="good") == 0
    assert of("hayrunner_queue_wait_seconds_count", agent="good") == 2
    # The first and the last event of each run.
    assert of("hayrunner_event_publish_duration_seconds_count") == 6
    assert of("hayrunner_events_repaired_total") == 0

    def call(agent: str, model: str) -> dict[str, str]:
        return {
            "gen_ai_operation_name": "chat",
            "gen_ai_provider_name": "openai",
            "gen_ai_request_model": model,
            "gen_ai_agent_name": agent,
        }

    duration = "gen_ai_client_operation_duration_seconds_count"
    first_chunk = "gen_ai_client_operation_time_to_first_chunk_seconds_count"
    tokens = "gen_ai_client_token_usage_sum"
    for model in ("model-of-good", "_OTHER"):
        assert of(duration, **call("good", model)) == 2
        assert of(first_chunk, **call("good", model)) == 2
        assert of(tokens, **call("good", model), gen_ai_token_type="input") == 20
        assert of(tokens, **call("good", model), gen_ai_token_type="output") == 10
    assert of(duration, **call("bad", "model-of-bad"), error_type="provider_error") == 1
    assert (first_chunk, frozenset(call("bad", "model-of-bad").items())) not in series
