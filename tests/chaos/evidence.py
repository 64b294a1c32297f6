"""What is there once all is over: everything NATS holds, everything that was written down."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from nats.aio.client import Client
from nats.js.errors import KeyNotFoundError, NotFoundError
from tests.chaos.consumers import Seen
from tests.chaos.journal import read_journals
from tests.chaos.plan import Plan

from hayrunner.serving.claims import ClaimRecord
from hayrunner.serving.stored import StoredMessage, messages_of
from hayrunner_contracts import subjects
from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.codec import decode_event, encode
from hayrunner_contracts.errors import StorageFailed
from hayrunner_contracts.headers import BLOB, DEAD_REASON
from hayrunner_contracts.references import reference_of
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.threads import ThreadMessages

__all__ = ["Evidence", "StoredEvent", "collect", "keep"]


_ANY_SIZE = 2**31
_CATCH_UP_S = 60.0


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the stream holds it: where, since when (seconds since the epoch), what."""

    sequence: int
    stored_at: float
    data: bytes


class Evidence(msgspec.Struct, kw_only=True):
    """Everything the checker looks at. By message id where not said otherwise."""

    plan: Plan
    accepted: set[int]
    events: dict[str, list[StoredEvent]]
    results: dict[str, RunResult]
    results_written: int
    """How often a result was stored, those of the same run included."""
    claims: dict[str, ClaimRecord]
    threads: dict[str, list[ThreadMessages]]
    """By thread id, in order: what runs added, doubles included."""
    dead: list[tuple[str | None, str]]
    """Message id and reason of each dead letter."""
    queued: int
    unacked: int
    seen: list[Seen]
    faults: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    provider: list[dict[str, Any]]
    commands: list[dict[str, Any]]
    exit_codes: dict[str, int]


class _Id(msgspec.Struct):
    message_id: str | None = None


_RECORDS: "msgspec.json.Decoder[ThreadMessages]" = msgspec.json.Decoder(ThreadMessages)


async def collect(
    nc: Client,
    folder: Path,
    plan: Plan,
    *,
    accepted: set[int],
    seen: list[Seen],
    exit_codes: dict[str, int],
) -> Evidence:
    """Read it all. The workers have ended."""
    js = nc.jetstream()
    results = await _results(nc)
    written = (await js.stream_info(subjects.RUN_RESULTS)).state.last_seq
    queue = await js.stream_info(subjects.AGENT_REQUESTS)
    return Evidence(
        plan=plan,
        accepted=accepted,
        events=await _events(nc),
        results=results,
        results_written=written,
        claims=await _claims(nc, plan),
        threads=await _threads(nc),
        dead=await _dead(nc),
        queued=queue.state.messages,
        unacked=await _unacked(nc),
        seen=seen,
        faults=read_journals(folder, "faults.jsonl"),
        workers=read_journals(folder, "worker-*.jsonl"),
        provider=read_journals(folder, "provider.jsonl"),
        commands=read_journals(folder, "load.jsonl"),
        exit_codes=exit_codes,
    )


def _id_in(subject: str) -> str:
    return subject.split(".")[2]


async def _events(nc: Client) -> dict[str, list[StoredEvent]]:
    found: dict[str, list[StoredEvent]] = {}
    for message in await _all(nc, subjects.RUN_EVENTS, "runs.*.*.events"):
        data = await _content(nc, message)
        if message.headers.get(BLOB):
            data = encode(replace(decode_event(data), seq=decode_event(message.data).seq))
        event = StoredEvent(sequence=message.sequence, stored_at=message.stored_at, data=data)
        found.setdefault(_id_in(message.subject), []).append(event)
    return found


async def _results(nc: Client) -> dict[str, RunResult]:
    stored = await _all(nc, subjects.RUN_RESULTS, "runs.*.*.result")
    return {
        _id_in(message.subject): msgspec.json.decode(await _content(nc, message), type=RunResult)
        for message in stored
    }


async def _all(nc: Client, stream: str, subject: str) -> list[StoredMessage]:
    """All that the stream's leader has: the answer may come from a replica that is behind it."""
    async with asyncio.timeout(_CATCH_UP_S):
        while True:
            state = (await nc.jetstream().stream_info(stream)).state
            found = [message async for message in messages_of(nc, stream, subject)]
            if len(found) >= state.messages:
                return found
            await asyncio.sleep(0.5)


async def _content(
    nc: Client, message: StoredMessage, bucket: str = subjects.RUN_BLOBS_BUCKET
) -> bytes:
    """What the message says, wherever it is kept; where that is gone, what is left of it here."""
    reference = reference_of(message.headers)
    if reference is None:
        return message.data
    store = BlobStore(nc, bucket=bucket)
    try:
        return await store.get(reference.name, digest=reference.digest, max_bytes=_ANY_SIZE)
    except StorageFailed:
        return message.data


async def _claims(nc: Client, plan: Plan) -> dict[str, ClaimRecord]:
    """Of every planned run, one by one: that is what the stream's leader answers."""
    bucket = await nc.jetstream().key_value(subjects.RUNS_BUCKET)
    found: dict[str, ClaimRecord] = {}
    for run in plan.runs:
        key = subjects.claim_key(subjects.DEFAULT_NAMESPACE, run.message_id)
        with contextlib.suppress(KeyNotFoundError):
            entry = await bucket.get(key)
            found[run.message_id] = msgspec.json.decode(entry.value or b"", type=ClaimRecord)
    return found


async def _threads(nc: Client) -> dict[str, list[ThreadMessages]]:
    found: dict[str, list[ThreadMessages]] = {}
    for message in await _all(nc, subjects.THREADS, "threads.*.*"):
        if msgspec.json.decode(message.data).get("type") == "messages":
            record = _RECORDS.decode(await _content(nc, message, subjects.THREAD_BLOBS_BUCKET))
            found.setdefault(_id_in(message.subject), []).append(record)
    return found


async def _dead(nc: Client) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    async for message in messages_of(nc, subjects.DEAD_RUNS, "dead.*.*"):
        try:
            message_id = msgspec.json.decode(message.data, type=_Id).message_id
        except msgspec.DecodeError:
            message_id = None
        found.append((message_id, message.headers.get(DEAD_REASON, "")))
    return found


async def _unacked(nc: Client) -> int:
    js = nc.jetstream()
    unacked = 0
    for agent in ("clerk", "talker"):
        name = subjects.consumer_name(subjects.DEFAULT_NAMESPACE, agent)
        try:
            info = await js.consumer_info(subjects.AGENT_REQUESTS, name)
        except NotFoundError:
            continue
        unacked += info.num_ack_pending or 0
    return unacked


def keep(evidence: Evidence, folder: Path) -> None:
    """Write what NATS held beside the journals: streams as lines, the rest as one object."""
    with (folder / "events.jsonl").open("wb") as file:
        for message_id, events in evidence.events.items():
            for event in events:
                head = {
                    "message_id": message_id,
                    "sequence": event.sequence,
                    "stored_at": event.stored_at,
                    "event": msgspec.Raw(event.data),
                }
                file.write(msgspec.json.encode(head) + b"\n")
    rest = {
        "results": evidence.results,
        "claims": evidence.claims,
        "threads": evidence.threads,
        "dead": evidence.dead,
        "queued": evidence.queued,
        "unacked": evidence.unacked,
        "exit_codes": evidence.exit_codes,
        "seen": [
            {"run": s.run, "kind": s.kind, "whole": s.whole, "error": s.error, "last": s.last}
            for s in evidence.seen
        ],
    }
    (folder / "evidence.json").write_bytes(msgspec.json.format(msgspec.json.encode(rest)))
