"""Structured output end to end: a client's type over NATS, to each provider and back."""

import dataclasses
import datetime
import enum
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from nats.aio.client import Client
from pydantic import BaseModel
from tests.unit.agent.conftest import GENERATORS, INTEGRATIONS, KEY
from tests.unit.agent.dialects import ALL, SPOKEN
from tests.unit.agent.runs import agent_over, text_of

from hayrunner.embedded import EmbeddedServer
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner.testing.provider import Scenario, ScriptedProvider
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import InvalidRequest, MaxTurns, StructuredOutputFailed
from hayrunner_contracts.events import StreamEvent, TextChunk, ToolCallStart
from hayrunner_contracts.testing import assert_valid_stream

Serve = Callable[..., Awaitable[ScriptedProvider]]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class PydanticActor(BaseModel):
    name: str
    born: datetime.date | None = None


class PydanticMovie(BaseModel):
    title: str
    colour: Colour
    cast: list[PydanticActor]
    sequel: "PydanticMovie | None" = None


class StructActor(msgspec.Struct):
    name: str
    born: datetime.date | None = None


class StructMovie(msgspec.Struct):
    title: str
    colour: Colour
    cast: list[StructActor]
    sequel: "StructMovie | None" = None


@dataclasses.dataclass
class DataActor:
    name: str
    born: datetime.date | None = None


@dataclasses.dataclass
class DataMovie:
    title: str
    colour: Colour
    cast: list[DataActor]
    sequel: "DataMovie | None" = None


class DictMovie(TypedDict):
    title: str
    colour: Literal["red", "blue"]


def of(movie: Any, actor: Any) -> Any:
    """The film of the replies below, as an instance."""
    ripley = actor(name="Ripley", born=datetime.date(2092, 1, 7))
    sequel = movie(title="Aliens", colour=Colour.BLUE, cast=[])
    return movie(
        title="Alien", colour=Colour.RED, cast=[ripley, actor(name="Jones")], sequel=sequel
    )


ALIEN = (
    '{"title":"Alien","colour":"red","cast":[{"name":"Ripley","born":"2092-01-07"},'
    '{"name":"Jones"}],"sequel":{"title":"Aliens","colour":"blue","cast":[]}}'
)
PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "colour": {"enum": ["red", "blue"]}},
    "required": ["title", "colour"],
}
SHAPES: list[tuple[Any, Any]] = [
    (PydanticMovie, of(PydanticMovie, PydanticActor)),
    (StructMovie, of(StructMovie, StructActor)),
    (DataMovie, of(DataMovie, DataActor)),
    (DictMovie, {"title": "Alien", "colour": "red"}),
    (PLAIN, msgspec.json.decode(ALIEN)),
]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture
async def nats_server() -> AsyncIterator[EmbeddedServer]:
    """One kind of server: what is tested here is not up to it."""
    async with EmbeddedServer() as server:
        yield server


@pytest.fixture
async def serve(nats_server: EmbeddedServer) -> AsyncIterator[Serve]:
    """`provider = await serve(scenario, kind, **agent_settings)`: a worker with agent `films`."""
    async with AsyncExitStack() as stack:

        async def start(scenario: Scenario, kind: str = "own", **settings: Any) -> ScriptedProvider:
            provider = await stack.enter_async_context(ScriptedProvider(scenario))
            given = {"model": "m", "api_key": KEY, "max_retries": 0}
            if kind in INTEGRATIONS:
                generator = INTEGRATIONS[kind](provider.root_url, given)
            else:
                generator = GENERATORS[kind](api_base_url=provider.base_url, **given)
            registry = Registry()
            registry.add("films", agent_over(generator, **settings))
            worker = Worker(Settings(nats_url=nats_server.url, port=-1), registry)
            await stack.enter_async_context(worker)
            return provider

        yield start


@pytest.fixture
def client(nc: Client) -> RunClient:
    return RunClient(nc)


@pytest.mark.parametrize("kind", ["own", "anthropic"])
@pytest.mark.parametrize(("wanted", "instance"), SHAPES, ids=lambda shape: str(shape)[:24])
async def test_the_callers_type_goes_to_the_provider_and_an_instance_comes_back(
    serve: Serve, client: RunClient, kind: str, wanted: Any, instance: Any
) -> None:
    provider = await serve([SPOKEN[kind].form(ALIEN[:20], ALIEN[20:])], kind)

    answer = await client.run("films", "Alien?", response_format=wanted, timeout=20)

    assert answer == instance
    assert isinstance(answer, type(instance))
    sent = SPOKEN[kind].schema(provider.requests[0].body)
    assert sent["type"] == "object"
    assert sent["properties"]["title"]["type"] == "string"


@pytest.mark.parametrize("kind", ALL)
async def test_the_streamed_text_is_the_json(serve: Serve, client: RunClient, kind: str) -> None:
    await serve([SPOKEN[kind].form(ALIEN[:20], ALIEN[20:])], kind)

    run = await client.submit("films", "Alien?", response_format=PydanticMovie)
    events = [event async for event in run.events(timeout=20)]

    assert_valid_stream(events)
    told = [event for event in events if isinstance(event, StreamEvent)]
    assert text_of(told) == ALIEN
    assert not any(isinstance(event, ToolCallStart) for event in told)
    assert (await run.result()).answer == msgspec.json.decode(ALIEN)


@pytest.mark.parametrize("kind", ["openai", "ollama"])
@pytest.mark.parametrize(("wanted", "instance"), SHAPES, ids=lambda shape: str(shape)[:24])
async def test_the_outcome_of_tools_comes_back_as_an_instance(
    serve: Serve, client: RunClient, kind: str, wanted: Any, instance: Any
) -> None:
    spoken = SPOKEN[kind]
    turns = [spoken.calls(("add", {"a": 1, "b": 2})), spoken.text("Alien."), spoken.form(ALIEN)]
    served: list[Any] = []

    def turn(body: dict[str, Any]) -> Any:
        served.append(turns[len(served)])
        return served[-1]

    await serve(turn, kind, tools=[add])
    answer = await client.run("films", "?", tools=True, then_format=wanted, timeout=20)
    assert answer == instance
    assert len(served) == 3


async def test_a_reply_that_never_fits_raises_with_the_raw_text(
    serve: Serve, client: RunClient
) -> None:
    await serve(lambda _: SPOKEN["own"].form('{"title": 5}'))
    with pytest.raises(StructuredOutputFailed) as raised:
        await client.run("films", "Alien?", response_format=StructMovie, timeout=20)
    assert raised.value.raw == '{"title": 5}'
    assert raised.value.result.model_calls == 2
    assert "5" not in str(raised.value)
    with pytest.raises(MaxTurns):
        await client.run("films", "?", response_format=StructMovie, max_turns=1, timeout=20)


async def test_a_direct_request_has_the_form_too(serve: Serve, client: RunClient) -> None:
    await serve([SPOKEN["anthropic"].form(ALIEN)], "anthropic")
    result = await client.ask("films", "Alien?", response_format=DataMovie, timeout=20)
    assert result.answer == msgspec.json.decode(ALIEN)
    events = [e async for e in client.ask_stream("films", "Alien?", response_format=DataMovie)]
    assert "".join(e.content for e in events if isinstance(e, TextChunk)) == ALIEN


TWO_FORMS: list[dict[str, Any]] = [
    {"response_format": PLAIN, "then_format": PLAIN, "tools": True},
    {"then_format": PLAIN},
    {"then_format": int, "tools": True},
]


@pytest.mark.parametrize("given", TWO_FORMS, ids=lambda given: ", ".join(given))
async def test_a_form_that_cannot_be_had_is_refused_before_anything_is_sent(
    client: RunClient, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match="then_format"):
        await client.run("films", "Alien?", **given)
