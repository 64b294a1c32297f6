"""What providers and this project need to know of a JSON Schema: pure functions, which leave the
schema they are given alone."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

__all__ = ["allows_strict", "bad_reference", "named_in", "with_object_on_top"]

# What a provider accepts in a schema it is to enforce; it refuses the request for any other.
_STRICT_KEYWORDS = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const"),
        *("anyOf", "$ref", "$defs", "definitions", "title", "description", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minItems", "maxItems"),
    }
)
_MAPPINGS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
# Keywords whose values are data and no schemas.
_DATA = ("enum", "const", "default", "examples")


def with_object_on_top(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its root said in place: recursive models are only a `$ref` there, which
    providers refuse."""
    root = dict(schema)
    seen: set[str] = set()
    while isinstance(reference := root.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        target = _resolve(schema, reference)
        if target is None or target is schema:
            break
        rest = {key: value for key, value in root.items() if key != "$ref"}
        root = {**target, **rest}
    return root


def named_in(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object schema with `schema` under the property `name`, its references still right."""
    inner = _moved(schema, f"#/properties/{name}")
    return {
        "type": "object",
        "properties": {name: inner},
        "required": [name],
        "additionalProperties": False,
    }


def _moved(node: Any, where: str) -> Any:
    if isinstance(node, list):
        return [_moved(item, where) for item in cast("list[Any]", node)]
    if not isinstance(node, Mapping):
        return node
    moved: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", node).items():
        if key == "$ref" and isinstance(value, str) and _is_pointer(value):
            moved[key] = where + value.removeprefix("#")
        else:
            moved[key] = value if key in _DATA else _moved(value, where)
    return moved


def allows_strict(schema: Mapping[str, Any]) -> bool:
    """Whether a provider can be told to enforce the schema: an object on top, every object
    closed and with all of its properties required, nothing in it that strict schemas may not
    have. Others are asked for as a hint; the reply is held to the schema either way."""
    return schema.get("type") == "object" and _is_strict(schema)


def _is_strict(node: Any) -> bool:
    if not isinstance(node, Mapping):
        return False
    schema = cast("Mapping[str, Any]", node)
    if not schema.keys() <= _STRICT_KEYWORDS:
        return False
    if "$ref" in schema and not schema.keys() <= {"$ref", "$defs", "definitions"}:
        return False
    if not schema.keys() & {"type", "enum", "const", "anyOf", "$ref"}:
        return False
    if (schema.get("type") == "object" or "properties" in schema) and not _is_closed(schema):
        return False
    if schema.get("type") == "array" and "items" not in schema:
        return False
    return all(_is_strict(part) for part in _parts(schema))


def _is_closed(schema: Mapping[str, Any]) -> bool:
    named: Mapping[str, Any] = schema.get("properties") or {}
    required: list[str] = schema.get("required") or []
    return schema.get("additionalProperties") is False and set(required) == set(named)


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas directly inside one that has only strict keywords."""
    for name in ("properties", "$defs", "definitions"):
        yield from (schema.get(name) or {}).values()
    yield from schema.get("anyOf") or ()
    if "items" in schema:
        yield schema["items"]


def bad_reference(schema: Mapping[str, Any]) -> str | None:
    """What is wrong with the schema's references; None where each leads to a place in it."""
    for reference in _references(schema):
        if not reference.startswith("#"):
            return "refers to a schema that is not part of it"
        if _is_pointer(reference) and _resolve(schema, reference) is None:
            return "refers to a place that it does not have"
        if _is_circle(schema, reference):
            return "refers to itself without an end"
    return None


def _is_circle(schema: Mapping[str, Any], reference: str) -> bool:
    """Whether a reference leads through references alone back to where it began."""
    seen: set[str] = set()
    while _is_pointer(reference):
        if reference in seen:
            return True
        seen.add(reference)
        following = (_resolve(schema, reference) or {}).get("$ref")
        if not isinstance(following, str):
            return False
        reference = following
    return False


def _references(node: Any, *, names: bool = False) -> Iterator[str]:
    """Every `$ref`. `names` says that the keys of `node` are names and no keywords."""
    if isinstance(node, list):
        for item in cast("list[Any]", node):
            yield from _references(item)
    elif isinstance(node, Mapping):
        for key, value in cast("Mapping[str, Any]", node).items():
            if not names and key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif names or key not in _DATA:
                yield from _references(value, names=not names and key in _MAPPINGS)


def _is_pointer(reference: str) -> bool:
    """Whether it is a JSON pointer, and no name of an anchor."""
    return reference == "#" or reference.startswith("#/")


def _resolve(schema: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """The schema that a pointer leads to; None where there is none."""
    target: Any = schema
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal():
            items = cast("list[Any]", target)
            target = items[int(key)] if int(key) < len(items) else None
        elif isinstance(target, Mapping):
            target = cast("Mapping[str, Any]", target).get(key)
        else:
            return None
    if isinstance(target, bool):
        return {} if target else {"not": {}}
    return cast("Mapping[str, Any]", target) if isinstance(target, Mapping) else None
