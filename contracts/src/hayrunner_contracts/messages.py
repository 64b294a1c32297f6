"""Haystack's chat messages as wire types, in the form of Haystack 2.20 and 3.x.

The JSON of a `ChatMessage` is what Haystack's `ChatMessage.to_dict` gives and `from_dict` takes,
field for field (held against haystack-ai 3.4.1). Messages in other forms are brought into this
one by `hayrunner_contracts.message_forms`.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "ChatMessage",
    "ContentPart",
    "FilePart",
    "ImageDetail",
    "ImagePart",
    "Reasoning",
    "Role",
    "ToolCall",
    "ToolCallResult",
]

T = TypeVar("T")

Role = Literal["system", "user", "assistant", "tool"]
ImageDetail = Literal["auto", "high", "low"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call the model asks for. `extra` is the provider's own."""

    tool_name: str
    arguments: dict[str, Any]
    id: str | None = None
    extra: dict[str, Any] | None = None


class ImagePart(msgspec.Struct, frozen=True, kw_only=True):
    """An image, carried as base64: a message never makes the worker fetch one."""

    base64_image: str
    mime_type: str | None = None
    detail: ImageDetail | None = None
    meta: dict[str, Any] = {}
    validation: bool = True


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """A file, carried as base64."""

    base64_data: str
    mime_type: str | None = None
    filename: str | None = None
    extra: dict[str, Any] = {}
    validation: bool = True


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """The model's reasoning, where the provider shows it."""

    reasoning_text: str
    extra: dict[str, Any] = {}


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one field is set."""

    text: str | UnsetType = UNSET
    image: ImagePart | UnsetType = UNSET
    file: FilePart | UnsetType = UNSET
    tool_call: ToolCall | UnsetType = UNSET
    tool_call_result: "ToolCallResult | UnsetType" = UNSET
    reasoning: Reasoning | UnsetType = UNSET


class ToolCallResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a call gave: text, or parts that are text, images or files."""

    result: str | list[ContentPart]
    origin: ToolCall
    error: bool = False


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Role
    content: list[ContentPart]
    name: str | None = None
    meta: dict[str, Any] = {}

    @classmethod
    def user(cls, text: str, *, name: str | None = None) -> "ChatMessage":
        """A user's message of one text."""
        return cls(role="user", content=[ContentPart(text=text)], name=name)

    @classmethod
    def system(cls, text: str) -> "ChatMessage":
        """A system message."""
        return cls(role="system", content=[ContentPart(text=text)])

    @classmethod
    def assistant(
        cls, text: str | None = None, *, tool_calls: list[ToolCall] | None = None
    ) -> "ChatMessage":
        """An assistant's message: text, tool calls, or both."""
        parts = [] if text is None else [ContentPart(text=text)]
        parts.extend(ContentPart(tool_call=call) for call in tool_calls or [])
        return cls(role="assistant", content=parts)

    @classmethod
    def tool(
        cls, result: str | list[ContentPart], *, origin: ToolCall, error: bool = False
    ) -> "ChatMessage":
        """The result of one tool call."""
        outcome = ToolCallResult(result=result, origin=origin, error=error)
        return cls(role="tool", content=[ContentPart(tool_call_result=outcome)])

    @property
    def text(self) -> str | None:
        """The texts, joined by line breaks; None where there is no text part."""
        texts = _set(part.text for part in self.content)
        return "\n".join(texts) if texts else None

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls in it, in order."""
        return _set(part.tool_call for part in self.content)

    @property
    def tool_call_results(self) -> list[ToolCallResult]:
        """The results in it, in order."""
        return _set(part.tool_call_result for part in self.content)


def _set(values: Iterable[T | UnsetType]) -> list[T]:
    return [value for value in values if not isinstance(value, UnsetType)]
