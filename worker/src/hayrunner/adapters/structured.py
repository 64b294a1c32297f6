"""Structured output: how a schema is asked for, and how the reply is held to it."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, cast

import jsonschema
import msgspec
from jsonschema import validators
from jsonschema.protocols import Validator
from pydantic import BaseModel
from referencing import Registry
from referencing.exceptions import Unresolvable

from hayrunner.errors import ConfigurationError, UnsupportedResponseFormat

__all__ = ["ResponseFormat", "format_parameter"]

_FAULTS_TOLD = 5


class ResponseFormat:
    """A JSON Schema a reply must satisfy, from a schema or a Pydantic model.

    Raises `ConfigurationError` for a schema that is none.
    """

    def __init__(self, source: Mapping[str, Any] | type[BaseModel]) -> None:
        self.model: type[BaseModel] | None = None
        if isinstance(source, type):
            self.model = source
            self.schema: dict[str, Any] = source.model_json_schema()
        else:
            self.schema = dict(source)
        self.name = _name(self.schema)
        cls: type[Validator] = validators.validator_for(self.schema)
        try:
            cls.check_schema(self.schema)
        except jsonschema.SchemaError as error:
            path = "/".join(str(part) for part in error.absolute_path) or "its root"
            raise ConfigurationError(
                f"response_format is no valid JSON Schema: at {path}, {error.validator} is violated"
            ) from None
        # An empty registry: a `$ref` to somewhere else is an error, never a download.
        self._validator = cls(self.schema, registry=Registry())

    def parse(self, text: str | None) -> tuple[Any, str | None]:
        """The value, and what is wrong with it: None where nothing is. Text around the JSON, such
        as a code fence, is not accepted."""
        if not text or not text.strip():
            return None, "The reply is empty."
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            return None, f"The reply is not JSON: {error}."
        faults = [
            f"at {'/'.join(str(part) for part in fault.absolute_path) or 'the root'}: "
            f"{fault.message}"
            for fault in islice(self._errors(value), _FAULTS_TOLD)
        ]
        if faults:
            return None, "The reply does not satisfy the schema: " + "; ".join(faults)
        return value, None

    def _errors(self, value: Any) -> Iterator[jsonschema.ValidationError]:
        try:
            yield from self._validator.iter_errors(value)
        except (Unresolvable, RecursionError):
            raise ConfigurationError(
                "response_format refers to a schema that is not part of it, or to itself"
            ) from None

    def instance(self, value: Any) -> Any:
        """An instance of the Pydantic model, or the JSON value where there is none."""
        return value if self.model is None else self.model.model_validate(value)


def _name(schema: Mapping[str, Any]) -> str:
    title = schema.get("title")
    if not isinstance(title, str):
        return "answer"
    kept = "".join(char if char.isascii() and char.isalnum() else "_" for char in title)[:64]
    return kept or "answer"


def format_parameter(generator: Any, wanted: ResponseFormat) -> dict[str, Any]:
    """The provider parameter that asks `generator` for this format.

    Raises `UnsupportedResponseFormat` for a generator that has none: before any model call.
    """
    names = {cls.__name__ for cls in type(generator).__mro__}
    spec: dict[str, Any] = {
        "name": wanted.name,
        "schema": wanted.schema,
        # Providers refuse a strict schema that leaves anything open; those are asked for as a
        # hint, and the reply is validated here either way.
        "strict": _is_closed(wanted.schema),
    }
    if names & {"OpenAIResponsesChatGenerator"}:
        return {"text": {"format": {"type": "json_schema", **spec}}}
    if names & {"OpenAICompatibleChatGenerator", "OpenAIChatGenerator"}:
        return {"response_format": {"type": "json_schema", "json_schema": spec}}
    raise UnsupportedResponseFormat(type(generator).__name__)


def _is_closed(schema: Any) -> bool:
    """Whether every object in the schema forbids further properties and requires all it names."""
    if isinstance(schema, list):
        return all(_is_closed(item) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return True
    node = cast("dict[str, Any]", schema)
    properties = node.get("properties")
    if node.get("type") == "object" or isinstance(properties, dict):
        named: dict[str, Any] = properties if isinstance(properties, dict) else {}
        required = node.get("required") or []
        if node.get("additionalProperties") is not False or set(required) != set(named):
            return False
    return all(_is_closed(value) for value in node.values())
