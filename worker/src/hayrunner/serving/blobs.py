"""Content too large for one message, in the object store `RUN_BLOBS`: put, get, delete by name.

Also for whoever keeps something large of a run (names: `subjects.blob_name`). Everything in it
goes by age, as results do.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace
from nats.errors import Error as NatsError

from hayrunner.serving.bus import Bus
from hayrunner.serving.connection import Link
from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.codec import RequestLimits, decode_request, peek_message_id
from hayrunner_contracts.errors import InvalidRequest, StorageFailed
from hayrunner_contracts.headers import BLOB
from hayrunner_contracts.references import BlobReference, new_blob_name, reference_of
from hayrunner_contracts.requests import RunRequest

__all__ = ["PATIENCE_S", "PAUSE_S", "Blobs", "RunBlobs"]

PATIENCE_S = 120.0
"""How long something is put while NATS is there and its object store takes nothing."""
PAUSE_S = 1.0
"""Between two tries."""
_ANY_SIZE = 2**31


class Blobs:
    """The objects of a worker's runs. `max_bytes` is what a message that goes by one may have.

    `nats.errors.Error` from any of these: NATS or JetStream is away, or refuses; try again later.
    """

    def __init__(self, bus: Bus) -> None:
        self.max_bytes = bus.max_blob_bytes
        self._bus = bus
        self._store = BlobStore(bus.nc)

    async def put(self, name: str, data: bytes, *, patience_s: float) -> BlobReference:
        """Store `data`, tried for `patience_s` seconds; an object of that name is replaced. The
        size is not looked at."""
        return await self._store.put(name, data, patience_s=patience_s)

    async def put_new(
        self, message_id: str, what: str, data: bytes, *, patience_s: float
    ) -> BlobReference:
        """Store `data` under a name that no attempt of the run has used."""
        name = new_blob_name(self._bus.namespace, message_id, what)
        return await self.put(name, data, patience_s=patience_s)

    def of(self, message_id: str) -> "RunBlobs":
        """Those of one run."""
        return RunBlobs(self, self._bus.link, message_id)

    async def get(
        self, name: str, *, digest: str | None = None, max_bytes: int = _ANY_SIZE
    ) -> bytes:
        """The content of an object. `StorageFailed` where it is missing or not what the digest
        says, `PayloadTooLarge` where it is larger than `max_bytes`."""
        return await self._store.get(name, digest=digest, max_bytes=max_bytes)

    async def renew(self, name: str) -> None:
        """Keep an object for as long again, from now on; raises as `get`."""
        await self.put(name, await self.get(name), patience_s=0)

    async def delete(self, name: str) -> None:
        """Forget an object; nothing happens where there is none."""
        await self._store.delete(name)

    async def decode_request(
        self, data: bytes, headers: Mapping[str, str] | None, *, limits: RequestLimits
    ) -> RunRequest:
        """The request in a message, or in the object that its headers refer to, which may have
        `max_bytes` instead of the limits' own.

        Raises as `codec.decode_request`; `InvalidRequest` too where the reference is broken or
        leads nowhere, or to a request with another id than its message has.
        """
        reference = reference_of(headers, namespace=self._bus.namespace)
        if reference is None:
            return decode_request(data, limits=limits)
        try:
            content = await self.get(
                reference.name, digest=reference.digest, max_bytes=self.max_bytes
            )
        except StorageFailed as error:
            raise InvalidRequest(f"request: {error.message}", field=BLOB) from None
        decode = partial(decode_request, limits=replace(limits, max_bytes=self.max_bytes))
        # Seconds, for the worst that fits: the other runs go on meanwhile.
        request = await asyncio.to_thread(decode, content)
        message_id = peek_message_id(data)
        if request.message_id is None:
            # A parked run's copy of a request whose id came from its place in the queue.
            return replace(request, message_id=message_id)
        if request.message_id != message_id:
            raise InvalidRequest(
                "message_id: must be the same in the message and in what it refers to",
                field="message_id",
            )
        return request


class RunBlobs:
    """Where the content of one run's events and result goes that no message can carry."""

    def __init__(self, blobs: Blobs, link: Link, message_id: str) -> None:
        self.max_bytes = blobs.max_bytes
        self._blobs = blobs
        self._link = link
        self._message_id = message_id

    async def put(self, what: str, data: bytes) -> BlobReference:
        """One try, under a name of its own; `nats.errors.Error` where it fails."""
        return await self._blobs.put_new(self._message_id, what, data, patience_s=0)

    async def put_at_last(self, what: str, data: bytes, *, patience_s: float) -> BlobReference:
        """As often as it takes, for `patience_s` seconds; `nats.errors.Error` after them. Where
        NATS was there all the time, no longer than `PATIENCE_S`: then it is `StorageFailed`."""
        now = time.monotonic()
        end, gives_up = now + patience_s, now + min(patience_s, PATIENCE_S)
        while True:
            try:
                return await self.put(what, data)
            except NatsError as error:
                now = time.monotonic()
                if not self._link.up:
                    gives_up = now + PATIENCE_S
                if now > gives_up:
                    raise StorageFailed("the object store does not take it") from error
                if now > end:
                    raise
            await asyncio.sleep(PAUSE_S)
