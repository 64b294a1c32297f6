"""The generated tables of docs/contract.md, between `<!-- generated: NAME -->` and
`<!-- end -->`."""

import inspect
import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from hayrunner_contracts import errors
from hayrunner_contracts.asyncapi import CHANNELS
from hayrunner_contracts.commands import COMMAND_TYPES
from hayrunner_contracts.descriptions import FIELDS
from hayrunner_contracts.errors import ERROR_CODES, RunFailure, error_from_wire
from hayrunner_contracts.events import EVENT_TYPES
from hayrunner_contracts.schema import components
from hayrunner_contracts.strict_json import RequestLimits
from hayrunner_contracts.threads import THREAD_RECORD_TYPES

__all__ = ["filled", "tables"]

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LIMITS = {
    "max_bytes": "bytes of a request that comes in one message, or of a command",
    "max_depth": "levels of nesting",
    "max_messages": "messages, and as many again in `options.history`",
    "max_documents": "documents",
    "max_hooks": "hooks",
    "max_metadata": "entries of metadata",
    "max_metadata_key": "characters of a key in metadata",
    "max_metadata_value": "characters of a value in metadata",
}


def filled(document: str) -> str:
    """`document` with every marked table made anew; `ValueError` for a name that is none."""
    made = tables()

    def replaced(block: "re.Match[str]") -> str:
        name = block.group(2)
        if name not in made:
            raise ValueError(f"there is no table {name}; there are {', '.join(sorted(made))}")
        return f"{block.group(1)}{made[name]}{block.group(3)}"

    return _BLOCK.sub(replaced, document)


def tables() -> dict[str, str]:
    """Every table in Markdown, by its name."""
    schemas = components("{name}")
    return {
        "subjects": _subjects(),
        "request": _fields(schemas, "RunRequest"),
        "options": _fields(schemas, "RunOptions"),
        "result": _fields(schemas, "RunResult"),
        "failure": _fields(schemas, "RunFailure"),
        "usage": _fields(schemas, "Usage"),
        "events": _tagged(schemas, EVENT_TYPES, ("type", "seq", "step")),
        "event_fields": _tagged_fields(schemas, EVENT_TYPES, ("type", "seq", "step")),
        "commands": _tagged(schemas, COMMAND_TYPES, ("type",)),
        "thread_records": _tagged(schemas, THREAD_RECORD_TYPES, ("type",)),
        "thread_state": _fields(schemas, "ThreadState"),
        "errors": _errors(),
        "limits": _limits(),
    }


def _subjects() -> str:
    rows = [(f"`{c.address}`", c.publisher, c.carries, c.kept_in) for c in CHANNELS]
    return _table(("subject", "published by", "carries", "kept in"), rows)


def _fields(schemas: dict[str, Any], name: str) -> str:
    schema = schemas[name]
    required = schema["required"]
    rows = [
        (f"`{field}`", _type(part), _default(part, field in required), part["description"])
        for field, part in schema["properties"].items()
    ]
    return _table(("field", "type", "default", "meaning"), rows)


def _tagged(schemas: dict[str, Any], types: dict[str, Any], left_out: tuple[str, ...]) -> str:
    rows: list[tuple[str, ...]] = []
    for tag, kind in types.items():
        schema = schemas[kind.__name__]
        names = [
            f"`{field}`" if field in schema["required"] else f"`{field}`?"
            for field in schema["properties"]
            if field not in left_out
        ]
        rows.append((f"`{tag}`", ", ".join(names) or "-", _summary(kind)))
    return _table(("`type`", "fields", "meaning"), rows)


def _tagged_fields(
    schemas: dict[str, Any], types: dict[str, Any], left_out: tuple[str, ...]
) -> str:
    rows: list[tuple[str, ...]] = []
    for tag, kind in types.items():
        for field, part in schemas[kind.__name__]["properties"].items():
            if field not in left_out:
                rows.append((f"`{tag}`", f"`{field}`", _type(part), FIELDS[kind.__name__][field]))
    return _table(("`type`", "field", "JSON", "meaning"), rows)


def _errors() -> str:
    rows: list[tuple[str, ...]] = []
    for code in ERROR_CODES:
        error = type(error_from_wire(RunFailure(code=code, message="")))
        again = "yes" if errors.is_retryable(code) else "no"
        rows.append((f"`{code}`", again, f"`{error.__name__}`", _summary(error)))
    return _table(("code", "try again", "in Python", "meaning"), rows)


def _limits() -> str:
    limits = RequestLimits()
    rows = [(what, f"{getattr(limits, name):,}") for name, what in _LIMITS.items()]
    return _table(("of", "at most"), rows)


def _type(schema: dict[str, Any]) -> str:
    """A JSON Schema in a few words."""
    if "$ref" in schema:
        return f"`{schema['$ref']}`"
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in cast(list[Any], schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in cast(list[Any], schema["enum"]))
    name = schema.get("type", "any JSON")
    if name == "array":
        return f"array of {_type(schema['items'])}" if "items" in schema else "array"
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in schema
    ]
    return f"{name} {', '.join(bounds)}".strip()


def _default(schema: dict[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    value = schema.get("default")
    # A null default is left out of the JSON; without a default, absent is the agent's own.
    if value is None or value == {}:
        return "-"
    return f"`{msgspec.json.encode(value).decode()}`"


def _summary(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [_row(head), _row(tuple("---" for _ in head)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
