"""The examples of docs/structured-output.md run as they stand there."""

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.dialects import SPOKEN

from hayrunner.embedded import EmbeddedServer
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner.testing.provider import ScriptedProvider

PAGE = Path(__file__).parents[3] / "docs" / "structured-output.md"
MOVIE = {"title": "Alien", "year": 1979, "cast": [{"name": "Sigourney Weaver"}]}


def reply(body: dict[str, Any]) -> Any:
    """What a model would say to the questions on the page."""
    spoken = SPOKEN["own"]
    schema = spoken.schema(body) or {}
    asked = json.dumps(body["messages"])
    if "no film" in asked:
        return spoken.form("{}")
    if "earn" in asked and not schema:
        called = body["messages"][-1]["role"] == "tool"
        text = spoken.text("It earned 104 million.")
        return text if called else spoken.calls(("box_office", {"title": "Alien"}))
    if "enum" in schema:
        return spoken.form('"good"')
    if "dollars" in schema.get("properties", {}):
        return spoken.form('{"dollars": 104000000}')
    return spoken.form(json.dumps(MOVIE)) if schema else spoken.text("Alien, of 1979.")


async def test_the_examples_of_the_page_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async with EmbeddedServer() as server:
        await run_page(server.url, monkeypatch)


async def run_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text().replace("nats://localhost:4222", url)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    async with ScriptedProvider(reply) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        monkeypatch.setenv("HAYRUNNER_MODEL", "m")
        await run(blocks[0], names)
        # The agents of the page, as a worker would serve them.
        agents = next(block for block in blocks if "class Accountant" in block)
        await run("import dataclasses\n" + agents.partition("async with")[0], names)
        registry = Registry([names["Films"], names["Accountant"]])
        async with Worker(Settings(nats_url=url, port=-1), registry):
            for block in blocks[1:]:
                await run(block, names)
        await names["films"].close()
    assert (names["title"].title, names["text"]) == ("Alien", "Alien, of 1979.")
    assert names["movie"].cast[0].name == "Sigourney Weaver"


async def run(code: str, names: dict[str, Any]) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    started = eval(compile(code, str(PAGE), "exec", flags=flags, dont_inherit=True), names)
    if inspect.isawaitable(started):
        await started
