"""The exported schemas are those of the code, are schemas, and admit what the code writes."""

import json
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
import pytest

from hayrunner_contracts import examples
from hayrunner_contracts.asyncapi import CHANNELS, asyncapi
from hayrunner_contracts.commands import COMMAND_TYPES
from hayrunner_contracts.descriptions import FIELDS
from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.events import EVENT_TYPES, Usage
from hayrunner_contracts.options import RunOptions
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.schema import export, json_schemas, main
from hayrunner_contracts.tables import filled
from hayrunner_contracts.threads import THREAD_RECORD_TYPES, Thread, ThreadRating, ThreadState

ROOT = Path(__file__).parents[2]
SCHEMAS = json_schemas()
EXAMPLES: list[tuple[str, str, Any]] = [
    *(("run_request", name, value) for name, value in examples.REQUESTS.items()),
    *(("run_result", name, value) for name, value in examples.RESULTS.items()),
    *(("run_command", name, value) for name, value in examples.COMMANDS.items()),
    *(("stream_event", name, value) for name, value in examples.EVENTS.items()),
    *(("thread_record", name, value) for name, value in examples.THREAD_RECORDS.items()),
    *((name, name, value) for name, value in examples.THREADS.items()),
    *(("chat_message", name, value) for name, value in examples.MESSAGES.items()),
    *(
        (name if name in SCHEMAS else "streaming_chunk", name, value)
        for name, value in examples.DATA_CLASSES.items()
    ),
]


def _valid(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_the_exported_files_and_the_tables_are_those_of_the_code() -> None:
    assert export(ROOT / "contracts" / "schemas", True, ROOT / "docs" / "contract.md") == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_of_its_draft(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize(("schema", "name", "value"), EXAMPLES)
def test_an_example_satisfies_its_schema(schema: str, name: str, value: Any) -> None:
    sent = json.loads(msgspec.json.encode(value))
    jsonschema.Draft202012Validator(SCHEMAS[schema]).validate(sent)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("run_request", {}),
        ("run_request", {"prompt": "hi", "promt": "hi"}),
        ("run_request", {"prompt": "hi", "messages": []}),
        ("run_request", {"prompt": "hi", "mode": "sync"}),
        ("run_request", {"prompt": "hi", "options": {"max_tunrs": 1}}),
        ("run_request", {"prompt": "hi", "options": {"max_turns": -1}}),
        ("run_command", {"type": "pause"}),
        ("run_command", {"type": "deny"}),
        ("stream_event", {"type": "text_chunk", "seq": 1}),
        ("chat_message", {"role": "user", "content": [{"text": "a", "image": {}}]}),
        ("byte_stream", {"data": [256]}),
    ],
)
def test_a_schema_refuses_what_the_reader_refuses(schema: str, value: Any) -> None:
    assert not _valid(SCHEMAS[schema], value)


def test_a_schema_admits_fields_of_a_newer_event() -> None:
    assert _valid(SCHEMAS["stream_event"], {"type": "stream_end", "seq": 1, "new": 1})


def test_every_field_is_described() -> None:
    kinds = [RunRequest, RunOptions, RunResult, RunFailure, Usage]
    records = [*THREAD_RECORD_TYPES.values(), ThreadState, Thread, ThreadRating]
    for kind in [*kinds, *EVENT_TYPES.values(), *COMMAND_TYPES.values(), *records]:
        assert set(FIELDS[kind.__name__]) == set(kind.__struct_fields__), kind.__name__


def test_a_check_names_what_differs_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--folder", str(tmp_path), "--docs", str(tmp_path / "none.md")]
    assert main([*arguments, "--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert f"differs: {tmp_path / 'run_request.schema.json'}" in capsys.readouterr().out
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0


def test_a_schema_that_is_gone_is_removed_and_a_strangers_file_is_not(tmp_path: Path) -> None:
    export(tmp_path)
    stale = tmp_path / "old_type.schema.json"
    stale.write_text((tmp_path / "document.schema.json").read_text(), encoding="utf-8")
    strange = tmp_path / "other.schema.json"
    strange.write_text("{}", encoding="utf-8")
    assert export(tmp_path, check=True) == [str(stale)]
    export(tmp_path)
    assert not stale.exists()
    assert strange.exists()


def test_a_table_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no table nonsense"):
        filled("<!-- generated: nonsense -->\n<!-- end -->")


# --- AsyncAPI, as far as it can be checked without its own tools


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        inner = [found for item in fields.values() for found in _references(item)]
        own = fields.get("$ref")
        return [own, *inner] if isinstance(own, str) else inner
    if isinstance(value, list):
        return [found for item in cast(list[Any], value) for found in _references(item)]
    return []


def _resolved(document: dict[str, Any], reference: str) -> Any:
    assert reference.startswith("#/")
    here: Any = document
    for step in reference[2:].split("/"):
        here = here[step]
    return here


DOCUMENT: dict[str, Any] = json.loads(msgspec.json.encode(asyncapi()))


def test_the_asyncapi_document_has_what_version_3_asks_for() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    assert set(DOCUMENT) <= {
        "asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations",
        "components",
    }  # fmt: skip


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    for reference in _references(DOCUMENT):
        assert _resolved(DOCUMENT, reference), reference


def test_every_channel_declares_the_parameters_of_its_address() -> None:
    for name, channel in DOCUMENT["channels"].items():
        if channel["address"] is None:
            continue
        for parameter in channel["parameters"]:
            assert f"{{{parameter}}}" in channel["address"], name
        assert channel["address"].count("{") == len(channel["parameters"])
    assert set(DOCUMENT["channels"]) == {c.name for c in CHANNELS} | {"askReply"}


def test_every_operation_uses_messages_of_its_own_channel() -> None:
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] in ("send", "receive")
        for part in (operation, operation.get("reply")):
            if part is None:
                continue
            channel = part["channel"]["$ref"]
            for message in part["messages"]:
                assert message["$ref"].startswith(f"{channel}/messages/")


def test_examples_of_the_asyncapi_document_satisfy_their_payloads() -> None:
    for message in DOCUMENT["components"]["messages"].values():
        schema = {**message["payload"], "components": DOCUMENT["components"]}
        for example in message["examples"]:
            jsonschema.Draft202012Validator(schema).validate(example["payload"])


def test_headers_of_the_asyncapi_document_are_schemas() -> None:
    for message in DOCUMENT["components"]["messages"].values():
        if "headers" in message:
            assert message["headers"]["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(message["headers"])
