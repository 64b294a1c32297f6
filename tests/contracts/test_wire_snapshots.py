"""The bytes on the wire. A difference here is a change of the contract: a decision, never an
accident. After one was made: `python -m pytest tests/contracts/test_wire_snapshots.py
--write-snapshots`, and a line in the changelog."""

from pathlib import Path

import msgspec
import pytest

from hayrunner_contracts import examples, headers, subagents, subjects

SNAPSHOTS = Path(__file__).parent / "snapshots"
ID = "01981a60-0000-7000-8000-000000000001"

TYPES: dict[str, object] = {
    **examples.REQUESTS,
    **examples.RESULTS,
    **{f"event_{name}": value for name, value in examples.EVENTS.items()},
    **{f"command_{name}": value for name, value in examples.COMMANDS.items()},
    **{f"message_{name}": value for name, value in examples.MESSAGES.items()},
    **{f"thread_record_{name}": value for name, value in examples.THREAD_RECORDS.items()},
    **examples.THREADS,
    **examples.DATA_CLASSES,
    "names": {
        "subjects": {
            "requests": subjects.requests("default", "support"),
            "ask": subjects.ask("default", "support"),
            "events": subjects.events("default", ID),
            "result": subjects.result("default", ID),
            "commands": subjects.commands("default", ID),
            "thread": subjects.thread("default", "thread-7"),
            "dead": subjects.dead("default", "support"),
            "holds": subjects.worker_holds("w1"),
        },
        "metadata": {"subagent_path": subagents.SUBAGENT_PATH},
        "streams": [
            subjects.AGENT_REQUESTS,
            subjects.RUN_EVENTS,
            subjects.RUN_RESULTS,
            subjects.RUN_COMMANDS,
            subjects.THREADS,
            subjects.DEAD_RUNS,
        ],
        "buckets": [
            subjects.RUNS_BUCKET,
            subjects.RUN_BLOBS_BUCKET,
            subjects.THREAD_BLOBS_BUCKET,
        ],
        "consumer": subjects.consumer_name("default", "support"),
        "blob": subjects.blob_name("default", ID, "event.12.8f3a"),
        "claim": subjects.claim_key("default", ID),
        "thread_lock": subjects.thread_lock_key("default", "thread-7"),
        "derived_message_id": subjects.derived_message_id("AGENT_REQUESTS", 7),
        "headers": {name: getattr(headers, name) for name in sorted(headers.__all__)},
    },
}


@pytest.mark.parametrize("name", TYPES)
def test_the_wire_is_as_it_was_decided(name: str, pytestconfig: pytest.Config) -> None:
    path = SNAPSHOTS / f"{name}.json"
    sent = msgspec.json.format(msgspec.json.encode(TYPES[name]), indent=2).decode() + "\n"
    if pytestconfig.getoption("--write-snapshots", default=False):
        path.write_text(sent, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == sent


def test_every_snapshot_is_of_something() -> None:
    assert {path.stem for path in SNAPSHOTS.glob("*.json")} == set(TYPES)
