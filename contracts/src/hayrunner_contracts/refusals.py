"""How a refused input is told what is wrong: the dotted path, the problem, what would be right.

A refusal never repeats a value from the input. It repeats field names, shortened and escaped.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from hayrunner_contracts.errors import InvalidRequest

__all__ = [
    "as_list",
    "as_object",
    "as_text",
    "at",
    "convert",
    "known_fields",
    "nearest",
    "refusal",
    "shown",
    "type_name",
]

T = TypeVar("T")

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_$-]{1,64}")
_JSON_NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    tuple: "an array",
    dict: "an object",
    type(None): "null",
}
# msgspec's words for a type, in those of JSON.
_EXPECTED = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
    "bytes": "a string of base64",
}
_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_WRONG_RANGE = re.compile(r"Expected `(\w+)`( of length)? (>=|>|<=|<) (\S+)")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`", re.DOTALL)
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
_BOUNDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}


def refusal(path: str, problem: str) -> InvalidRequest:
    """The error for `path`; an empty path is the request as a whole."""
    return InvalidRequest(f"{path or 'request'}: {problem}", field=path or None)


def at(path: str, name: str | int) -> str:
    """The path of a field, or of a place in an array, below `path`."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    name = shown(name)
    return f"{path}.{name}" if path else name


def shown(name: str) -> str:
    """A field name as it may be repeated in an error: short, and nothing but printable ASCII."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return ascii(name[:64])


def type_name(value: object) -> str:
    """What JSON calls the value's type, with its article."""
    return _JSON_NAMES.get(type(value), "something else")


def as_object(value: Any, path: str) -> dict[str, Any]:
    """`value`, if it is a JSON object."""
    if not isinstance(value, dict):
        raise refusal(path, f"must be an object, not {type_name(value)}")
    return cast(dict[str, Any], value)


def as_list(value: Any, path: str) -> list[Any]:
    """`value`, if it is a JSON array."""
    if not isinstance(value, list):
        raise refusal(path, f"must be an array, not {type_name(value)}")
    return cast(list[Any], value)


def as_text(value: Any, path: str) -> str:
    """`value`, if it is a string."""
    if not isinstance(value, str):
        raise refusal(path, f"must be a string, not {type_name(value)}")
    return value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    close = difflib.get_close_matches(name[:64].lower(), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def known_fields(value: dict[str, Any], known: Iterable[str], path: str) -> None:
    """Refuse the first field that is not known, naming the nearest one that is."""
    names = tuple(known)
    for name in value:
        if name not in names:
            close = nearest(name, names)
            hint = f"did you mean {close}?" if close else f"known are {', '.join(sorted(names))}"
            raise refusal(at(path, name), f"unknown field; {hint}")


def convert(value: Any, to: type[T], path: str = "") -> T:
    """`value` (plain objects) as `to`, strictly; `InvalidRequest` with the path of the first
    thing that does not fit."""
    try:
        return msgspec.convert(value, to, strict=True)
    except msgspec.ValidationError as error:
        raise _translated(str(error), to, path) from None


def _translated(text: str, to: type, path: str) -> InvalidRequest:
    where = _WHERE.search(text)
    inner = where.group(1) if where else ""
    text = text[: where.start()] if where else text
    path = _joined(path, inner)
    if found := _MISSING.fullmatch(text):
        return refusal(at(path, found.group(1)), "is missing")
    if found := _UNKNOWN.fullmatch(text):
        return refusal(at(path, found.group(1)), "unknown field")
    return refusal(path, _problem(text, to, inner))


def _problem(text: str, to: type, inner: str) -> str:
    if found := _WRONG_TYPE.fullmatch(text):
        wanted = [_EXPECTED.get(name, name) for name in found.group(1).split(" | ")]
        got = _EXPECTED.get(found.group(2), found.group(2))
        return f"must be {' or '.join(wanted)}, not {got}"
    if found := _WRONG_RANGE.fullmatch(text):
        bound = found.group(4).removesuffix(".0")
        if found.group(2):
            return f"must have a length of {_BOUNDS[found.group(3)]} {bound}"
        return f"must be {_EXPECTED[found.group(1)]} of {_BOUNDS[found.group(3)]} {bound}"
    if text.startswith("Invalid enum value") and (allowed := _allowed(to, inner)):
        return f"must be one of {', '.join(allowed)}"
    # Any other text of msgspec may quote the value: say only that it does not fit.
    return "has a value that is not allowed"


def _joined(path: str, inner: str) -> str:
    # msgspec writes `[...]` for "under some key of a mapping".
    inner = inner.replace("[...]", ".*").removeprefix(".")
    if not path or not inner:
        return path or inner
    return path + inner if inner.startswith("[") else f"{path}.{inner}"


def _allowed(to: Any, inner: str) -> list[str]:
    """The literal values of the field at `inner`, found by walking the types."""
    for name in re.findall(r"[A-Za-z_]\w*", inner):
        struct = _first_struct(to)
        if struct is None:
            return []
        to = get_type_hints(struct).get(name)
    return _literals(to)


def _first_struct(to: Any) -> type | None:
    if isinstance(to, type) and issubclass(to, msgspec.Struct):
        return to
    return next((found for part in get_args(to) if (found := _first_struct(part))), None)


def _literals(to: Any) -> list[str]:
    if get_origin(to) is Literal:
        return [str(value) for value in get_args(to)]
    return [value for part in get_args(to) for value in _literals(part)]
