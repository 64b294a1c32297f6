"""Sources: the documents that a run's tools found, numbered, so that the answer can cite them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
from haystack.dataclasses import ChatMessage, Document, ToolCall
from haystack.tools import Tool

from hayrunner.adapters import haystack_internals as internals
from hayrunner_contracts.events import Source

__all__ = [
    "CitationFormatter",
    "CitationRegistry",
    "CitedDocument",
    "RunCitations",
    "documents_in",
    "formatter_of",
    "numbered_blocks",
]

# One event has to fit into one message on the bus. The model sees all of a document.
_CONTENT_SHOWN = 10_000

_TITLES = ("title", "name", "file_name", "filename")
_URLS = ("url", "link", "source_url")
_MEDIA_TYPES = ("media_type", "mime_type", "content_type")


@dataclass(frozen=True, kw_only=True)
class CitedDocument:
    """A document under the number it is cited by. Documents of one source share it."""

    index: int
    title: str | None = None
    content: str | None = None
    url: str | None = None
    source_id: str | None = None
    media_type: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])


CitationFormatter = Callable[[Sequence[CitedDocument]], str]
"""What the model sees of the documents a tool found."""


class CitationRegistry:
    """Numbers sources from 1, in the order in which they are registered.

    A document with an id or a URL that is known already gets the number of that source.
    """

    def __init__(self) -> None:
        self._sources: list[CitedDocument] = []
        self._by_id: dict[str, int] = {}
        self._by_url: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def sources(self) -> list[CitedDocument]:
        """One document for each number, in order: the first that was registered under it."""
        return list(self._sources)

    def register(self, documents: Iterable[Document]) -> list[CitedDocument]:
        """The documents, each with its number, in the order given."""
        return [self.add(_described(document)) for document in documents]

    def add(self, document: CitedDocument) -> CitedDocument:
        """The same for one that is described already; its `index` is replaced."""
        number = self._by_id.get(document.source_id or "") or self._by_url.get(document.url or "")
        numbered = replace(document, index=number or len(self._sources) + 1)
        if number is None:
            self._sources.append(numbered)
        if numbered.source_id:
            self._by_id.setdefault(numbered.source_id, numbered.index)
        if numbered.url:
            self._by_url.setdefault(numbered.url, numbered.index)
        return numbered


def numbered_blocks(documents: Sequence[CitedDocument]) -> str:
    """The default formatter: `[1] title`, the URL if there is one, and the text, for each."""
    return "\n\n".join(_block(document) for document in documents)


def _block(document: CitedDocument) -> str:
    head = f"[{document.index}] {document.title or document.url or document.source_id or ''}"
    url = document.url if document.title else None
    return "\n".join(part for part in (head.rstrip(), url, document.content) if part)


def formatter_of(agent: Any) -> CitationFormatter | None:
    """The agent's `citation_formatter`: a function that stands in the class, which Python would
    make a method, or a method."""
    found = inspect.getattr_static(agent, "citation_formatter", None)
    if inspect.isfunction(found) and len(inspect.signature(found).parameters) == 1:
        return found
    return agent.citation_formatter


def documents_in(result: Any) -> list[Document]:
    """The documents that are a tool's result: a list of nothing else, or the `documents` of a
    dict. Empty where there are none."""
    found = cast("dict[str, Any]", result).get("documents") if isinstance(result, dict) else result
    if not isinstance(found, list | tuple):
        return []
    documents = [item for item in cast("list[Any]", found) if isinstance(item, Document)]
    return documents if len(documents) == len(cast("list[Any]", found)) else []


class RunCitations:
    """The sources of one run: numbered, shown to the model, and told to the consumer once each."""

    def __init__(
        self, registry: CitationRegistry | None = None, formatter: CitationFormatter | None = None
    ) -> None:
        # Not `or`: an empty registry is false.
        self.registry = CitationRegistry() if registry is None else registry
        self.formatter = formatter or numbered_blocks
        self._told: set[int] = set()
        self._shown: dict[str, tuple[Any, list[CitedDocument]]] = {}

    @property
    def any(self) -> bool:
        """Whether there is anything that could be cited."""
        return len(self.registry) > 0

    def message(
        self, documents: list[Document], result: Any, call: ToolCall, tool: Tool
    ) -> ChatMessage:
        """The tool message for a result with documents. A tool that says itself how its output
        becomes text (`outputs_to_string`) is taken at its word."""
        cited = self.registry.register(documents)
        if tool.outputs_to_string:
            message = internals.build_tool_message(result, call, tool, raise_on_failure=False)
        else:
            text = self.formatter(cited) + _rest_of(result)
            message = ChatMessage.from_tool(tool_result=text, origin=call)
        told = message.tool_call_result
        self._shown[call.id or ""] = (None if told is None else told.result, cited)
        return message

    def sources_of(self, call_id: str, message: ChatMessage | None, step: int) -> list[Source]:
        """An event for each source of this call that was not told before. None where a hook
        changed what the tool said: what it took out is not shown this way, either."""
        shown, cited = self._shown.pop(call_id, (None, []))
        result = None if message is None else message.tool_call_result
        if result is None or result.error or result.result != shown:
            return []
        return [source for document in cited if (source := self.tell(document, call_id, step=step))]

    def known(self) -> list[tuple[CitedDocument, bool]]:
        """Every source, and whether its event was made."""
        return [(source, source.index in self._told) for source in self.registry.sources]

    def know(self, document: CitedDocument, *, told: bool) -> None:
        """A source that an earlier attempt at the run numbered. In a registry that others fill,
        too, its number may be another now: what was told keeps its own."""
        added = self.registry.add(document)
        if told:
            self._told.add(added.index)

    def tell(self, document: CitedDocument, call_id: str | None, *, step: int) -> Source | None:
        """The event for a source; None where there was one."""
        if document.index in self._told:
            return None
        self._told.add(document.index)
        content = document.content
        if content is not None and len(content) > _CONTENT_SHOWN:
            content = content[:_CONTENT_SHOWN] + "…"
        return Source(
            index=document.index,
            title=document.title,
            content=content,
            source_id=document.source_id,
            tool_call_id=call_id,
            media_type=document.media_type,
            url=document.url,
            step=step,
        )


def _rest_of(result: Any) -> str:
    """What a dict says beside its documents."""
    if not isinstance(result, dict):
        return ""
    whole = cast("dict[Any, Any]", result)
    rest = {key: value for key, value in whole.items() if key != "documents" and value is not None}
    if not rest:
        return ""
    return "\n\n" + msgspec.json.encode(rest, enc_hook=str).decode()


def _described(document: Document) -> CitedDocument:
    blob_type = document.blob.mime_type if document.blob is not None else None
    return CitedDocument(
        index=0,
        title=_text_in(document.meta, _TITLES),
        content=document.content,
        url=_text_in(document.meta, _URLS),
        source_id=document.id or None,
        media_type=_text_in(document.meta, _MEDIA_TYPES) or blob_type,
        meta=document.meta,
    )


def _text_in(meta: Mapping[str, Any], names: Iterable[str]) -> str | None:
    found = (meta.get(name) for name in names)
    return next((value for value in found if isinstance(value, str) and value), None)
