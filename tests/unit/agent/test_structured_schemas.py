"""Schemas of every shape: what is sent, what is accepted, what is refused before a call."""

import datetime
import enum
import json
import uuid
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.unit.agent.conftest import Provide
from tests.unit.agent.dialects import ALL, SPOKEN
from tests.unit.agent.runs import agent_over, tell

from hayrunner.adapters.run import Run
from hayrunner.adapters.schema_forms import allows_strict, bad_reference, named_in
from hayrunner.adapters.structured import ResponseFormat
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.errors import InvalidRequest


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    city: str | None = None


class Person(BaseModel):
    name: str
    address: Address
    colours: list[Colour] = []
    nickname: str | None = None


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Pet(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


class Event(BaseModel):
    model_config = ConfigDict(strict=True)
    id: uuid.UUID
    day: datetime.date
    at: datetime.datetime
    tags: set[str] = set()


MODELS: list[BaseModel] = [
    Person(name="Ann", address=Address(street="Elm", city="X"), colours=[Colour.RED]),
    Person(name="Ann", address=Address(street="Elm")),
    Node(value=1, children=[Node(value=2, children=[Node(value=3)]), Node(value=4)]),
    Pet(pet=Dog(kind="dog", name="Rex")),
    Event(
        id=uuid.UUID(int=7),
        day=datetime.date(2026, 1, 2),
        at=datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC),
        tags={"a"},
    ),
]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("value", MODELS, ids=lambda value: type(value).__name__)
async def test_a_model_of_any_shape_comes_back_as_an_instance(
    provide: Provide, kind: str, value: BaseModel
) -> None:
    provider, generator = await provide([SPOKEN[kind].form(value.model_dump_json())], kind)

    assert await Run(generator).run("?", response_format=type(value)) == value

    sent = SPOKEN[kind].schema(provider.requests[0].body)
    assert sent["type"] == "object"
    jsonschema.Draft202012Validator(sent).validate(value.model_dump(mode="json"))


@pytest.mark.parametrize("kind", ALL)
async def test_a_recursive_schema_has_its_object_on_top(provide: Provide, kind: str) -> None:
    """Pydantic puts a bare reference there, which providers refuse."""
    assert Node.model_json_schema()["$ref"] == "#/$defs/Node"
    turn = SPOKEN[kind].form('{"value": 1, "children": [{"value": "x"}]}')
    provider, generator = await provide(lambda _: turn, kind)

    told = await tell(agent_over(generator), response_format=Node.model_json_schema())

    assert told.code == "structured_output"
    assert "$ref" not in SPOKEN[kind].schema(provider.requests[0].body)
    messages = SPOKEN[kind].said(provider.requests[1].body)
    assert "at children/0/value: 'x' is not of type 'integer'" in messages[-1][1]


WRONG: list[tuple[type[BaseModel], Any, str]] = [
    (Person, {"name": "Ann", "address": {}}, "at address: 'street' is a required property"),
    (Person, {"name": "A", "address": {"street": 5}}, "at address/street: 5 is not of type"),
    (Person, {"name": "A", "address": {"street": ""}, "colours": ["pink"]}, "at colours/0: 'pink'"),
    (Pet, {"pet": {"kind": "cow"}}, "at pet: "),
    (Event, {"id": "7", "day": "2026-01-02", "at": "2026-01-02T00:00:00Z"}, "at id: '7' is not"),
    (Event, {"id": str(uuid.UUID(int=1)), "day": "soon", "at": "x"}, "at day: 'soon' is not a"),
]


@pytest.mark.parametrize(("model", "value", "fault"), WRONG)
def test_the_faults_of_a_value_are_told_with_their_place(
    model: type[BaseModel], value: Any, fault: str
) -> None:
    for source in (model, model.model_json_schema()):
        told = ResponseFormat(source).parse(json.dumps(value))[1]
        assert told is not None
        assert fault in told


def test_at_most_five_faults_are_told() -> None:
    form = ResponseFormat({"type": "array", "items": {"type": "integer"}})
    fault = form.parse(json.dumps(["x"] * 50))[1]
    assert fault is not None
    assert fault.count("is not of type") == 5


CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
STRICT: list[tuple[dict[str, Any], bool]] = [
    (CLOSED, True),
    (CLOSED | {"properties": {"a": {"type": "string"}}, "required": ["a"]}, True),
    (CLOSED | {"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}, True),
    (CLOSED | {"properties": {"a": {"anyOf": [CLOSED, {"const": 5}]}}, "required": ["a"]}, True),
    (
        CLOSED
        | {"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}, "required": ["a"]},
        True,
    ),
    (CLOSED | {"properties": {"properties": {"type": "string"}}, "required": ["properties"]}, True),
    (CLOSED | {"properties": {"a": {"type": "string"}}}, False),
    (CLOSED | {"properties": {"a": {"type": "object"}}, "required": ["a"]}, False),
    (CLOSED | {"properties": {"a": {}}, "required": ["a"]}, False),
    (CLOSED | {"properties": {"a": True}, "required": ["a"]}, False),
    (CLOSED | {"properties": {"a": {"type": "array"}}, "required": ["a"]}, False),
    (CLOSED | {"properties": {"a": {"oneOf": [CLOSED]}}, "required": ["a"]}, False),
    (CLOSED | {"properties": {"a": {"type": "string", "default": ""}}, "required": ["a"]}, False),
    (CLOSED | {"properties": {"a": {"$ref": "#", "title": "A"}}, "required": ["a"]}, False),
    (CLOSED | {"$defs": {"Open": {"type": "object"}}}, False),
    (CLOSED | {"allOf": [CLOSED]}, False),
    (CLOSED | {"additionalProperties": {"type": "string"}}, False),
    ({"type": "object"}, False),
    ({"type": "array", "items": CLOSED}, False),
    ({"anyOf": [CLOSED]}, False),
    ({}, False),
]


@pytest.mark.parametrize(("schema", "strict"), STRICT, ids=repr)
def test_a_provider_is_told_to_enforce_only_what_it_can(
    schema: dict[str, Any], strict: bool
) -> None:
    assert allows_strict(schema) is strict


@pytest.mark.parametrize(("kind", "strict"), [("own", True), ("openai", True), ("responses", True)])
async def test_the_strict_flag_says_whether_the_schema_is_closed(
    provide: Provide, kind: str, strict: bool
) -> None:
    provider, generator = await provide(lambda _: SPOKEN[kind].form("{}"), kind)
    run = Run(generator)
    await run.run("?", response_format=CLOSED)
    await run.run("?", response_format={"type": "object"})

    def flag(body: dict[str, Any]) -> bool:
        return (body.get("response_format", {}).get("json_schema") or body["text"]["format"])[
            "strict"
        ]

    assert [flag(request.body) for request in provider.requests] == [strict, False]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "nonsense"}, "no valid JSON Schema"),
    ({"$ref": "http://127.0.0.1:1/schema"}, "not part of it"),
    ({"properties": {"a": {"$ref": "other.json#/a"}}}, "not part of it"),
    ({"properties": {"a": {"$ref": "#/$defs/Gone"}}}, "does not have"),
    ({"items": [{"$ref": "#/items/5"}]}, "does not have|no valid JSON Schema"),
    ({"$ref": "#"}, "refers to itself without an end"),
    (
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
        "end",
    ),
]


@pytest.mark.parametrize(("schema", "why"), BAD, ids=repr)
@pytest.mark.parametrize("option", ["response_format", "then_format"])
async def test_a_schema_that_cannot_be_used_is_refused_before_any_call(
    provide: Provide, schema: dict[str, Any], why: str, option: str
) -> None:
    provider, generator = await provide([SPOKEN["own"].form("{}")])
    given: dict[str, Any] = {"response_format": schema}
    if option == "then_format":
        given = {"options": {"then_format": schema}}
    with pytest.raises(InvalidRequest, match=why) as refused:
        await tell(agent_over(generator), **given)
    assert refused.value.field == (f"options.{option}" if "options" in given else option)
    with pytest.raises(ConfigurationError, match=why):
        ResponseFormat(schema)
    assert provider.requests == []


GOOD_REFERENCES: list[dict[str, Any]] = [
    {"properties": {"$ref": {"type": "string"}}},
    {"properties": {"a": {"const": {"$ref": "http://elsewhere"}}}},
    {"properties": {"a": {"enum": [{"$ref": "x"}]}, "enum": {"$ref": "#"}}},
    {"properties": {"a/b": {"type": "integer"}, "c": {"$ref": "#/properties/a~1b"}}},
    {"prefixItems": [{"type": "integer"}, {"$ref": "#/prefixItems/0"}]},
    {"$defs": {"A": True, "B": False}, "items": {"$ref": "#/$defs/A"}},
    {"$defs": {"A": {"$anchor": "a", "type": "integer"}}, "items": {"$ref": "#a"}},
]


@pytest.mark.parametrize("schema", GOOD_REFERENCES, ids=repr)
def test_what_only_looks_like_a_bad_reference_is_none(schema: dict[str, Any]) -> None:
    assert bad_reference(schema) is None
    assert ResponseFormat(schema).parse("{}") == ({}, None)


def test_references_of_a_wrapped_schema_lead_where_they_did() -> None:
    schema = {
        "anyOf": [{"type": "null"}, {"$ref": "#/$defs/Tree"}],
        "$defs": {"Tree": {"type": "array", "items": {"$ref": "#"}}},
        "examples": [{"$ref": "#"}],
    }
    wrapped = named_in(schema, "answer")
    validator = jsonschema.Draft202012Validator(wrapped)
    assert validator.is_valid({"answer": [None, [None, []]]})
    assert not validator.is_valid({"answer": [None, [5]]})
    assert bad_reference(wrapped) is None
    assert wrapped["properties"]["answer"]["examples"] == [{"$ref": "#"}]
    assert schema["$defs"]["Tree"] == {"type": "array", "items": {"$ref": "#"}}  # pyright: ignore


def test_a_reply_that_is_nested_beyond_all_measure_is_a_fault_and_no_crash() -> None:
    form = ResponseFormat({"type": "array", "items": {"$ref": "#"}})
    for depth in (200, 900, 100_000):
        value, fault = form.parse("[" * depth + "]" * depth)
        assert fault is None or value is None
