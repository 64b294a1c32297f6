"""Threads on JetStream: read without a consumer, changed by compare-and-set. Needs nats-py.

Every change is one message on the thread's subject, published with the sequence of the last
record that its writer has seen. Who was second is refused by the stream, reads what was written
meanwhile, and decides anew. A publish whose answer was lost is found by its `Nats-Msg-Id` among
what is stored, so it counts once, however much later that is: the stream's own duplicate window
is two minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import nats.errors
import nats.js.errors
from msgspec.structs import replace
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy, PubAck

from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import InvalidRequest, PayloadTooLarge, StorageFailed
from hayrunner_contracts.headers import EXPECTED_LAST_SUBJECT_SEQUENCE, MSG_ID, THREAD_STATE
from hayrunner_contracts.references import new_blob_name, reference_of
from hayrunner_contracts.replay import JETSTREAM_API, NotProvisioned, Stored, StoredSubject
from hayrunner_contracts.subjects import THREAD_BLOBS_BUCKET, THREADS, all_threads, thread
from hayrunner_contracts.thread_log import ThreadLog, now, read_state, written_state
from hayrunner_contracts.threads import ThreadInfo, ThreadMessages, ThreadRecord

__all__ = ["JetStreamThreadStore"]

# Bytes of `max_payload` left for headers: the state's own, with its title, and nats-py's.
_HEADROOM = 4_096
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""Of what one run adds, which may be kept elsewhere; a message has the server's limit."""
_ACK_TIMEOUT_S = 3.0
_LIST_TIMEOUT_S = 5.0
_PAUSE_FIRST_S = 0.02
_PAUSE_MOST_S = 0.5
_REPLICA_PAUSES_S = (0.0, 0.01, 0.05, 0.2)

_WRONG_LAST_SEQUENCE = (10071, 10164)
_MESSAGE_TOO_LARGE = 10054


class JetStreamThreadStore:
    """The threads of one namespace; a `ThreadStore`.

    While the server is away it goes on trying until it is cancelled. `NotProvisioned` where the
    stream does not exist, `StorageFailed` where it does not take the record, `PayloadTooLarge`
    before one is sent that is too large. What one run adds may be larger than a message: then it
    is an object in the bucket `THREAD_BLOBS`, and the record in the stream refers to it.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        *,
        api: str = JETSTREAM_API,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._connection = connection
        self._max_record_bytes = max_record_bytes
        self._namespace = namespace
        self._api = api
        self._jetstream = connection.jetstream(prefix=api)
        self._blobs = BlobStore(connection, bucket=THREAD_BLOBS_BUCKET, api=api)

    async def read(self, thread_id: str) -> ThreadLog:
        """The whole thread."""
        log = ThreadLog(thread_id)
        await self._catch_up(log)
        return log

    async def change(
        self,
        thread_id: str,
        decide: Callable[[ThreadLog], ThreadRecord | None],
        *,
        record_id: str,
        log: ThreadLog | None = None,
    ) -> ThreadLog:
        """See `ThreadStore`. `record_id` makes the change one, however often it is sent."""
        log = await self.read(thread_id) if log is None else log
        subject = thread(self._namespace, thread_id)
        identity = f"{self._namespace}.{thread_id}.{record_id}"
        while not log.has_record(identity):
            record = decide(log)
            if record is None:
                break
            data = encode(record)
            headers = {
                MSG_ID: identity,
                EXPECTED_LAST_SUBJECT_SEQUENCE: str(log.last_sequence),
                THREAD_STATE: written_state(log.state_after(record)),
            }
            body, more = await self._carried(log.thread_id, record, data)
            ack = await self._publish(subject, body, headers | more)
            if ack is not None and not ack.duplicate:
                log.take(data, sequence=ack.seq, headers=headers)
                break
            await self._catch_up(log)
            if ack is not None:
                break
        return log

    async def infos(self) -> list[ThreadInfo]:
        """See `ThreadStore`. Reads one header per thread."""
        while True:
            found: dict[str, ThreadInfo] = {}
            try:
                async for message in self._last_headers():
                    info = _info(message)
                    found[info.thread_id] = info
                return list(found.values())
            except nats.js.errors.NotFoundError:
                raise _not_provisioned() from None
            except nats.errors.ConnectionClosedError:
                raise _closed() from None
            except nats.errors.Error:
                # Policy: as in `_catch_up`.
                await asyncio.sleep(_PAUSE_MOST_S)

    async def _last_headers(self) -> AsyncIterator[Msg]:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, headers_only=True)
        subscription = await self._jetstream.subscribe(
            all_threads(self._namespace), stream=THREADS, ordered_consumer=True, config=config
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

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> PubAck | None:
        """None where it is not known to be stored: somebody else was faster, or no answer came."""
        try:
            return await self._jetstream.publish(
                subject, data, timeout=_ACK_TIMEOUT_S, headers=dict(headers)
            )
        except nats.js.errors.APIError as error:
            if error.err_code in _WRONG_LAST_SEQUENCE:
                return None
            if error.err_code == _MESSAGE_TOO_LARGE:
                raise PayloadTooLarge("larger than the stream takes") from error
            raise StorageFailed(
                f"the stream {THREADS} refused it (JetStream error {error.err_code})"
            ) from error
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
            raise _closed() from None
        except (nats.errors.Error, nats.js.errors.Error):
            await asyncio.sleep(_PAUSE_FIRST_S)
            return None

    async def _carried(
        self, thread_id: str, record: ThreadRecord, data: bytes
    ) -> tuple[bytes, dict[str, str]]:
        """The body and the headers of a record's message: its own, or a stub's where the record
        is too large and was stored elsewhere."""
        limit = self._connection.max_payload - _HEADROOM
        if len(data) <= limit:
            return data, {}
        if isinstance(record, ThreadMessages):
            limit = self._max_record_bytes
        if len(data) > limit or not isinstance(record, ThreadMessages):
            raise PayloadTooLarge(
                f"the record has {len(data)} bytes; a thread takes up to {limit} at once"
            )
        name = new_blob_name(self._namespace, thread_id, "messages")
        while True:
            try:
                reference = await self._blobs.put(name, data)
                break
            except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
                raise _closed() from None
            except nats.js.errors.APIError as error:
                raise StorageFailed(
                    f"the bucket {THREAD_BLOBS_BUCKET} refused it (JetStream error"
                    f" {error.err_code})"
                ) from error
            except (nats.errors.Error, nats.js.errors.Error):
                # Policy: as in `_catch_up`.
                await asyncio.sleep(_PAUSE_MOST_S)
        return encode(replace(record, messages=[])), reference.headers

    async def _whole(self, message: Stored) -> bytes:
        """A record's bytes, wherever they are."""
        try:
            reference = reference_of(message.headers, namespace=self._namespace)
        except InvalidRequest as error:
            raise StorageFailed(f"record {message.sequence}: {error}", retryable=False) from None
        if reference is None:
            return message.data
        return await self._blobs.get(
            reference.name, digest=reference.digest, max_bytes=self._max_record_bytes
        )

    async def _catch_up(self, log: ThreadLog) -> None:
        """Read what was written since, up to what the stream's leader has."""
        subject = thread(self._namespace, log.thread_id)
        stored = StoredSubject(self._connection, THREADS, subject, api=self._api)
        pause = _PAUSE_FIRST_S
        while True:
            try:
                if await self._read_up_to(await stored.last_sequence(), stored, log):
                    return
            except nats.errors.ConnectionClosedError:
                raise _closed() from None
            except nats.errors.Error:
                # Policy: the server is away or JetStream is coming back; the caller's time limits.
                pass
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MOST_S)

    async def _read_up_to(self, last: int, stored: StoredSubject, log: ThreadLog) -> bool:
        """Whether `log` has everything up to the sequence `last`; a replica that is behind gets a
        moment."""
        for pause in _REPLICA_PAUSES_S:
            await asyncio.sleep(pause)
            more = True
            while more and log.last_sequence < last:
                batch, more = await stored.after(log.last_sequence)
                for message in batch:
                    log.take(
                        await self._whole(message),
                        sequence=message.sequence,
                        headers=message.headers,
                    )
            if log.last_sequence >= last:
                return True
        return False


def _info(message: Msg) -> ThreadInfo:
    thread_id = message.subject.rpartition(".")[2]
    state = read_state((message.headers or {}).get(THREAD_STATE))
    if state is None:
        # Written by somebody who does not know of the header: it is there, and that is all.
        return ThreadInfo(thread_id=thread_id, created_at=now(), updated_at=now())
    return ThreadInfo(
        thread_id=thread_id, **{name: getattr(state, name) for name in state.__struct_fields__}
    )


def _closed() -> ConnectionError:
    return ConnectionError("the connection to NATS is closed")


def _not_provisioned() -> NotProvisioned:
    return NotProvisioned(
        f"the server has no stream {THREADS}: run `hayrunner init` or start a worker"
    )
