"""The examples of the documents run."""

import ast
import inspect
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hayrunner.agent import Agent
from hayrunner.testing.provider import ScriptedProvider

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SOME = {"string": "x", "integer": 7}


def turn(body: dict[str, Any]) -> list[dict[str, Any]]:
    """A model that calls its first tool once, whatever is asked, and says the same after it."""
    tools = body.get("tools") or []
    if tools and not any(message["role"] == "tool" for message in body["messages"]):
        function = tools[0]["function"]
        fields = function["parameters"]["properties"]
        arguments = {
            name: _SOME[fields[name]["type"]] for name in function["parameters"]["required"]
        }
        given = {"name": function["name"], "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": "call_0", "type": "function", "function": given}
        return [_chunk({"tool_calls": [call]}), _chunk({}, "tool_calls")]
    return [_chunk({"content": "Here you are."}), _chunk({}, "stop")]


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices}


@pytest.fixture
async def generators(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Closes the clients of agents that an example leaves open, as a reader's script may."""
    made: list[Any] = []
    make = Agent.get_llm

    def get_llm(agent: Agent) -> Any:
        made.append(make(agent))
        return made[-1]

    monkeypatch.setattr(Agent, "get_llm", get_llm)
    yield
    for generator in made:
        await generator.close_async()


@pytest.mark.usefixtures("generators")
async def test_the_examples_of_the_page_on_agents_run(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = _BLOCK.findall((DOCS / "agents.md").read_text())
    assert len(blocks) > 6
    names: dict[str, Any] = {"__name__": "example"}
    async with ScriptedProvider(turn) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        for block in blocks:
            code = compile(block, "docs/agents.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            outcome = eval(code, names)
            if inspect.iscoroutine(outcome):
                await outcome
    assert names["answer"] == "Here you are."
    assert names["registry"].names() == ["counter", "rag", "support"]
    for name in names["registry"].names():
        await names["registry"].get(name).close()
