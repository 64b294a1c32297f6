"""Copies of JSON values, and the quick look at arguments before a validator is asked."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hayrunner.adapters.plain_values import copied, plain_types

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
SCHEMAS = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(
            st.sampled_from("abc"),
            st.fixed_dictionaries(
                {"type": TYPES}, optional={"minimum": st.just(3), "title": st.text()}
            ),
        ),
        "required": st.lists(st.sampled_from("abcd"), unique=True),
        "additionalProperties": st.booleans(),
        "minProperties": st.just(1),
    },
)
ARGUMENTS = st.dictionaries(st.sampled_from("abcd"), VALUES)


@given(VALUES)
def test_a_copy_is_equal_and_shares_nothing_that_can_change(value: Any) -> None:
    copy = copied(value)
    assert copy == value
    if isinstance(value, dict | list):
        assert copy is not value
        for one, other in zip(_inner(copy), _inner(value), strict=True):
            assert one is not other or not isinstance(one, dict | list)


def _inner(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def test_what_is_no_json_is_copied_deeply() -> None:
    value: dict[str, Any] = {"when": datetime(2026, 1, 1), "pair": ([1], {2})}
    copy = copied(value)
    assert copy == value
    assert copy["pair"][0] is not value["pair"][0]


@given(SCHEMAS, ARGUMENTS)
def test_what_fits_has_no_fault_for_a_validator(schema: Any, arguments: Any) -> None:
    types = plain_types(schema)
    if types is not None and types.fit(arguments):
        assert Draft202012Validator(schema).is_valid(arguments)


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"n": 1, "s": "x"}, True),
        ({"n": 1}, True),
        ({"n": True}, False),
        ({"n": 1.0}, False),
        ({"n": 1, "more": 1}, False),
        ({"s": "x"}, False),
    ],
)
def test_the_usual_arguments_fit(arguments: dict[str, Any], fits: bool) -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "a number"},
            "s": {"type": "string", "default": ""},
        },
        "required": ["n"],
    }
    types = plain_types(schema)
    assert types is not None
    assert types.fit(arguments) is fits


def test_a_schema_that_says_more_has_no_plain_types() -> None:
    assert plain_types({"type": "object", "properties": {"a": {"enum": [1]}}}) is None
    assert plain_types({"type": "object", "minProperties": 1}) is None
    assert (
        plain_types({"type": "object", "properties": {"a": {"type": ["null", "string"]}}}) is None
    )
    assert plain_types({"$ref": "#/x"}) is None
