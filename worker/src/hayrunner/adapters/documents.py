"""Context documents, as the model sees them."""

from collections.abc import Sequence
from html import escape

from haystack.dataclasses import ChatMessage, ChatRole

from hayrunner_contracts.documents import Document

__all__ = ["with_documents"]


def with_documents(
    messages: Sequence[ChatMessage], documents: Sequence[Document]
) -> list[ChatMessage]:
    """`messages` with one user message that holds the documents, after the system messages.

    For one model call only: it never stands in history.
    """
    if not documents:
        return list(messages)
    at = 0
    while at < len(messages) and messages[at].is_from(ChatRole.SYSTEM):
        at += 1
    return [*messages[:at], ChatMessage.from_user(_render(documents)), *messages[at:]]


def _render(documents: Sequence[Document]) -> str:
    parts = ["<documents>"]
    for document in documents:
        title = document.meta.get("title") or document.meta.get("name")
        attributes = f' id="{escape(document.id)}"' if document.id else ""
        if isinstance(title, str):
            attributes += f' title="{escape(title)}"'
        parts.append(f"<document{attributes}>\n{document.content or ''}\n</document>")
    parts.append("</documents>")
    return "\n".join(parts)
