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

    max_turns: Count | UnsetType | None = UNSET
    preamble: str | UnsetType | None = UNSET
    history: list[ChatMessage] | UnsetType | None = UNSET
    memory: bool | UnsetType | None = UNSET
    documents: list[Document] | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    max_tokens: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    merge_params: dict[str, Any] | UnsetType | None = UNSET
    replace_params: dict[str, Any] | UnsetType | None = UNSET
    tool_choice: ToolChoice | UnsetType | None = UNSET
    tool_choice_every_step: bool | UnsetType | None = UNSET
    tool_context: dict[str, Any] | UnsetType | None = UNSET
    tool_concurrency: Count | UnsetType | None = UNSET
    max_invalid_tool_call_retries: Count | UnsetType | None = UNSET
    record_content_telemetry: bool | UnsetType | None = UNSET
    hooks: list[str] | UnsetType | None = UNSET
    deadline: str | UnsetType | None = UNSET
    token_budget: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    then_format: dict[str, Any] | UnsetType | None = UNSET
    on_busy_thread: Literal["wait", "reject"] | UnsetType | None = UNSET
