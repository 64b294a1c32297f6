"""Haystack's documents as wire types. (Being completed.)"""

from typing import Any

import msgspec

__all__ = ["Document"]


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str | None = None
    content: str | None = None
    meta: dict[str, Any] = {}
