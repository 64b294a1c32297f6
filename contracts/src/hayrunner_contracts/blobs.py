"""Content too large for one message, kept as objects of a NATS object store. Needs nats-py.

Written and read by the rules that every NATS client has for object stores (ADR-20), so that the
object store of any of them can be used instead. Not nats-py's own: that one waits for ever for a
chunk that is not there, needs a consumer to read, and makes chunks that a server with a small
`max_payload` refuses.
"""

import asyncio
import base64
import secrets
import time
from datetime import UTC, datetime

import msgspec
import nats.errors
from nats.aio.client import Client as Connection

from hayrunner_contracts.errors import InvalidRequest, PayloadTooLarge, StorageFailed
from hayrunner_contracts.references import BlobReference, digest_of
from hayrunner_contracts.replay import JETSTREAM_API, NotProvisioned, StoredSubject
from hayrunner_contracts.subjects import RUN_BLOBS_BUCKET, token

__all__ = ["BlobStore"]

_CHUNK_BYTES = 128 * 1024
_CHUNK_HEADROOM = 512
_ACK_TIMEOUT_S = 5.0
_PURGE_TIMEOUT_S = 5.0
_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 1.0
_REPLICA_PAUSES_S = (0.0, 0.02, 0.1, 0.5, 1.0)
# Past this, hashing would keep the event loop from its work for milliseconds.
_HASHED_AT_ONCE = 1024 * 1024


class _Info(msgspec.Struct, kw_only=True, frozen=True):
    """The metadata of an object, as every NATS client writes it."""

    name: str
    bucket: str
    nuid: str
    size: int = 0
    chunks: int = 0
    digest: str = ""
    mtime: str = ""
    deleted: bool = False


_INFOS = msgspec.json.Decoder(_Info)


class BlobStore:
    """The objects of one bucket.

    Errors of the connection and of JetStream come through as they are (`nats.errors.Error`): who
    calls tries again. What trying again cannot change is `StorageFailed` with `retryable` False,
    or `PayloadTooLarge`.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        bucket: str = RUN_BLOBS_BUCKET,
        api: str = JETSTREAM_API,
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"
        self._api = api
        self._jetstream = connection.jetstream(prefix=api)

    async def put(self, name: str, data: bytes, *, patience_s: float = 0.0) -> BlobReference:
        """Store `data` under a name; stored when this returns.

        An object of that name is replaced, and what it was made of is left to the bucket's age
        limit. Tried for `patience_s` seconds, then the last `nats.errors.Error` is raised.
        """
        digest = await _digest(data)
        end = time.monotonic() + patience_s
        wait = _RETRY_FIRST_S
        while True:
            try:
                await self._put(name, data, digest)
                return BlobReference(name, digest)
            except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
                raise
            except nats.errors.Error:
                if time.monotonic() + wait > end:
                    raise
            await asyncio.sleep(wait)
            wait = min(wait * 2, _RETRY_MOST_S)

    async def _put(self, name: str, data: bytes, digest: str) -> None:
        # Every try writes to a subject of its own: a chunk whose ack was lost may be stored.
        nuid = secrets.token_hex(11)
        size = max(1, min(_CHUNK_BYTES, self._connection.max_payload - _CHUNK_HEADROOM))
        starts = range(0, len(data), size)
        for start in starts:
            await self._jetstream.publish(
                self._chunks(nuid), data[start : start + size], timeout=_ACK_TIMEOUT_S
            )
        info = _Info(
            name=name,
            bucket=self._bucket,
            nuid=nuid,
            size=len(data),
            chunks=len(starts),
            digest=digest,
            mtime=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        )
        await self._jetstream.publish(
            self._meta(name),
            msgspec.json.encode(info),
            timeout=_ACK_TIMEOUT_S,
            headers={"Nats-Rollup": "sub"},
        )

    async def get(self, name: str, *, digest: str | None = None, max_bytes: int) -> bytes:
        """The content of an object, with the digest that is asked for, or else its own.

        `StorageFailed` where there is no such object, or another one; `PayloadTooLarge` where it
        has more than `max_bytes`, of which then none is read.
        """
        info = await self._info(name)
        if info is None or info.deleted:
            raise _unreadable("is not there, or no longer")
        if info.size > max_bytes:
            raise PayloadTooLarge(
                f"the content has {info.size} bytes; at most {max_bytes} are read"
            )
        data = await self._read(info)
        if data is None:
            raise _unreadable("is not whole")
        if await _digest(data) != (digest or info.digest):
            raise _unreadable("has another digest than its message says")
        return data

    async def delete(self, name: str) -> None:
        """Forget an object; nothing happens where there is none."""
        info = await self._info(name)
        if info is None:
            return
        # In this order, one that is cut off leaves an object that is not there, not half of one.
        for subject in (self._meta(name), self._chunks(info.nuid)):
            await self._jetstream.purge_stream(self._stream, subject=subject)

    async def _info(self, name: str) -> _Info | None:
        stored = StoredSubject(self._connection, self._stream, self._meta(name), api=self._api)
        # A replica that answers a direct get may be behind; the leader is not.
        try:
            found = await stored.last() or await stored.newest()
        except NotProvisioned:
            raise _unreadable("is nowhere: the server has no such bucket") from None
        if found is None:
            return None
        try:
            info = _INFOS.decode(found.data)
            # It is part of subjects that are read and purged: no wildcard may get in there.
            token("nuid", info.nuid)
        except (msgspec.DecodeError, InvalidRequest):
            raise _unreadable("has no readable description") from None
        return info

    async def _read(self, info: _Info) -> bytes | None:
        """What the chunks add up to; None where that is not the object's size."""
        stored = StoredSubject(
            self._connection, self._stream, self._chunks(info.nuid), api=self._api
        )
        parts: list[bytes] = []
        size = sequence = 0
        for pause in _REPLICA_PAUSES_S:
            await asyncio.sleep(pause)
            more = True
            while more and size < info.size:
                batch, more = await stored.after(sequence)
                parts += [chunk.data for chunk in batch]
                size += sum(len(chunk.data) for chunk in batch)
                sequence = batch[-1].sequence if batch else sequence
            if size >= info.size:
                break
        return b"".join(parts) if size == info.size else None

    def _chunks(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"

    def _meta(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _unreadable(why: str) -> StorageFailed:
    return StorageFailed(f"content that was too large for a message {why}", retryable=False)


async def _digest(data: bytes) -> str:
    if len(data) <= _HASHED_AT_ONCE:
        return digest_of(data)
    return await asyncio.to_thread(digest_of, data)
