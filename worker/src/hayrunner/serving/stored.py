"""What a stream holds of one subject: how many messages, the last one, all of them; and
writing to it so that it is there.

Needs streams with `allow_direct` and nats-server 2.11 or later (batched direct get).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, BadRequestError, NotFoundError

__all__ = [
    "StoredMessage",
    "all_of",
    "count_of",
    "is_write_once_refusal",
    "last_of",
    "messages_of",
    "store",
]

_BATCH = 500
_TIMEOUT_S = 3.0
_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 1.0
_CATCH_UP_WAITS_S = (0.0, 0.02, 0.1, 0.3, 1.0, 3.0, 3.0)
# JSStreamWrongLastSequenceErrF and its variant without the sequence in the text.
_WRONG_LAST_SEQUENCE = (10071, 10164)


@dataclass(frozen=True, kw_only=True)
class StoredMessage:
    """One message of a stream. `stored_at` is seconds since the epoch."""

    subject: str
    sequence: int
    data: bytes
    headers: dict[str, str]
    stored_at: float = 0.0


async def count_of(js: JetStreamContext, stream: str, subject: str) -> int:
    """How many messages the stream holds of the subject. Capture of core publishes is
    asynchronous: right after a burst the number still grows for a moment."""
    info = await js.stream_info(stream, subjects_filter=subject)
    return (info.state.subjects or {}).get(subject, 0)


async def last_of(js: JetStreamContext, stream: str, subject: str) -> StoredMessage | None:
    """The last message of the subject, None where there is none; asked of the stream's leader,
    as a replica may be behind."""
    try:
        found = await js.get_msg(stream, subject=subject)
    except NotFoundError:
        return None
    return StoredMessage(
        subject=subject,
        sequence=found.seq or 0,
        data=found.data or b"",
        headers=dict(found.headers or {}),
    )


async def messages_of(
    nc: Client, stream: str, subject: str, *, start: int = 1
) -> AsyncIterator[StoredMessage]:
    """Every message of the subject from stream sequence `start`, in order; the subject may have
    wildcards. In a cluster the answer may come from a replica that is a moment behind.
    `nats.errors.TimeoutError` where the server stops answering."""
    sequence = start
    while True:
        batch = await _batch(nc, stream, subject, sequence)
        for message in batch:
            yield message
        if len(batch) < _BATCH:
            return
        sequence = batch[-1].sequence + 1


async def all_of(
    nc: Client, js: JetStreamContext, stream: str, subject: str
) -> list[StoredMessage]:
    """Every message of the subject, as many as the stream's leader has: waits for a leader, and
    for a replica that is behind it. `nats.errors.Error` where either takes too long."""
    problem: NatsError = NatsTimeout()
    for wait in _CATCH_UP_WAITS_S:
        await asyncio.sleep(wait)
        try:
            wanted = await count_of(js, stream, subject)
            reading = messages_of(nc, stream, subject)
            found = [message async for message in reading] if wanted else []
        except NatsError as error:
            problem = error
            continue
        if len(found) >= wanted:
            return found
    raise problem


async def _batch(nc: Client, stream: str, subject: str, start: int) -> list[StoredMessage]:
    inbox = nc.new_inbox()
    found: list[StoredMessage] = []
    ended = asyncio.Event()
    failed: list[str] = []

    async def take(message: Msg) -> None:
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None:
            found.append(_lift(message, headers))
        else:
            # 204: end of batch; 404: nothing of that subject from there on.
            if status not in ("204", "404"):
                failed.append(status)
            ended.set()

    subscription = await nc.subscribe(inbox, cb=take, pending_bytes_limit=0)
    try:
        ask = {"seq": max(1, start), "next_by_subj": subject, "batch": _BATCH}
        await nc.publish(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(ask), reply=inbox)
        await asyncio.wait_for(ended.wait(), _TIMEOUT_S)
    except TimeoutError:
        raise NatsTimeout from None
    finally:
        await subscription.unsubscribe()
    if failed:
        code = int(failed[0])
        raise APIError(code=code, description=f"reading {stream} failed with status {code}")
    return found


def _lift(message: Msg, headers: dict[str, str]) -> StoredMessage:
    return StoredMessage(
        subject=headers.get("Nats-Subject", ""),
        sequence=int(headers.get("Nats-Sequence", "0")),
        data=message.data,
        headers=headers,
        stored_at=_moment(headers.get("Nats-Time-Stamp", "")),
    )


def _moment(text: str) -> float:
    """RFC 3339 with up to nine digits of a second, as the server writes it."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


async def store(
    js: JetStreamContext,
    subject: str,
    data: bytes,
    *,
    headers: dict[str, str],
    patience_s: float,
) -> PubAck:
    """Publish with an ack, again and again until it is there or `patience_s` seconds are over.

    A publish that timed out may have been stored: `headers` must make doubles impossible or
    harmless. Errors that another try cannot change (`APIError` with code 400) are raised at
    once, everything else (`nats.errors.Error`) when the patience is over.
    """
    end = time.monotonic() + patience_s
    wait = _RETRY_FIRST_S
    while True:
        try:
            # nats-py changes the mapping it is given.
            return await js.publish(subject, data, timeout=_TIMEOUT_S, headers=dict(headers))
        except BadRequestError:
            raise
        except NatsError:
            if time.monotonic() + wait > end:
                raise
        await asyncio.sleep(wait)
        wait = min(wait * 2, _RETRY_MOST_S)


def is_write_once_refusal(error: APIError) -> bool:
    """Whether a publish with `Nats-Expected-Last-Subject-Sequence` came too late."""
    return error.err_code in _WRONG_LAST_SEQUENCE
