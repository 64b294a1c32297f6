"""JSON Schemas of the wire types, and their export together with the AsyncAPI document.

`python -m hayrunner_contracts.schema` writes contracts/schemas/ and the tables of
docs/contract.md; with `--check` it writes nothing and names what differs.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Union

import msgspec

from hayrunner_contracts.chunks import ComponentInfo, StreamingChunk, ToolCallDelta
from hayrunner_contracts.commands import COMMAND_TYPES
from hayrunner_contracts.descriptions import FIELDS
from hayrunner_contracts.documents import (
    ByteStream,
    Document,
    ExtractedAnswer,
    GeneratedAnswer,
    SparseEmbedding,
)
from hayrunner_contracts.events import EVENT_TYPES
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.threads import THREAD_RECORD_TYPES, Thread, ThreadState

__all__ = ["components", "export", "json_schemas", "main", "written"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ID = "urn:hayrunner:contract:"
_FORMS_NOTE = (
    "The form of Haystack 2.20 and 3.x. In a request, older Haystack messages (`content` as a "
    "string; `_role`, `_content`) and messages of OpenAI's chat completions are read as well."
)
_DOCUMENT_NOTE = "In a request, metadata may also stand beside the fields (flattened)."

_TYPES: dict[str, Any] = {
    "run_request": RunRequest,
    "run_result": RunResult,
    "run_command": Union[tuple(COMMAND_TYPES.values())],  # noqa: UP007
    "stream_event": Union[tuple(EVENT_TYPES.values())],  # noqa: UP007
    "thread_record": Union[tuple(THREAD_RECORD_TYPES.values())],  # noqa: UP007
    "thread_state": ThreadState,
    "thread": Thread,
    "byte_stream": ByteStream,
    "chat_message": ChatMessage,
    "component_info": ComponentInfo,
    "document": Document,
    "extracted_answer": ExtractedAnswer,
    "generated_answer": GeneratedAnswer,
    "sparse_embedding": SparseEmbedding,
    "streaming_chunk": StreamingChunk,
    "tool_call_delta": ToolCallDelta,
}


def json_schemas() -> dict[str, dict[str, Any]]:
    """A self-contained JSON Schema (2020-12) per type, by its name in snake case."""
    made: dict[str, dict[str, Any]] = {}
    for name, kind in _TYPES.items():
        (schema,), parts = _components([kind], "#/$defs/{name}")
        made[name] = {
            "$schema": _DIALECT,
            "$id": f"{_ID}1:{name}",
            **schema,
            "$defs": parts,
        }
    return made


def components(ref_template: str) -> dict[str, dict[str, Any]]:
    """The schema of every struct of the wire, by its class name."""
    return _components(_TYPES.values(), ref_template)[1]


def written(value: Any) -> str:
    """JSON as it is exported: sorted, indented, with a line break at its end."""
    data = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(data, indent=2).decode() + "\n"


def export(folder: Path, check: bool = False, docs: Path | None = None) -> list[str]:
    """Write every schema and the AsyncAPI document into `folder`, and the tables into `docs`,
    where that is given; the paths that differed, or with `check`, that differ."""
    # Both need the schemas above.
    from hayrunner_contracts.asyncapi import asyncapi
    from hayrunner_contracts.tables import filled

    files = {folder / f"{name}.schema.json": written(s) for name, s in json_schemas().items()}
    files[folder / "asyncapi.json"] = written(asyncapi())
    if docs is not None:
        files[docs] = filled(docs.read_text(encoding="utf-8"))
    stale = [path for path in folder.glob("*.schema.json") if path not in files and _is_ours(path)]
    differing = [path for path, text in files.items() if _text_of(path) != text]
    if not check:
        folder.mkdir(parents=True, exist_ok=True)
        for path in differing:
            path.write_text(files[path], encoding="utf-8", newline="\n")
        for path in stale:
            path.unlink()
    return [str(path) for path in sorted([*differing, *stale])]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where `--check` finds a difference."""
    root = Path(__file__).resolve().parents[3]
    parser = argparse.ArgumentParser(prog="python -m hayrunner_contracts.schema")
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    parser.add_argument("--folder", type=Path, default=root / "contracts" / "schemas")
    parser.add_argument("--docs", type=Path, default=root / "docs" / "contract.md")
    chosen = parser.parse_args(arguments)
    docs: Path | None = chosen.docs if chosen.docs.exists() else None
    differing = export(chosen.folder, check=chosen.check, docs=docs)
    for path in differing:
        print(f"{'differs' if chosen.check else 'wrote'}: {path}")
    return 1 if chosen.check and differing else 0


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _is_ours(path: Path) -> bool:
    return f'"{_ID}' in path.read_text(encoding="utf-8")


def _components(
    kinds: Iterable[Any], ref_template: str
) -> tuple[tuple[dict[str, Any], ...], dict[str, dict[str, Any]]]:
    schemas, parts = msgspec.json.schema_components(kinds, ref_template=ref_template)
    for name, part in parts.items():
        for field, text in FIELDS.get(name, {}).items():
            _describe(part["properties"][field], text)
        _complete(name, part)
    return schemas, parts


def _describe(schema: dict[str, Any], text: str) -> None:
    # Beside a $ref other keywords are allowed since draft 2019-09.
    schema["description"] = text


def _complete(name: str, part: dict[str, Any]) -> None:
    """What the types alone do not say."""
    if name == "ContentPart":
        part.update(minProperties=1, maxProperties=1)
    elif name == "ChatMessage":
        part["description"] = f"{part['description']} {_FORMS_NOTE}"
    elif name == "Document":
        part["description"] = f"{part['description']} {_DOCUMENT_NOTE}"
    elif name == "RunRequest":
        part["oneOf"] = [{"required": ["prompt"]}, {"required": ["messages"]}]


if __name__ == "__main__":
    sys.exit(main())
