"""The shape a caller wants an answer in: `response_format` for the wire, instances for the caller.

A Pydantic model, a msgspec Struct, a dataclass or a TypedDict gives an instance, a JSON Schema
gives the JSON value. Pydantic is never imported here: a class that is a model brings its own
methods.
"""

import dataclasses
from typing import Any, is_typeddict

import msgspec
from msgspec import UNSET, UnsetType

from hayrunner_contracts.errors import InvalidRequest, StructuredOutputFailed

__all__ = ["ResponseFormat", "answer_schema", "read_answer"]

ResponseFormat = type[Any] | dict[str, Any] | None | UnsetType
"""A class, a JSON Schema, None (clears the agent's own), or UNSET (the agent's own, if any)."""


def answer_schema(
    wanted: ResponseFormat, field: str = "response_format"
) -> dict[str, Any] | None | UnsetType:
    """The JSON Schema that goes into the request, in `field`.

    `InvalidRequest` for a class that is no Pydantic model, msgspec Struct, dataclass or TypedDict,
    or one whose fields have no JSON Schema.
    """
    if wanted is None or wanted is UNSET or isinstance(wanted, dict | UnsetType):
        return wanted
    if _is_pydantic(wanted):
        return wanted.model_json_schema()
    if not _is_plain(wanted):
        raise InvalidRequest(
            f"{field}: must be a Pydantic model, a msgspec Struct, a dataclass, a TypedDict"
            " or a JSON Schema",
            field=field,
        )
    try:
        return _msgspec_schema(wanted)
    except TypeError as error:
        raise InvalidRequest(
            f"{field}: {wanted.__name__} has a field without a JSON Schema",
            field=field,
        ) from error


def read_answer(answer: Any, wanted: ResponseFormat) -> Any:
    """The answer as the caller wants it: an instance where `wanted` is a class.

    `StructuredOutputFailed` where the answer does not fit; its text names no value of the answer.
    """
    if wanted is None or isinstance(wanted, dict | UnsetType):
        return answer
    try:
        if _is_pydantic(wanted):
            # As JSON: a strict model takes a date from text there, and only there.
            return wanted.model_validate_json(msgspec.json.encode(answer))
        return msgspec.convert(answer, wanted)
    except ValueError as error:
        # msgspec.ValidationError and pydantic.ValidationError are both ValueErrors. Their text
        # may show what the model wrote, so it stays out of ours, and out of the chain.
        failure = f"the answer is no {wanted.__name__} ({type(error).__name__})"
    raise StructuredOutputFailed(failure)


def _is_pydantic(wanted: type[Any]) -> bool:
    return hasattr(wanted, "model_json_schema") and hasattr(wanted, "model_validate_json")


def _is_plain(wanted: type[Any]) -> bool:
    return (
        (isinstance(wanted, type) and issubclass(wanted, msgspec.Struct))  # pyright: ignore[reportUnnecessaryIsInstance]
        or dataclasses.is_dataclass(wanted)
        or is_typeddict(wanted)
    )


def _msgspec_schema(wanted: type[Any]) -> dict[str, Any]:
    """The schema of `wanted` with an object on top, as providers require: msgspec puts a `$ref`
    there."""
    schema = msgspec.json.schema(wanted)
    reference = schema.pop("$ref", None)
    if reference is None:
        return schema
    definitions: dict[str, Any] = schema["$defs"]
    name = reference.removeprefix("#/$defs/")
    top: dict[str, Any] = definitions[name]
    others = {key: value for key, value in definitions.items() if key != name}
    if f'"{reference}"'.encode() in msgspec.json.encode(definitions):
        others[name] = top  # it refers to itself
    return {**top, "$defs": others} if others else dict(top)
