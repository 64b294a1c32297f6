"""Haystack's chat messages as wire types. (Being completed.)"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "ChatMessage",
    "ContentPart",
    "FilePart",
    "ImagePart",
    "Reasoning",
    "Role",
    "ToolCall",
    "ToolCallResult",
]

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    tool_name: str
    arguments: dict[str, Any]
    id: str | None = None
    extra: dict[str, Any] | None = None


class ImagePart(msgspec.Struct, frozen=True, kw_only=True):
    base64_image: str
    mime_type: str | None = None
    detail: str | None = None
    meta: dict[str, Any] = {}
    validation: bool = True


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    base64_data: str
    mime_type: str | None = None
    filename: str | None = None
    extra: dict[str, Any] = {}
    validation: bool = True


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_text: str
    extra: dict[str, Any] = {}


class ToolCallResult(msgspec.Struct, frozen=True, kw_only=True):
    result: str | list[dict[str, Any]]
    origin: ToolCall
    error: bool = False


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one field is set."""

    text: str | UnsetType = UNSET
    image: ImagePart | UnsetType = UNSET
    file: FilePart | UnsetType = UNSET
    tool_call: ToolCall | UnsetType = UNSET
    tool_call_result: ToolCallResult | UnsetType = UNSET
    reasoning: Reasoning | UnsetType = UNSET


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Role
    content: list[ContentPart]
    name: str | None = None
    meta: dict[str, Any] = {}
