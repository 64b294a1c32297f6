"""What NATS holds of runs: claims, queued requests, results, events. No worker need be up."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy

from hayrunner.errors import ConfigurationError
from hayrunner_contracts import subjects
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_event, decode_result, peek_message_id
from hayrunner_contracts.following import EventFollower, MessageBuilder
from hayrunner_contracts.replay import NotProvisioned, StoredSubject
from hayrunner_contracts.results import RunResult

__all__ = ["FINAL", "STATUSES", "RunDetails", "RunRecord", "RunRecords", "statuses_of"]

FINAL = ("completed", "failed", "cancelled")
STATUSES = ("queued", "running", "waiting", "finishing", *FINAL)

_RUNS_STREAM = f"KV_{subjects.RUNS_BUCKET}"
_LIST_TIMEOUT_S = 5.0
_RESULT_TIMEOUT_S = 10.0
_READ_AT_LEAST, _READ_AT_MOST = 4, 32
_STREAM_NOT_FOUND = 10059


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run in a few words. `waiting`: handed back by its worker, or, where it is `parked`,
    waiting for a person without a worker. Times are RFC 3339 in UTC."""

    message_id: str
    status: str
    agent: str
    attempts: int = 0
    worker: str | None = None
    step: int | None = None
    parked: bool = False
    wakes_at: str | None = None
    created_at: str | None = None
    updated_at: str | None = None


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one run. `message` is what its stored events make up."""

    record: RunRecord
    result: RunResult | None
    message: MessageBuilder


class _Kept(msgspec.Struct):
    step: int | None = None


class _Parked(msgspec.Struct):
    wake_at: float | None = None


class _Claim(msgspec.Struct):
    """Of a claim, what is shown; what else stands in it is passed over."""

    status: str
    agent: str
    worker: str = ""
    attempt: int = 1
    created_at: float = 0.0
    updated_at: float = 0.0
    kept: _Kept | None = None
    parked: _Parked | None = None


_CLAIMS = msgspec.json.Decoder(_Claim)


class _Head(NamedTuple):
    """The last message of a run's claim or result, without its body."""

    message_id: str
    stream: str
    subject: str
    sequence: int
    at: datetime


class RunRecords:
    """The runs of a client's namespace. `ConfigurationError` where nothing was ever set up."""

    def __init__(self, client: RunClient) -> None:
        self._client = client
        self._connection = client.connection
        self._jetstream = client.connection.jetstream()
        self._namespace = client.namespace

    async def recent(
        self, *, statuses: Iterable[str] = STATUSES, agent: str | None = None, limit: int = 20
    ) -> list[RunRecord]:
        """At most `limit` runs: queued ones in their order, then the others, the last changed one
        first. Only headers are read of those that are not looked at."""
        wanted = frozenset(statuses)
        claims = await self._heads(_RUNS_STREAM, f"$KV.{subjects.RUNS_BUCKET}.{self._namespace}.*")
        known = {head.message_id for head in claims}
        results = await self._heads(subjects.RUN_RESULTS, f"runs.{self._namespace}.*.result")
        heads = claims + [head for head in results if head.message_id not in known]
        known |= {head.message_id for head in results}
        found: list[RunRecord] = []
        if "queued" in wanted:
            async for queued in self._queued():
                if len(found) >= limit:
                    break
                if queued.message_id not in known and agent in (None, queued.agent):
                    found.append(queued)
        if len(wanted) == 1 and "queued" in wanted:
            return found
        heads.sort(key=lambda head: head.at, reverse=True)
        while heads and len(found) < limit:
            # Claims may be large: not many more are read than are wanted.
            count = min(_READ_AT_MOST, max(_READ_AT_LEAST, limit - len(found)))
            some, heads = heads[:count], heads[count:]
            for record in await asyncio.gather(*(self._record_of(head) for head in some)):
                if record is None or record.status not in wanted:
                    continue
                if agent in (None, record.agent):
                    found.append(record)
        return found[:limit]

    async def find(self, message_id: str) -> RunDetails:
        """One run; `ConfigurationError` where nothing is known of it."""
        message_id = subjects.message_id(message_id)
        claim = await self._claim(message_id)
        result = await self._result(message_id)
        message = await self._message(message_id)
        record = claim
        if record is None and result is not None:
            record = _of_result(result)
        if record is None:
            async for queued in self._queued():
                if queued.message_id == message_id:
                    record = queued
                    break
        if record is None and message.agent is not None:
            # It began, and its claim is gone by age or was never there.
            record = RunRecord(message_id=message_id, status="running", agent=message.agent)
        if record is None:
            raise ConfigurationError(
                f"no run {message_id} in namespace {self._namespace}: `hayrunner runs list` shows "
                "those that are still kept"
            )
        if result is not None and record.status not in FINAL:
            # The result is stored a moment before the claim is closed.
            record = msgspec.structs.replace(record, status=result.status)
        return RunDetails(record=record, result=result, message=message)

    async def _claim(self, message_id: str) -> RunRecord | None:
        key = subjects.claim_key(self._namespace, message_id)
        stored = await self._last(_RUNS_STREAM, f"$KV.{subjects.RUNS_BUCKET}.{key}")
        return None if not stored else _of_claim(message_id, stored)

    async def _result(self, message_id: str) -> RunResult | None:
        subject = subjects.result(self._namespace, message_id)
        if not await self._last(subjects.RUN_RESULTS, subject):
            return None
        # Read as every client reads it: what is stored may be only a reference.
        return await self._client.result(message_id, timeout=_RESULT_TIMEOUT_S)

    async def _message(self, message_id: str) -> MessageBuilder:
        subject = subjects.events(self._namespace, message_id)
        stored = StoredSubject(self._connection, subjects.RUN_EVENTS, subject)
        builder, follower = MessageBuilder(), None
        sequence, more = 0, True
        while more:
            batch, more = await stored.after(sequence)
            for item in batch:
                try:
                    event = decode_event(item.data)
                except ValueError:
                    continue  # somebody else's message
                # Of an old run the beginning may be gone: then from where there is something.
                follower = follower or EventFollower(max(0, event.seq - 1))
                for ready in follower.feed(event):
                    builder.add(ready)
            sequence = batch[-1].sequence if batch else sequence
        return builder

    async def _record_of(self, head: _Head) -> RunRecord | None:
        data = await self._last(head.stream, head.subject)
        if not data:
            return None
        if head.stream == _RUNS_STREAM:
            return _of_claim(head.message_id, data)
        return _of_result(decode_result(data))

    async def _last(self, stream: str, subject: str) -> bytes | None:
        try:
            return (await self._jetstream.get_msg(stream, subject=subject)).data
        except nats.js.errors.NotFoundError as error:
            if error.err_code == _STREAM_NOT_FOUND:
                raise _not_provisioned(stream) from None
            return None

    async def _heads(self, stream: str, subject: str) -> list[_Head]:
        found: list[_Head] = []
        try:
            async for message in self._last_headers(stream, subject):
                if (message.headers or {}).get("KV-Operation") is None:
                    parts = message.subject.split(".")
                    message_id = parts[-1] if stream == _RUNS_STREAM else parts[-2]
                    meta = message.metadata
                    found.append(
                        _Head(
                            message_id, stream, message.subject, meta.sequence.stream,
                            meta.timestamp,
                        )
                    )  # fmt: skip
        except nats.js.errors.NotFoundError:
            raise _not_provisioned(stream) from None
        return found

    async def _last_headers(self, stream: str, subject: str) -> AsyncIterator[Msg]:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, headers_only=True)
        subscription = await self._jetstream.subscribe(
            subject, stream=stream, ordered_consumer=True, config=config
        )
        try:
            info = await subscription.consumer_info()
            delivered = 0 if info.delivered is None else info.delivered.consumer_seq
            left = (info.num_pending or 0) + delivered
            while left:
                message = await subscription.next_msg(_LIST_TIMEOUT_S)
                yield message
                left = message.metadata.num_pending
        finally:
            if not self._connection.is_closed:
                await subscription.unsubscribe()

    async def _queued(self) -> AsyncIterator[RunRecord]:
        """The requests in the queue, the oldest first; of some a worker has a claim."""
        subject = subjects.all_agents_requests(self._namespace)
        stored = StoredSubject(self._connection, subjects.AGENT_REQUESTS, subject)
        sequence, more = 0, True
        while more:
            try:
                batch, more = await stored.after(sequence)
            except NotProvisioned:
                raise _not_provisioned(subjects.AGENT_REQUESTS) from None
            for item in batch:
                sequence = item.sequence
                derived = subjects.derived_message_id(subjects.AGENT_REQUESTS, sequence)
                yield RunRecord(
                    message_id=peek_message_id(item.data) or derived,
                    status="queued",
                    agent=_agent_of(item.headers.get("Nats-Subject", "")),
                    created_at=_moment(item.headers.get("Nats-Time-Stamp")),
                )


def statuses_of(given: Iterable[str] | None) -> frozenset[str]:
    """The statuses that were asked for, all where none was; `done` is every end."""
    wanted: set[str] = set()
    for name in given or STATUSES:
        if name != "done" and name not in STATUSES:
            known = ", ".join((*STATUSES, "done"))
            raise ConfigurationError(f"--status takes one of {known}")
        wanted |= set(FINAL) if name == "done" else {name}
    return frozenset(wanted)


def _of_claim(message_id: str, data: bytes) -> RunRecord:
    claim = _CLAIMS.decode(data)
    wakes_at = None if claim.parked is None else claim.parked.wake_at
    return RunRecord(
        message_id=message_id,
        status=claim.status,
        agent=claim.agent,
        attempts=claim.attempt,
        worker=claim.worker or None,
        step=None if claim.kept is None else claim.kept.step,
        parked=claim.parked is not None and claim.status == "waiting",
        wakes_at=None if wakes_at is None else _rfc3339(wakes_at),
        created_at=_rfc3339(claim.created_at),
        updated_at=_rfc3339(claim.updated_at),
    )


def _of_result(result: RunResult) -> RunRecord:
    return RunRecord(
        message_id=result.message_id,
        status=result.status,
        agent=result.agent,
        attempts=result.attempts,
        created_at=result.started_at or result.requested_at,
        updated_at=result.ended_at,
    )


def _agent_of(subject: str) -> str:
    try:
        return subjects.parse_requests_subject(subject)[1]
    except ValueError:
        return "?"


def _rfc3339(at: float) -> str:
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _moment(text: str | None) -> str | None:
    """The server writes up to nine digits of a second."""
    try:
        return None if text is None else _rfc3339(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return None


def _not_provisioned(stream: str) -> ConfigurationError:
    return ConfigurationError(
        f"the server has no {stream}: run `hayrunner init`, or start a worker"
    )
