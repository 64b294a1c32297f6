"""The request for one run."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.options import RunOptions

__all__ = ["RunMode", "RunRequest"]

RunMode = Literal["stream", "answer"]


class RunRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a requester sends. Exactly one of `prompt` and `messages`, neither of them empty.

    `mode` `stream` publishes every event, `answer` only the run's frame and its result. `tools`
    runs the agent's tools in an `answer` run; a `stream` run always has them. `response_format`
    is a JSON Schema; null clears the agent's own. `timeout_s` (seconds) or `deadline` (RFC 3339
    with a zone) ends the run, time in the queue included. `metadata` comes back in the result.
    `include_messages` puts the run's new messages into the result.
    """

    message_id: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    mode: RunMode = "stream"
    thread_id: str | None = None
    user: str | None = None
    tools: bool = False
    response_format: dict[str, Any] | UnsetType | None = UNSET
    options: RunOptions = RunOptions()
    timeout_s: Annotated[float, Meta(gt=0, le=604800)] | None = None
    deadline: str | None = None
    metadata: dict[str, str] = {}
    include_messages: bool = False
