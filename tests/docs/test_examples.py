"""The Python examples of the documents, run in order, one namespace for each document."""

import ast
import inspect
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.embedded import EmbeddedServer
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.client import RunClient

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAMPLES = {"integer": 7, "number": 150.0, "string": "seven", "boolean": True}

Namespace = dict[str, Any]


def blocks_of(name: str) -> list[tuple[int, str]]:
    """Each example, with the line it stands at."""
    text = (DOCS / name).read_text()
    return [(text[: found.start()].count("\n") + 1, found[1]) for found in BLOCK.finditer(text)]


def answer(body: dict[str, Any]) -> Any:
    """A model that calls the first tool it is offered, once, and then answers."""
    tools = body.get("tools")
    if not tools or any(message["role"] == "tool" for message in body["messages"]):
        return text_turn("Here ", "you are. ", "4711.")
    function = tools[0]["function"]
    wanted = function["parameters"]["properties"]
    return call_turn((function["name"], {n: SAMPLES[s["type"]] for n, s in wanted.items()}))


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Namespace], Any]]:
    """Gives a namespace its `client`, once it has a `registry`."""
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(ScriptedProvider(answer))
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")

        async def start(namespace: Namespace) -> None:
            if "registry" not in namespace or "client" in namespace:
                return
            server = await stack.enter_async_context(EmbeddedServer())
            settings = Settings(nats_url=server.url, port=-1, drain_timeout_s=0.2)
            await stack.enter_async_context(Worker(settings, namespace["registry"]))
            client = await RunClient.connect(server.url)
            namespace["client"] = await stack.enter_async_context(client)

        yield start


@pytest.mark.parametrize("name", ["options.md", "hooks.md"])
async def test_the_examples_run(name: str, serve: Callable[[Namespace], Any]) -> None:
    namespace: Namespace = {"__name__": "example"}
    blocks = blocks_of(name)
    assert blocks
    for line, source in blocks:
        # Padded, so that a failure has the document's own line.
        code = compile(
            "\n" * line + source,
            str(DOCS / name),
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        outcome = eval(code, namespace)
        if inspect.isawaitable(outcome):
            await outcome
        await serve(namespace)
