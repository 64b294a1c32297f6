"""Structured output: the format that is wanted, and how a reply is held to it."""

import datetime
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

import jsonschema
import msgspec
from jsonschema import FormatChecker, validators
from jsonschema.protocols import Validator
from pydantic import BaseModel, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from hayrunner.adapters.schema_forms import bad_reference, with_object_on_top
from hayrunner.errors import ConfigurationError

__all__ = ["ResponseFormat", "keeps_tools"]

_FAULTS_TOLD = 5


class ResponseFormat:
    """A JSON Schema a reply must satisfy, from a schema or a Pydantic model.

    With `after_tools` it is the form of a run's outcome: the tools run first, and one more model
    call puts what came of it into the form.

    Raises `ConfigurationError` for a schema that is none, or one that refers to what is not part
    of it.
    """

    def __init__(
        self, source: Mapping[str, Any] | type[BaseModel], *, after_tools: bool = False
    ) -> None:
        self.after_tools = after_tools
        self.model: type[BaseModel] | None = None
        if isinstance(source, type):
            self.model = source
            source = source.model_json_schema()
        label = "then_format" if after_tools else "response_format"
        cls: type[Validator] = validators.validator_for(dict(source))
        try:
            cls.check_schema(dict(source))
        except jsonschema.SchemaError as error:
            path = "/".join(str(part) for part in error.absolute_path) or "its root"
            raise ConfigurationError(
                f"{label} is no valid JSON Schema: at {path}, {error.validator} is violated"
            ) from None
        if (problem := bad_reference(source)) is not None:
            raise ConfigurationError(f"{label} {problem}")
        self.schema: dict[str, Any] = with_object_on_top(source)
        self.name = _name(self.schema)
        # An empty registry: a `$ref` to somewhere else is an error, never a download.
        self._validator = cls(self.schema, registry=Registry(), format_checker=_formats())

    def parse(self, text: str | None) -> tuple[Any, str | None]:
        """The JSON value, and what is wrong with it: None where nothing is. Text around the JSON,
        such as a code fence, is not accepted."""
        if not text or not text.strip():
            return None, "The reply is empty."
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            return None, f"The reply is not JSON: {error}."
        faults = list(islice(self._faults(value), _FAULTS_TOLD))
        if not faults and self.model is not None:
            faults = _faults_of_model(self.model, text)
        if faults:
            return None, "The reply does not satisfy the schema: " + "; ".join(faults) + "."
        return value, None

    def _faults(self, value: Any) -> Iterator[str]:
        try:
            for fault in self._validator.iter_errors(value):
                yield _told(fault.absolute_path, fault.message)
        except RecursionError:
            yield "it is nested too deeply"
        except Unresolvable:
            raise ConfigurationError("a reference in the schema leads nowhere") from None

    def instance(self, value: Any) -> Any:
        """An instance of the Pydantic model, or the JSON value where there is none."""
        if self.model is None:
            return value
        # As JSON: a strict model takes a date from text there, and only there.
        return self.model.model_validate_json(msgspec.json.encode(value))


def keeps_tools(wanted: ResponseFormat | None) -> bool:
    """Whether a headless run that asks for its tools has them."""
    return wanted is None or wanted.after_tools


def _faults_of_model(model: type[BaseModel], text: str) -> list[str]:
    """What validators of the model that no schema can express say."""
    try:
        model.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return [_told(fault["loc"], fault["msg"]) for fault in found[:_FAULTS_TOLD]]
    return []


def _told(path: Any, message: str) -> str:
    return f"at {'/'.join(str(part) for part in path) or 'the root'}: {message}"


def _name(schema: Mapping[str, Any]) -> str:
    title = schema.get("title")
    if not isinstance(title, str):
        return "answer"
    kept = "".join(char if char.isascii() and char.isalnum() else "_" for char in title)[:64]
    return kept or "answer"


@cache
def _formats() -> FormatChecker:
    """The formats that callers' types need to become instances: a wrong one is repaired here,
    while the model can still be asked."""
    checker = FormatChecker(formats=())
    for name, read in _READ_FORMAT.items():
        checker.checks(name, raises=ValueError)(_check_with(read))
    return checker


def _check_with(read: Any) -> Any:
    def check(value: object) -> bool:
        if isinstance(value, str):
            read(value)
        return True

    return check


_READ_FORMAT: dict[str, Any] = {
    "date": datetime.date.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "time": datetime.time.fromisoformat,
    "uuid": uuid.UUID,
}
