"""The one result of a run."""

from typing import Any, Literal

import msgspec

from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import FinishReason, Usage
from hayrunner_contracts.messages import ChatMessage

__all__ = ["RunResult", "RunStatus"]

RunStatus = Literal["completed", "failed", "cancelled"]


class RunResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended.

    `answer` is the text, or the JSON value where the request had a `response_format` or a
    `then_format`; after a failure it is what there was of it, as text. `messages` are the new
    messages, where the request asked with `include_messages`. Times are RFC 3339 in UTC.
    `last_seq` is the `seq` of `stream_end`, which gets a higher one where a worker that was taken
    for dead speaks at the very end; 0 for a direct request, whose events are stored nowhere.
    """

    message_id: str
    agent: str
    status: RunStatus
    answer: Any = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    model_calls: int = 0
    attempts: int = 1
    error: RunFailure | None = None
    messages: list[ChatMessage] | None = None
    last_seq: int = 0
    metadata: dict[str, str] = {}
    thread_id: str | None = None
    requested_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
