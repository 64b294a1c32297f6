"""The shapes a caller can want an answer in."""

import dataclasses
from typing import Any, TypedDict

import msgspec
import pytest
from msgspec import UNSET
from pydantic import BaseModel

from hayrunner_contracts.answers import answer_schema, read_answer
from hayrunner_contracts.errors import InvalidRequest, StructuredOutputFailed


class Person(msgspec.Struct):
    name: str


class MovieStruct(msgspec.Struct):
    title: str
    director: Person | None = None


class MovieModel(BaseModel):
    title: str


@dataclasses.dataclass
class MovieDataclass:
    title: str


class MovieDict(TypedDict):
    title: str


class Node(msgspec.Struct):
    label: str
    children: list["Node"] = []


@pytest.mark.parametrize("wanted", [MovieStruct, MovieModel, MovieDataclass, MovieDict])
def test_a_class_gives_a_schema_with_an_object_on_top_and_an_instance(wanted: Any) -> None:
    schema = answer_schema(wanted)

    assert isinstance(schema, dict)
    assert schema["type"] == "object"
    assert "title" in schema["properties"]
    assert read_answer({"title": "Alien"}, wanted) == wanted(title="Alien")


def test_nested_types_keep_their_definitions() -> None:
    schema = answer_schema(MovieStruct)

    assert isinstance(schema, dict)
    assert list(schema["$defs"]) == ["Person"]


def test_a_type_that_contains_itself_can_be_described() -> None:
    schema = answer_schema(Node)

    assert isinstance(schema, dict)
    assert list(schema["$defs"]) == ["Node"]
    assert read_answer({"label": "a", "children": [{"label": "b"}]}, Node) == Node(
        label="a", children=[Node(label="b")]
    )


def test_a_json_schema_null_and_nothing_go_through_as_they_are() -> None:
    schema = {"type": "object"}

    assert answer_schema(schema) is schema
    assert answer_schema(None) is None
    assert answer_schema(UNSET) is UNSET
    assert read_answer({"a": 1}, schema) == {"a": 1}
    assert read_answer("text", UNSET) == "text"


@pytest.mark.parametrize("wanted", [MovieStruct, MovieModel, MovieDataclass, MovieDict])
def test_an_answer_that_does_not_fit_fails_without_showing_it(wanted: Any) -> None:
    with pytest.raises(StructuredOutputFailed) as raised:
        read_answer({"name": "secret"}, wanted)

    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


@pytest.mark.parametrize("wanted", [int, object, list])
def test_a_class_without_fields_is_refused(wanted: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        answer_schema(wanted)
    assert raised.value.field == "response_format"
