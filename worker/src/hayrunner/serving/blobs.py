"""Stand-in until the real one is merged."""

from nats.js.api import ObjectStoreConfig
from nats.js.errors import NotFoundError
from nats.js.object_store import ObjectStore

from hayrunner.serving.bus import Bus
from hayrunner_contracts.errors import StorageFailed

__all__ = ["Blobs"]


class Blobs:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def _store(self) -> ObjectStore:
        try:
            return await self._bus.js.object_store("RUN_BLOBS")
        except NotFoundError:
            return await self._bus.js.create_object_store("RUN_BLOBS", ObjectStoreConfig())

    async def put(self, name: str, data: bytes, *, patience_s: float) -> object:
        return await (await self._store()).put(name, data)

    async def get(self, name: str) -> bytes:
        try:
            found = await (await self._store()).get(name)
        except NotFoundError:
            raise StorageFailed("gone") from None
        return found.data or b""

    async def delete(self, name: str) -> None:
        await (await self._store()).delete(name)
