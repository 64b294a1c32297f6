"""What a caller gives as keywords, and the request that becomes of it."""

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from msgspec import UNSET, UnsetType

from hayrunner_contracts.answers import ResponseFormat, answer_schema
from hayrunner_contracts.codec import RequestLimits, decode_request, encode
from hayrunner_contracts.documents import Document
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.options import RunOptions, ToolChoice
from hayrunner_contracts.requests import RunMode, RunRequest
from hayrunner_contracts.subjects import message_id as canonical_message_id

__all__ = ["Prompt", "RunArguments", "compose_request"]

Prompt = str | ChatMessage | Sequence[ChatMessage | Mapping[str, Any]]
"""A user's text, one message, or messages in any of their forms."""


class RunArguments(TypedDict, total=False):
    """The keywords every call that starts a run takes.

    Those from `max_turns` on are the fields of `RunOptions`: left out, the agent's own setting
    stands; None clears it. They win over the same field of `options`. `deadline` is a `datetime`
    with a zone or RFC 3339 text. `then_format` takes what `response_format` takes. `headers` are
    NATS headers to send along, such as `traceparent`.
    """

    message_id: str | None
    thread_id: str | None
    user: str | None
    metadata: Mapping[str, str]
    timeout_s: float | None
    deadline: datetime | str | None
    include_messages: bool
    options: RunOptions
    headers: Mapping[str, str]

    max_turns: int | None
    preamble: str | None
    history: Sequence[ChatMessage | Mapping[str, Any]] | None
    memory: bool | None
    documents: Sequence[Document | Mapping[str, Any]] | None
    temperature: float | None
    max_tokens: int | None
    merge_params: dict[str, Any] | None
    replace_params: dict[str, Any] | None
    tool_choice: ToolChoice | None
    tool_choice_every_step: bool | None
    tool_context: dict[str, Any] | None
    tool_concurrency: int | None
    max_invalid_tool_call_retries: int | None
    record_content_telemetry: bool | None
    hooks: list[str] | None
    token_budget: int | None
    then_format: ResponseFormat
    on_busy_thread: Literal["wait", "reject"] | None


# How large a request may be is for whoever sends it to say, and for the worker.
_LIMITS = RequestLimits(max_bytes=2**31)

_OPTION_NAMES = frozenset(RunOptions.__struct_fields__) - {"deadline"}
_REQUEST_NAMES = frozenset(
    {"thread_id", "user", "metadata", "timeout_s", "deadline", "include_messages"}
)
_NAMES = _OPTION_NAMES | _REQUEST_NAMES | {"message_id", "options", "headers"}


def compose_request(
    prompt: Prompt,
    arguments: RunArguments,
    *,
    mode: RunMode,
    tools: bool = False,
    response_format: dict[str, Any] | None | UnsetType = UNSET,
) -> RunRequest:
    """The request, with a message id, checked as a worker will check it.

    `InvalidRequest` for what a worker would refuse, `TypeError` for a keyword that does not exist.
    """
    given: dict[str, Any] = dict(arguments)
    _refuse_unknown(given)
    fields: dict[str, Any] = {name: given[name] for name in given if name in _REQUEST_NAMES}
    fields["deadline"] = _deadline(given.get("deadline"))
    fields["message_id"] = canonical_message_id(given.get("message_id") or new_message_id())
    fields["mode"] = mode
    fields["tools"] = tools
    fields["options"] = _options(given)
    if response_format is not UNSET:
        fields["response_format"] = response_format
    if isinstance(prompt, str):
        fields["prompt"] = prompt
    else:
        fields["messages"] = [prompt] if isinstance(prompt, ChatMessage) else list(prompt)
    # One way to say what a request may be: what the worker's decoder takes. None means "not given"
    # for everything but `response_format` and the options.
    body = {
        name: value
        for name, value in fields.items()
        if value is not None or name == "response_format"
    }
    try:
        encoded = encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest("the request has a value without a JSON form") from error
    return decode_request(encoded, limits=_LIMITS)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    options: RunOptions = given.get("options", RunOptions())
    values = {
        name: value
        for name in RunOptions.__struct_fields__
        if (value := getattr(options, name)) is not UNSET
    }
    values.update({name: given[name] for name in given if name in _OPTION_NAMES})
    if "then_format" in given:
        values["then_format"] = answer_schema(given["then_format"], "then_format")
        if values["then_format"] is UNSET:
            del values["then_format"]
    return values


def _deadline(deadline: datetime | str | None) -> str | None:
    if not isinstance(deadline, datetime):
        return deadline
    if deadline.tzinfo is None:
        raise InvalidRequest("deadline: must have a zone", field="deadline")
    return deadline.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _refuse_unknown(given: dict[str, Any]) -> None:
    for name in given:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"no such run option: {name!r}{hint}")
