"""An answer comes in the shape the caller asked for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pydantic import BaseModel

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import StructuredOutputFailed
from hayrunner_contracts.requests import RunRequest

if TYPE_CHECKING:
    from tests.integration.client.conftest import ScriptedWorker

Start = Callable[[Any], "asyncio.Task[Any]"]


class MovieModel(BaseModel):
    title: str


class MovieStruct(msgspec.Struct):
    title: str


@dataclasses.dataclass
class MovieDataclass:
    title: str


async def answered(worker: ScriptedWorker, answer: Any) -> RunRequest:
    request = await worker.take("support")
    await worker.complete(request, answer)
    return request


@pytest.mark.parametrize("wanted", [MovieModel, MovieStruct, MovieDataclass])
async def test_a_class_gives_an_instance(
    client: RunClient, worker: ScriptedWorker, tasks: Start, wanted: type[Any]
) -> None:
    working = tasks(answered(worker, {"title": "Alien"}))
    movie = await client.run("support", "text", response_format=wanted)

    assert movie == wanted(title="Alien")
    schema = (await working).response_format
    assert schema["type"] == "object"
    assert schema["required"] == ["title"]


async def test_a_schema_gives_the_json_value(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    working = tasks(answered(worker, {"title": "Alien"}))

    assert await client.run("support", "text", response_format=schema) == {"title": "Alien"}
    assert (await working).response_format == schema


async def test_none_clears_the_agents_own_format(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    working = tasks(answered(worker, "text"))

    assert await client.run("support", "text", response_format=None) == "text"
    assert (await working).response_format is None


async def test_an_answer_that_does_not_fit_is_an_error(
    client: RunClient, worker: ScriptedWorker, tasks: Start
) -> None:
    tasks(answered(worker, {"name": "Alien"}))

    with pytest.raises(StructuredOutputFailed):
        await client.run("support", "text", response_format=MovieModel)
