"""Options of one run.

Absent, null and a value are three things: an absent field means the agent's own setting, null
means none, a value means that value. In Python, absent is `msgspec.UNSET`, the default.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hayrunner_contracts.documents import Document
from hayrunner_contracts.messages import ChatMessage

__all__ = ["Count", "NamedTool", "RunOptions", "ToolChoice"]

Count = Annotated[int, Meta(ge=0)]


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `tool_choice` that forces one tool."""

    name: str


ToolChoice = Literal["auto", "required", "none"] | NamedTool


class RunOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """See docs/contract.md for each option's meaning and edge cases."""

    max_turns: Count | None | UnsetType = UNSET
    preamble: str | None | UnsetType = UNSET
    history: list[ChatMessage] | None | UnsetType = UNSET
    memory: bool | None | UnsetType = UNSET
    documents: list[Document] | None | UnsetType = UNSET
    temperature: float | None | UnsetType = UNSET
    max_tokens: Annotated[int, Meta(ge=1)] | None | UnsetType = UNSET
    merge_params: dict[str, Any] | None | UnsetType = UNSET
    replace_params: dict[str, Any] | None | UnsetType = UNSET
    tool_choice: ToolChoice | None | UnsetType = UNSET
    tool_choice_every_step: bool | None | UnsetType = UNSET
    tool_context: dict[str, Any] | None | UnsetType = UNSET
    tool_concurrency: Count | None | UnsetType = UNSET
    max_invalid_tool_call_retries: Count | None | UnsetType = UNSET
    record_content_telemetry: bool | None | UnsetType = UNSET
    hooks: list[str] | None | UnsetType = UNSET
    deadline: str | None | UnsetType = UNSET
    token_budget: Annotated[int, Meta(ge=1)] | None | UnsetType = UNSET
    then_format: dict[str, Any] | None | UnsetType = UNSET
    on_busy_thread: Literal["wait", "reject"] | None | UnsetType = UNSET
