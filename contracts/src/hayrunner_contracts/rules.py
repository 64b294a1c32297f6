"""The rules of a request: which fields go together, and how much of what there may be.

Everything here works on plain objects as they were read, so that an error can say the path of
what is wrong; what comes out is a `RunRequest` whose message id is canonical.
"""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from hayrunner_contracts import subjects
from hayrunner_contracts.documents import parse_documents
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.message_forms import parse_messages
from hayrunner_contracts.messages import ToolCall
from hayrunner_contracts.options import NamedTool, RunOptions
from hayrunner_contracts.refusals import (
    as_list,
    as_object,
    as_text,
    at,
    convert,
    known_fields,
    refusal,
)
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.strict_json import RequestLimits

__all__ = ["deadline_of", "request_from_fields"]

_MAX_USER = 1_024
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
)
_SCHEMA_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_TOOL_CHOICES = ("auto", "required", "none")


def request_from_fields(value: Any, limits: RequestLimits) -> RunRequest:
    """The request that these plain objects are, if it keeps every rule; `InvalidRequest` with
    the path of the first one it breaks otherwise."""
    fields = dict(as_object(value, ""))
    known_fields(fields, RunRequest.__struct_fields__, "")
    calls: dict[str, ToolCall] = {}
    if "options" in fields:
        fields["options"] = _options(fields["options"], limits, calls)
    _check_input(fields, limits, calls)
    _check_names(fields)
    _check_form(fields)
    _check_metadata(fields, limits)
    request = convert(fields, RunRequest)
    _check_end(request)
    return request


def deadline_of(request: RunRequest, requested_at: float) -> float | None:
    """When the run must have ended, in seconds since the epoch; None where it may take its time.

    `requested_at`, in the same unit, is when the request came in: the time in the queue counts.
    """
    if request.timeout_s is not None:
        return requested_at + request.timeout_s
    if request.deadline is not None:
        return _parsed_time(request.deadline, "deadline")
    if isinstance(request.options.deadline, str):
        return _parsed_time(request.options.deadline, "options.deadline")
    return None


# --- what the run works on


def _check_input(fields: dict[str, Any], limits: RequestLimits, calls: dict[str, ToolCall]) -> None:
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if prompt is None and messages is None:
        raise refusal("prompt", "is missing: a request has prompt or messages")
    if prompt is not None and messages is not None:
        raise refusal("messages", "must not be given beside prompt: a request has one of the two")
    if prompt is not None:
        if not as_text(prompt, "prompt").strip():
            raise refusal("prompt", "must not be empty")
        return
    if not as_list(messages, "messages"):
        raise refusal("messages", "must not be empty")
    _check_count(messages, "messages", limits.max_messages)
    parsed = parse_messages(messages, "messages", calls=calls)
    if not any(message.role in ("user", "tool") for message in parsed):
        raise refusal("messages", "must hold a message of the user, or the result of a tool call")
    fields["messages"] = parsed


def _check_names(fields: dict[str, Any]) -> None:
    if fields.get("message_id") is not None:
        fields["message_id"] = subjects.message_id(as_text(fields["message_id"], "message_id"))
    if fields.get("thread_id") is not None:
        subjects.token("thread_id", as_text(fields["thread_id"], "thread_id"))
    if fields.get("user") is not None:
        user = as_text(fields["user"], "user")
        if not 1 <= len(user) <= _MAX_USER:
            raise refusal("user", f"must be 1 to {_MAX_USER} characters long")


def _check_metadata(fields: dict[str, Any], limits: RequestLimits) -> None:
    if "metadata" not in fields:
        return
    metadata = as_object(fields["metadata"], "metadata")
    if len(metadata) > limits.max_metadata:
        raise refusal(
            "metadata", f"has {len(metadata)} entries; at most {limits.max_metadata} are allowed"
        )
    for key, value in metadata.items():
        path = at("metadata", key)
        if not 1 <= len(key) <= limits.max_metadata_key:
            raise refusal(path, f"the key must be 1 to {limits.max_metadata_key} characters long")
        if len(as_text(value, path)) > limits.max_metadata_value:
            raise refusal(path, f"must be at most {limits.max_metadata_value} characters long")


def _check_form(fields: dict[str, Any]) -> None:
    wanted, after = fields.get("response_format"), fields.get("options", {}).get("then_format")
    _check_schema(wanted, "response_format")
    if after is None:
        return
    path = "options.then_format"
    if wanted is not None:
        raise refusal(path, "must not be given beside response_format: one form for one answer")
    if fields.get("mode") == "answer" and fields.get("tools") is not True:
        raise refusal(path, "needs tools: true in a request for an answer: it comes after them")


# --- options


def _options(value: Any, limits: RequestLimits, calls: dict[str, ToolCall]) -> dict[str, Any]:
    options = dict(as_object(value, "options"))
    known_fields(options, RunOptions.__struct_fields__, "options")
    for name, check in _OPTION_RULES.items():
        if options.get(name) is not None:
            options[name] = check(options[name], at("options", name), limits)
    if options.get("history") is not None:
        path = "options.history"
        _check_count(options["history"], path, limits.max_messages)
        options["history"] = parse_messages(options["history"], path, calls=calls)
    return options


def _documents(value: Any, path: str, limits: RequestLimits) -> Any:
    _check_count(value, path, limits.max_documents)
    return parse_documents(value, path)


def _hooks(value: Any, path: str, limits: RequestLimits) -> Any:
    _check_count(value, path, limits.max_hooks)
    for index, name in enumerate(value):
        place = at(path, index)
        subjects.token(place, as_text(name, place))
    return value


def _tool_choice(value: Any, path: str, _: RequestLimits) -> Any:
    if isinstance(value, str) and value in _TOOL_CHOICES:
        return value
    if not isinstance(value, dict):
        raise refusal(path, f'must be one of {", ".join(_TOOL_CHOICES)}, or {{"name": a tool}}')
    choice = cast(dict[str, Any], value)
    if "function" in choice or "type" in choice:
        raise refusal(path, 'must be {"name": a tool}: the form with type and function is not used')
    known_fields(choice, NamedTool.__struct_fields__, path)
    name = at(path, "name")
    if not as_text(choice.get("name"), name):
        raise refusal(name, "must not be empty")
    return choice


def _then_format(value: Any, path: str, _: RequestLimits) -> Any:
    _check_schema(value, path)
    return value


_OPTION_RULES: dict[str, Callable[[Any, str, RequestLimits], Any]] = {
    "documents": _documents,
    "hooks": _hooks,
    "tool_choice": _tool_choice,
    "then_format": _then_format,
}


def _check_count(value: Any, path: str, most: int) -> None:
    count = len(as_list(value, path))
    if count > most:
        raise refusal(path, f"has {count} entries; at most {most} are allowed")


# --- JSON Schemas: a look at the shape, not a validation


def _check_schema(value: Any, path: str) -> None:
    if value is None:
        return
    schema = as_object(value, path)
    if "json_schema" in schema:
        raise refusal(path, "must be the JSON Schema itself, without type and json_schema around")
    _check_schema_type(schema.get("type"), at(path, "type"))
    if "properties" in schema:
        as_object(schema["properties"], at(path, "properties"))
    if "required" in schema:
        place = at(path, "required")
        for index, name in enumerate(as_list(schema["required"], place)):
            as_text(name, at(place, index))
    _check_references(schema, path)


def _check_schema_type(value: Any, path: str) -> None:
    names = cast(list[Any], value) if isinstance(value, list) else [value]
    if value is not None and not all(name in _SCHEMA_TYPES for name in names):
        raise refusal(path, f"must be one of {', '.join(_SCHEMA_TYPES)}, or an array of these")


def _check_references(schema: dict[str, Any], path: str) -> None:
    """No reference may lead out of the schema: a validator might fetch it."""
    waiting: list[tuple[str, Any]] = [(path, schema)]
    while waiting:
        place, here = waiting.pop()
        if isinstance(here, dict):
            for name, item in cast(dict[str, Any], here).items():
                inner = at(place, name)
                if name in ("$ref", "$dynamicRef") and isinstance(item, str):
                    if not item.startswith("#"):
                        raise refusal(inner, "must point into the schema itself, as #/$defs/Name")
                waiting.append((inner, item))
        elif isinstance(here, list):
            items = cast(list[Any], here)
            waiting.extend((at(place, i), item) for i, item in enumerate(items))


# --- when it ends


def _check_end(request: RunRequest) -> None:
    given = {
        "timeout_s": request.timeout_s,
        "deadline": request.deadline,
        "options.deadline": request.options.deadline,
    }
    names = [name for name, value in given.items() if isinstance(value, str | float | int)]
    if len(names) > 1:
        raise refusal(names[1], f"must not be given beside {names[0]}: one of them says the end")
    if names:
        deadline_of(request, 0)


def _parsed_time(value: str, path: str) -> float:
    if _RFC_3339.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper()).timestamp()
        except ValueError:
            pass  # a month 13, a day 31 of June
    raise InvalidRequest(
        f"{path}: must be a time with a zone, as 2026-01-31T12:00:00Z (RFC 3339)", field=path
    )
