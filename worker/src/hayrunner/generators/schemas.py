"""JSON schemas in the strict form that structured outputs and strict tools ask for.

The rules are those of OpenAI: every object closed, every property required, no `default`, no
keyword beside a `$ref`. A property that was optional is nullable only if its type already was.
"""

from typing import Any, cast

from pydantic import BaseModel

__all__ = ["response_format_of", "strict_schema"]

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPPINGS = ("properties", "$defs", "definitions")


def response_format_of(value: object) -> object:
    """A Pydantic class as the `json_schema` response format; anything else as it is."""
    if not (isinstance(value, type) and issubclass(value, BaseModel)):
        return value
    return {
        "type": "json_schema",
        "json_schema": {
            "name": value.__name__,
            "strict": True,
            "schema": strict_schema(value.model_json_schema()),
        },
    }


def strict_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A strict copy of `schema`; the original is left alone."""
    return _strict(schema, schema, ())


def _strict(
    schema: dict[str, Any], root: dict[str, Any], inlined: tuple[str, ...]
) -> dict[str, Any]:
    reference = str(schema.get("$ref", ""))
    if reference.startswith("#/") and len(schema) > 1 and reference not in inlined:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        target = _resolve(reference, root)
        return _strict({**target, **rest}, root, (*inlined, reference))
    strict = {key: value for key, value in schema.items() if key != "default"}
    for name in _MAPPINGS:
        if isinstance(strict.get(name), dict):
            strict[name] = {
                key: _strict_value(value, root, inlined) for key, value in strict[name].items()
            }
    for name in _LISTS:
        if isinstance(strict.get(name), list):
            strict[name] = [_strict_value(value, root, inlined) for value in strict[name]]
    if "items" in strict:
        strict["items"] = _strict_value(strict["items"], root, inlined)
    if strict.get("type") == "object" or "properties" in strict:
        # A mapping with typed values cannot be said strictly: closing it would empty it silently.
        if not isinstance(strict.get("additionalProperties"), dict):
            strict["additionalProperties"] = False
        strict["required"] = list(strict.get("properties", {}))
    return strict


def _strict_value(value: object, root: dict[str, Any], inlined: tuple[str, ...]) -> object:
    if isinstance(value, dict):
        return _strict(cast("dict[str, Any]", value), root, inlined)
    return value


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    target: Any = root
    for step in reference.removeprefix("#/").split("/"):
        target = target[step.replace("~1", "/").replace("~0", "~")]
    return cast("dict[str, Any]", target)
