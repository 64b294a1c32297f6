"""This project's worker for `cancel.py`: an agent whose one tool waits for another server.

Takes the generator, the provider's and the NATS server's address, and a port for its health.
"""

import sys
from typing import Any

import aiohttp
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.utils import Secret

from hayrunner import Agent, Registry
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.serving.process import run_worker
from hayrunner.settings import load_settings

_CONCURRENCY = 128
"""More slots than any load has runs at once."""


def waiting_agent(generator: str, provider: str) -> Agent:
    """The agent; its tool's connection to the provider closes when the tool is cancelled."""

    async def wait_for(label: str) -> str:
        """Wait for an answer."""
        body = {
            "model": "bench-1",
            "stream": True,
            "messages": [{"role": "user", "content": label}],
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{provider}/chat/completions", json=body) as answer,
        ):
            return await answer.text()

    kinds: dict[str, Any] = {
        "own": OpenAICompatibleChatGenerator,
        "haystack": OpenAIChatGenerator,
    }
    llm = kinds[generator](
        model="bench-1",
        api_key=Secret.from_token("not-a-key"),
        api_base_url=provider,
        max_retries=0,
    )

    class Waiting(Agent):
        name = "waiting"
        tools = (wait_for,)

        def get_llm(self) -> Any:
            return llm

    return Waiting()


def _main(generator: str, provider: str, nats: str, port: str) -> None:
    settings = load_settings(
        nats_url=nats,
        namespace="bench",
        concurrency=_CONCURRENCY,
        port=int(port),
        drain_timeout_s=2,
        log_level="WARNING",
    )
    run_worker(settings, Registry([waiting_agent(generator, provider)]))


if __name__ == "__main__":
    _main(*sys.argv[1:5])
