"""Haystack's documents and answers as wire types.

The JSON of each is what `to_dict` of the Haystack class of that name gives and `from_dict` takes,
field for field (held against haystack-ai 3.4.1); `Document` in the nested form
(`to_dict(flatten=False)`). A flattened document, whose metadata stand beside its fields, is read
by `parse_document`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hayrunner_contracts.refusals import as_list, as_object, at, convert, nearest, refusal

__all__ = [
    "ByteStream",
    "Document",
    "ExtractedAnswer",
    "GeneratedAnswer",
    "Span",
    "SparseEmbedding",
    "parse_document",
    "parse_documents",
]

Byte = Annotated[int, Meta(ge=0, le=255)]

# Fields of Haystack 1.x documents, which its `from_dict` drops.
_DROPPED = ("content_type", "id_hash_keys", "dataframe")


class ByteStream(msgspec.Struct, frozen=True, kw_only=True):
    """Binary data; on the wire an array of numbers from 0 to 255, as Haystack writes it."""

    data: list[Byte]
    meta: dict[str, Any] = {}
    mime_type: str | None = None

    @classmethod
    def of(cls, data: bytes, *, mime_type: str | None = None) -> "ByteStream":
        """The stream of these bytes."""
        return cls(data=list(data), mime_type=mime_type)

    def to_bytes(self) -> bytes:
        """The data."""
        return bytes(self.data)


class SparseEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """The places of a sparse vector that are not zero, and what stands there."""

    indices: list[int]
    values: list[float]

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.values):
            raise ValueError("indices and values must have the same length")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of data to answer from. Without an id Haystack makes one from the content."""

    id: str = ""
    content: str | None = None
    blob: ByteStream | None = None
    meta: dict[str, Any] = {}
    score: float | None = None
    embedding: list[float] | None = None
    sparse_embedding: SparseEmbedding | None = None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A range of characters, `end` excluded."""

    start: int
    end: int


class ExtractedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is a passage of a document."""

    query: str
    score: float
    data: str | None = None
    document: Document | None = None
    context: str | None = None
    document_offset: Span | None = None
    context_offset: Span | None = None
    meta: dict[str, Any] = {}


class GeneratedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that a model wrote, and the documents it was given."""

    data: str
    query: str
    documents: list[Document]
    meta: dict[str, Any] = {}


def parse_documents(value: Any, path: str = "documents") -> list[Document]:
    """The documents of an array, each in either form."""
    return [parse_document(item, at(path, i)) for i, item in enumerate(as_list(value, path))]


def parse_document(value: Any, path: str = "document") -> Document:
    """One document, nested or flattened: a field that a document does not have is metadata.

    `InvalidRequest` where a field has the wrong type, or where there is neither content nor data.
    """
    if isinstance(value, Document):
        return value
    given = as_object(value, path)
    fields: dict[str, Any] = {}
    flattened: dict[str, Any] = {}
    for name, item in given.items():
        if name in Document.__struct_fields__:
            fields[name] = item
        elif name not in _DROPPED:
            flattened[name] = item
    nested = fields.get("meta")
    meta = {} if nested is None else as_object(nested, at(path, "meta"))
    fields["meta"] = {**meta, **flattened}
    if fields.get("id", "") is None:
        del fields["id"]
    if fields.get("content") is None and fields.get("blob") is None:
        meant = next((name for name in flattened if nearest(name, ("content", "blob"))), None)
        hint = f"; was {at('', meant)} meant to be it?" if meant else ""
        raise refusal(at(path, "content"), f"is missing: a document has content or a blob{hint}")
    return convert(fields, Document, path)
