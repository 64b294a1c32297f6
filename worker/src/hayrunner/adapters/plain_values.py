"""Plain JSON values: copies for those who may change what they are given, and a quick look at
whether arguments are of the types that a tool's schema names."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["PlainTypes", "copied", "plain_types"]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_UNCHANGEABLE = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """A copy of its own of a JSON value, at a fraction of what `deepcopy` costs; what else is in
    it is deep-copied."""
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if kind is dict:
        return {
            key: item if type(item) in _UNCHANGEABLE else copied(item)
            for key, item in cast("dict[Any, Any]", value).items()
        }
    if kind is list:
        return [
            item if type(item) in _UNCHANGEABLE else copied(item)
            for item in cast("list[Any]", value)
        ]
    return copy.deepcopy(value)


@dataclass(frozen=True, kw_only=True)
class PlainTypes:
    """A schema of an object whose properties are texts, numbers and the like, and no more is
    said of them: what most tools have."""

    properties: Mapping[str, tuple[type, ...]]
    required: frozenset[str]

    def fit(self, arguments: Mapping[str, Any]) -> bool:
        """Whether `arguments` satisfy the schema for sure. False says nothing: a validator may
        still find no fault with them."""
        known = self.properties
        return self.required <= arguments.keys() and all(
            name in known and type(value) in known[name] for name, value in arguments.items()
        )


def plain_types(schema: Mapping[str, Any]) -> PlainTypes | None:
    """The types that `schema` names; None where it says more than that."""
    said = {"type", "properties", "required", "additionalProperties", *_ANNOTATIONS}
    if schema.get("type") != "object" or not schema.keys() <= said:
        return None
    properties: dict[str, tuple[type, ...]] = {}
    for name, wanted in schema.get("properties", {}).items():
        if not isinstance(wanted, dict):
            return None  # true and false are schemas, too
        wanted = cast("dict[str, Any]", wanted)
        types = _TYPES.get(str(wanted.get("type")))
        if types is None or not wanted.keys() <= {"type", *_ANNOTATIONS}:
            return None
        properties[name] = types
    return PlainTypes(properties=properties, required=frozenset(schema.get("required", ())))
