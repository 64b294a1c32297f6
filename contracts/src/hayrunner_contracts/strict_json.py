"""Strict reading of JSON from anyone: bounded before it is parsed, and nothing in it guessed.

Refused: more bytes than the limit, nesting deeper than the limit, bytes that are no UTF-8, half
a surrogate pair, broken JSON, a field given twice, NaN and infinities, integers beyond 64 bits.
"""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, cast

import msgspec

from hayrunner_contracts.errors import InvalidRequest, PayloadTooLarge
from hayrunner_contracts.refusals import at, refusal

__all__ = ["RequestLimits", "read_json", "top_level_uuid"]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may have. `max_bytes` leaves room for headers below 1 MiB, which is the
    largest message a NATS server takes unless it is configured otherwise."""

    max_bytes: int = 900_000
    max_depth: int = 64
    max_messages: int = 1_000
    max_documents: int = 1_000
    max_hooks: int = 32
    max_metadata: int = 64
    max_metadata_key: int = 128
    max_metadata_value: int = 1_024


# A string runs to its closing quote, or to the end where there is none. Every repetition is
# possessive: this runs in linear time on any input.
_STRING = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_STRINGS = re.compile(_STRING, re.DOTALL)
_STRINGS_AND_BRACKETS = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_UUID_VALUE = re.compile(rb'\s*:\s*"([0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12})"')

_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
_MOST_DIGITS = 20


class _Flaw:
    """Stands in the decoded tree where something is not allowed, so that its path can be told."""

    def __init__(self, problem: str, name: str | None = None) -> None:
        self.problem = problem
        self.name = name


class _Reader:
    """One reading. The standard decoder is used for its hooks: no other shows repeated keys."""

    def __init__(self) -> None:
        self.flawed = False

    def read(self, text: str) -> Any:
        decoder = JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._integer,
            parse_float=self._number,
            parse_constant=self._constant,
        )
        return decoder.decode(text)

    def _flaw(self, problem: str, name: str | None = None) -> _Flaw:
        self.flawed = True
        return _Flaw(problem, name)

    def _object(self, pairs: list[tuple[str, Any]]) -> Any:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                return self._flaw("is given twice", name)
            seen.add(name)
        raise AssertionError("unreachable: fewer keys than pairs, and none repeated")

    def _integer(self, digits: str) -> Any:
        # Python refuses to convert thousands of digits, and takes quadratic time for fewer.
        if len(digits) <= _MOST_DIGITS:
            value = int(digits)
            if _LOWEST <= value <= _HIGHEST:
                return value
        return self._flaw("must be an integer of at most 64 bits")

    def _number(self, digits: str) -> Any:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            return self._flaw("must be a number of double precision; this one is too large")
        return value

    def _constant(self, _: str) -> Any:
        return self._flaw("must be a finite number: NaN and infinities are not JSON")


def read_json(data: bytes, limits: RequestLimits) -> Any:
    """The JSON value in `data`, as plain Python objects.

    `PayloadTooLarge` over the size limit, `InvalidRequest` for everything else, with the path
    or the position of what is wrong.
    """
    if len(data) > limits.max_bytes:
        raise PayloadTooLarge(
            f"request: has {len(data)} bytes; at most {limits.max_bytes} are allowed"
        )
    _check_depth(data, limits.max_depth)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"request: is not valid UTF-8 at byte {error.start}") from None
    reader = _Reader()
    try:
        value = reader.read(text)
    except JSONDecodeError as error:
        raise InvalidRequest(
            f"request: is not valid JSON at line {error.lineno} column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        # Only where max_depth was raised beyond what the interpreter can do.
        raise InvalidRequest("request: is nested too deeply") from None
    if reader.flawed:
        raise _found_flaw(value)
    if _SURROGATE.search(text):
        _check_surrogates(value)
    return value


def top_level_uuid(data: bytes, field: str) -> str | None:
    """The UUID that a field of the outermost object has, in JSON that may be broken or cut off.

    For finding out whom a refusal concerns: a field of the same name deeper down is not taken.
    """
    depth = 0
    quoted = b'"' + field.encode() + b'"'
    for found in _STRINGS_AND_BRACKETS.finditer(data):
        piece = found.group()
        if piece in (b"{", b"["):
            depth += 1
        elif piece in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and piece == quoted:
            value = _UUID_VALUE.match(data, found.end())
            if value:
                return value.group(1).decode()
    return None


def _check_depth(data: bytes, limit: int) -> None:
    if data.count(b"[") + data.count(b"{") <= limit:
        return
    depth = 0
    for bracket in _STRINGS.sub(b"", data).translate(None, _NOT_BRACKETS):
        if bracket in b"[{":
            depth += 1
            if depth > limit:
                raise InvalidRequest(f"request: is nested deeper than {limit} levels")
        else:
            depth -= 1


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every value with its path, in order."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, here = waiting.pop()
        yield path, here
        if isinstance(here, dict):
            fields = cast(dict[str, Any], here)
            waiting.extend((at(path, name), item) for name, item in reversed(fields.items()))
        elif isinstance(here, list):
            items = cast(list[Any], here)
            waiting.extend((at(path, i), items[i]) for i in reversed(range(len(items))))


def _found_flaw(value: Any) -> InvalidRequest:
    for path, here in _walk(value):
        if isinstance(here, _Flaw):
            return refusal(at(path, here.name) if here.name is not None else path, here.problem)
    raise AssertionError("unreachable: a flaw stays in the tree, or in one further out")


def _check_surrogates(value: Any) -> None:
    for path, here in _walk(value):
        texts = [here] if isinstance(here, str) else []
        if isinstance(here, dict):
            texts = list(cast(dict[str, Any], here))
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:
                raise refusal(path, "has half a surrogate pair, which is not text") from None
