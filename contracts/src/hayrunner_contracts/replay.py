"""What JetStream has stored for a subject, read without a consumer.

Direct get, in batches: 5,000 events in about 0.1 s, against 0.16 s through an ordered consumer,
and nothing to create or to clean up. A stream without `allow_direct` is read one message at a
time; a server before 2.11 answers a batch with one message.
"""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg

from hayrunner_contracts.errors import UnknownAgent
from hayrunner_contracts.mailbox import Mailbox
from hayrunner_contracts.reconnects import CHECK_S, unless_reconnected

__all__ = ["JETSTREAM_API", "NotProvisioned", "Stored", "StoredSubject"]

JETSTREAM_API = "$JS.API"

_BATCH = 500
_BATCH_BYTES = 2 * 1024 * 1024
_TIMEOUT_S = 5.0

_SEQUENCE = "Nats-Sequence"
_PENDING = "Nats-Num-Pending"
_BEFORE = "Nats-Last-Sequence"
_STATUS = "Status"
_STREAM_NOT_FOUND = 10059
_NO_HEADERS: Mapping[str, str] = {}


class NotProvisioned(UnknownAgent):
    """The server has no such stream: nothing was ever set up there, so no agent was ever served.

    Run `hayrunner init`, or start a worker.
    """


class Stored(NamedTuple):
    """One stored message: its sequence number in the stream, its bytes, and its headers, which
    after a direct get have the server's own too."""

    sequence: int
    data: bytes
    headers: Mapping[str, str] = _NO_HEADERS


class StoredSubject:
    """The messages that a stream holds for one subject.

    Errors of the connection come through as they are (`nats.errors`): whoever reads tries again.
    A stream that does not exist raises `NotProvisioned`.
    """

    def __init__(
        self, connection: Connection, stream: str, subject: str, *, api: str = JETSTREAM_API
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._api = api

    async def last(self) -> Stored | None:
        """The last message, if there is any."""
        return await self._direct(f".{self._subject}", b"", {"last_by_subj": self._subject})

    async def first(self) -> Stored | None:
        """The first message that is still there, if there is any."""
        request = {"seq": 1, "next_by_subj": self._subject}
        return await self._direct("", msgspec.json.encode(request), request)

    async def _direct(self, suffix: str, body: bytes, otherwise: dict[str, Any]) -> Stored | None:
        try:
            reply = await self._request(f"DIRECT.GET.{self._stream}{suffix}", body)
        except nats.errors.NoRespondersError:
            return await self._get(otherwise)
        return _stored(reply.data, reply.headers or {})

    async def newest(self) -> Stored | None:
        """The last message, if there is any, asked of the stream's leader: what is read by a
        direct get may come from a replica that is behind it."""
        return await self._get({"last_by_subj": self._subject})

    async def last_sequence(self) -> int:
        """The sequence number of `newest`, 0 where there is none."""
        last = await self.newest()
        return 0 if last is None else last.sequence

    async def after(self, sequence: int) -> tuple[list[Stored], bool]:
        """The next messages after a sequence number of the stream (0: from the first), and
        whether there are more after those."""
        request = {"seq": sequence + 1, "next_by_subj": self._subject}
        body = msgspec.json.encode({**request, "batch": _BATCH, "max_bytes": _BATCH_BYTES})
        mailbox = Mailbox()
        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(inbox, cb=mailbox.deliver)
        try:
            await self._connection.publish(
                f"{self._api}.DIRECT.GET.{self._stream}", body, reply=inbox
            )
            return await self._collect(mailbox)
        except nats.errors.NoRespondersError:
            stored = await self._get(request)
            return ([stored], True) if stored else ([], False)
        finally:
            if not self._connection.is_closed:
                await subscription.unsubscribe()

    async def _collect(self, mailbox: Mailbox) -> tuple[list[Stored], bool]:
        """What came of a batch, without a hole: the rest of one that broke off is read next."""
        batch: list[Stored] = []
        reconnects = self._connection.stats["reconnects"]
        while True:
            message = await self._next(mailbox, reconnects)
            if message is None:
                if batch:
                    return batch, True
                raise nats.errors.TimeoutError
            headers = message.headers or {}
            stored = _stored(message.data, headers)
            if stored is None:
                return batch, int(headers.get(_PENDING, 0)) > 0
            # A server goes on with a batch after the client was away for a part of it.
            if int(headers.get(_BEFORE, 0)) not in (0, batch[-1].sequence if batch else 0):
                if batch:
                    return batch, True
                raise nats.errors.TimeoutError
            batch.append(stored)
            if _PENDING not in headers:
                return batch, True  # a server that knows no batches

    async def _next(self, mailbox: Mailbox, reconnects: int) -> Msg | None:
        for _ in range(int(_TIMEOUT_S / CHECK_S)):
            message = await mailbox.next(CHECK_S)
            if message is not None:
                return message
            if self._connection.stats["reconnects"] != reconnects or self._connection.is_closed:
                return None
        return None

    async def _request(self, name: str, body: bytes) -> Msg:
        return await unless_reconnected(
            self._connection,
            self._connection.request(f"{self._api}.{name}", body, timeout=_TIMEOUT_S),
        )

    async def _get(self, request: dict[str, Any]) -> Stored | None:
        """One message by the API that every stream has, direct get allowed or not."""
        reply = await self._request(f"STREAM.MSG.GET.{self._stream}", msgspec.json.encode(request))
        answer = msgspec.json.decode(reply.data)
        if (error := answer.get("error")) is not None:
            if error.get("err_code") == _STREAM_NOT_FOUND:
                raise NotProvisioned(
                    f"the server has no stream {self._stream}: run `hayrunner init` or start a"
                    " worker"
                )
            if error.get("code") == 404:
                return None
            raise nats.errors.Error(f"JetStream error {error.get('err_code')}")
        message = answer["message"]
        data = base64.b64decode(message.get("data", ""))
        return Stored(message["seq"], data, _read_headers(message.get("hdrs", "")))


def _stored(data: bytes, headers: Mapping[str, str]) -> Stored | None:
    status = headers.get(_STATUS)
    if status is None:
        return Stored(int(headers[_SEQUENCE]), data, headers)
    if status == "503":
        raise nats.errors.NoRespondersError
    if status in ("204", "404"):
        return None
    raise nats.errors.Error(f"JetStream answered a direct get with status {status}")


def _read_headers(encoded: str) -> Mapping[str, str]:
    """The headers of a message that came as JSON: a version line, then one line each."""
    _, *lines = base64.b64decode(encoded).decode(errors="replace").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}
