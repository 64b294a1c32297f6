"""Content too large for one message, in the object store `RUN_BLOBS`: put, get, delete by name.

Also for whoever keeps something large of a run (names: `subjects.blob_name`). Everything in it
goes by age, as results do.
"""

from collections.abc import Mapping

from hayrunner.serving.bus import Bus
from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.errors import InvalidRequest, StorageFailed
from hayrunner_contracts.references import BlobReference, new_blob_name, reference_of

__all__ = ["Blobs"]

MAX_BLOB_BYTES = 32 * 1024 * 1024


class Blobs:
    """The objects of a worker's runs. `max_bytes` is what one may have.

    `nats.errors.Error` from any of these: NATS or JetStream is away, or refuses; try again later.
    """

    def __init__(self, bus: Bus, *, max_bytes: int = MAX_BLOB_BYTES) -> None:
        self.max_bytes = max_bytes
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

    async def get(self, name: str, *, digest: str | None = None) -> bytes:
        """The content of an object. `StorageFailed` where it is missing or not what the digest
        says, `PayloadTooLarge` where it is larger than `max_bytes`."""
        return await self._store.get(name, digest=digest, max_bytes=self.max_bytes)

    async def delete(self, name: str) -> None:
        """Forget an object; nothing happens where there is none."""
        await self._store.delete(name)

    async def request(self, data: bytes, headers: Mapping[str, str] | None) -> bytes:
        """A request's bytes: those of its message, or those that its headers refer to.

        `InvalidRequest` where the reference is broken or leads nowhere, `PayloadTooLarge` where
        it leads to more than a request may have.
        """
        reference = reference_of(headers, namespace=self._bus.namespace)
        if reference is None:
            return data
        try:
            return await self.get(reference.name, digest=reference.digest)
        except StorageFailed as error:
            raise InvalidRequest(f"request: {error.message}") from None
