"""What messages refer to: the content of events and results, fetched. Needs nats-py."""

import asyncio
from collections.abc import Mapping

import nats.errors
from msgspec.structs import replace
from nats.aio.client import Client as Connection

from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.codec import decode_event, decode_result
from hayrunner_contracts.errors import (
    ClientTimeout,
    ContractError,
    InvalidRequest,
    PayloadTooLarge,
    StorageFailed,
)
from hayrunner_contracts.events import UnknownEvent
from hayrunner_contracts.following import Event
from hayrunner_contracts.headers import BLOB
from hayrunner_contracts.references import reference_of
from hayrunner_contracts.replay import JETSTREAM_API
from hayrunner_contracts.results import RunResult

__all__ = ["MAX_READ_BYTES", "Contents", "EventContents"]

MAX_READ_BYTES = 64 * 1024 * 1024

_PAUSE_FIRST_S = 0.02
_PAUSE_MOST_S = 0.5


class Contents:
    """Reads what messages of one namespace refer to; an object of more than `max_bytes` is not.

    While the server is away it goes on trying for as long as it is told: `ClientTimeout` after
    that, `ConnectionError` where the connection is closed. `StorageFailed`, not to be tried again,
    where a reference is broken, leads nowhere, or to something else than was referred to.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        *,
        api: str = JETSTREAM_API,
        max_bytes: int = MAX_READ_BYTES,
    ) -> None:
        self._store = BlobStore(connection, api=api)
        self._namespace = namespace
        self._max_bytes = max_bytes

    async def event(self, stub: Event, headers: Mapping[str, str], timeout: float) -> Event:
        """The whole event."""
        what = f"event {stub.seq}"
        data = await self._read(what, headers, timeout)
        try:
            event = decode_event(data)
        except ContractError:
            raise _failed(what, "is no event") from None
        if _type_of(event) != _type_of(stub):
            raise _failed(what, "is another event's")
        if event.seq != stub.seq:
            # Told anew after an earlier attempt had spoken under its number.
            return replace(event, seq=stub.seq)
        return event

    async def result(
        self, data: bytes, headers: Mapping[str, str] | None, timeout: float
    ) -> RunResult:
        """The result in a message, or the one that the message refers to."""
        stub = decode_result(data)
        if headers is None or BLOB not in headers:
            return stub
        try:
            whole = decode_result(await self._read("the result", headers, timeout))
        except ContractError:
            raise _failed("the result", "is no result") from None
        if whole.message_id != stub.message_id:
            raise _failed("the result", "is another run's")
        return whole

    async def _read(self, what: str, headers: Mapping[str, str], timeout: float) -> bytes:
        try:
            reference = reference_of(headers, namespace=self._namespace)
            assert reference is not None  # asked for only where the header is there
            async with asyncio.timeout(timeout):
                return await self._get(reference.name, reference.digest)
        except TimeoutError:
            raise ClientTimeout(f"{what} was not read within {timeout:g} s") from None
        except nats.errors.ConnectionClosedError:
            raise ConnectionError("the connection to NATS is closed") from None
        except (InvalidRequest, PayloadTooLarge, StorageFailed) as error:
            raise _failed(what, f"cannot be read: {error.message}") from None

    async def _get(self, name: str, digest: str) -> bytes:
        pause = _PAUSE_FIRST_S
        while True:
            try:
                return await self._store.get(name, digest=digest, max_bytes=self._max_bytes)
            except nats.errors.ConnectionClosedError:
                raise
            except nats.errors.Error:
                # Policy: the server is away or JetStream is coming back; the caller's time limits.
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MOST_S)


class EventContents:
    """The events of one run that have their content elsewhere. What is noted when an event comes,
    in whatever order, is fetched when its turn has come, and once."""

    __slots__ = ("_contents", "_noted")

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._noted: dict[int, Mapping[str, str]] = {}

    def note(self, event: Event, headers: Mapping[str, str] | None, *, after: int) -> None:
        """An event came, with these headers. What came up to sequence `after` had its turn."""
        if headers is not None and BLOB in headers:
            if event.seq > after:
                self._noted[event.seq] = headers
        elif self._noted:
            self._noted.pop(event.seq, None)

    async def whole(self, event: Event, timeout: float) -> Event:
        """The event whose turn it is; raises as `Contents`."""
        if not self._noted or (headers := self._noted.pop(event.seq, None)) is None:
            return event
        return await self._contents.event(event, headers, timeout)


def _type_of(event: Event) -> str:
    if isinstance(event, UnknownEvent):
        return event.type
    return str(event.__struct_config__.tag)


def _failed(what: str, why: str) -> StorageFailed:
    return StorageFailed(f"the content of {what} {why}", retryable=False)
