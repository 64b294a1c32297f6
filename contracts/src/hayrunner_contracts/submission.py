"""Handing something in durably: requests and commands, acknowledged, each once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from uuid import uuid4

import nats.errors
import nats.js.errors
from nats.aio.client import Client as Connection
from nats.js.api import PubAck

from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.codec import RequestLimits, encode
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.contents import MAX_READ_BYTES
from hayrunner_contracts.errors import (
    ClientTimeout,
    InternalError,
    Overloaded,
    PayloadTooLarge,
    UnknownAgent,
)
from hayrunner_contracts.headers import MSG_ID
from hayrunner_contracts.reconnects import unless_reconnected
from hayrunner_contracts.references import BlobReference, new_blob_name, request_stub
from hayrunner_contracts.replay import JETSTREAM_API, NotProvisioned
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.subjects import (
    AGENT_REQUESTS,
    RUN_BLOBS_BUCKET,
    RUN_COMMANDS,
    commands,
    consumer_name,
    requests,
)
from hayrunner_contracts.tracing import NoTracing, RequestTracing

__all__ = ["HEADROOM", "Submission"]

HEADROOM = 4096
"""Bytes of the server's `max_payload` left for headers: the requester's, and those a dead letter
adds. nats-py checks the body alone, and a server that gets more closes the connection for good."""

T = TypeVar("T")

BLOBS_STREAM = f"OBJ_{RUN_BLOBS_BUCKET}"

_KNOWN_FOR_S = 60.0
_NOT_ALLOWED_FOR_S = 600.0
_ACK_TIMEOUT_S = 5.0
_CONSUMER_TIMEOUT_S = 1.0
_RETRY_PAUSE_S = 0.25

_STREAM_NOT_FOUND = 10059
_MESSAGE_TOO_LARGE = 10054
# A stream at its limit that discards new messages answers "store failed" (10077) with code 503.
_UNAVAILABLE = 503
# A cluster between two leaders, a stream that is being recovered, an earlier try of this very
# message on its way between the servers: over in a moment.
_IN_TRANSITION = (10008, 10118, 10158)


class Submission:
    """Publishes requests and commands into their streams.

    A publish without an acknowledgement may have been stored, so it is repeated with the same
    `Nats-Msg-Id`, which the stream drops if it was.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        *,
        api: str = JETSTREAM_API,
        max_bytes: int = MAX_READ_BYTES,
        tracing: RequestTracing | None = None,
    ) -> None:
        self.tracing: RequestTracing = tracing or NoTracing()
        self._connection = connection
        self._blobs = BlobStore(connection, api=api)
        self._max_bytes = max_bytes
        self._namespace = namespace
        self._jetstream = connection.jetstream(prefix=api)
        self._known: dict[str, float] = {}
        self._may_ask_at = 0.0

    async def check_agent(self, agent: str) -> None:
        """`UnknownAgent` if no worker ever served the agent: then its requests have no consumer.

        Asked before publishing, because what is published for nobody stays in the queue. Where the
        client may not ask (a server leaves that unanswered), the agent is taken to exist, and the
        server is not asked again for ten minutes. An agent once seen is not asked for for one.
        """
        name = consumer_name(self._namespace, agent)
        now = asyncio.get_running_loop().time()
        if max(self._known.get(agent, 0.0), self._may_ask_at) > now:
            return
        try:
            await self._jetstream.consumer_info(AGENT_REQUESTS, name, timeout=_CONSUMER_TIMEOUT_S)
        except nats.js.errors.NotFoundError as error:
            if error.err_code == _STREAM_NOT_FOUND:
                raise self._not_provisioned(AGENT_REQUESTS) from None
            raise UnknownAgent(
                f"no worker ever served agent {agent!r} in namespace {self._namespace!r}"
            ) from None
        except nats.errors.ConnectionClosedError:
            raise ConnectionError("the connection to NATS is closed") from None
        except nats.errors.TimeoutError:
            if self._connection.is_connected:
                self._may_ask_at = now + _NOT_ALLOWED_FOR_S
        except nats.errors.Error:
            pass  # the server is away: the publish will tell
        else:
            self._known[agent] = now + _KNOWN_FOR_S

    async def request(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> PubAck:
        """Queue a request; its message id makes it one however often it is sent."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        subject = requests(self._namespace, agent)
        body, headers = await self.carried(agent, request, headers, timeout)
        await self.check_agent(agent)
        with self.tracing.sending(subject, request.message_id, len(body)) as carried:
            # A context that the caller sends along is the one that counts.
            identified = {**carried, **headers, MSG_ID: request.message_id or ""}
            left = end - loop.time()
            return await self._publish(AGENT_REQUESTS, subject, body, identified, left)

    async def carried(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> tuple[bytes, Mapping[str, str]]:
        """The body and the headers of the message that brings a request. What is too large for
        one is stored first, and the message refers to it."""
        body = encode(request)
        size = len(body)
        if size <= RequestLimits().max_bytes and self._fits(body, headers):
            return body, headers
        if size > self._max_bytes:
            most = self._max_bytes
            raise PayloadTooLarge(f"the request has {size} bytes; at most {most} are sent")
        stub = request_stub(request.message_id)
        self.check_size(stub, headers)
        # Before anything is stored for nobody.
        await self.check_agent(agent)
        name = new_blob_name(self._namespace, request.message_id or "", "request")

        async def put(left: float) -> BlobReference:
            async with asyncio.timeout(left):
                return await self._blobs.put(name, body)

        reference = await self._stored(BLOBS_STREAM, put, timeout)
        return stub, {**headers, **reference.headers}

    async def again(
        self, agent: str, body: bytes, headers: Mapping[str, str], message_id: str, timeout: float
    ) -> PubAck:
        """Queue a request that was read elsewhere, as it is, once per message id."""
        self.check_size(body, headers)
        await self.check_agent(agent)
        subject = requests(self._namespace, agent)
        identified = {**headers, MSG_ID: message_id}
        return await self._publish(AGENT_REQUESTS, subject, body, identified, timeout)

    async def command(self, message_id: str, command: RunCommand, timeout: float) -> None:
        """Store a command for a run."""
        subject = commands(self._namespace, message_id)
        body = encode(command)
        self.check_size(body, {})
        await self._publish(RUN_COMMANDS, subject, body, {MSG_ID: str(uuid4())}, timeout)

    def check_size(self, body: bytes, headers: Mapping[str, str]) -> None:
        """`PayloadTooLarge` for what the server, or a dead letter, could not carry."""
        if not self._fits(body, headers):
            limit = self._connection.max_payload - HEADROOM
            raise PayloadTooLarge(f"{_size(body, headers)} bytes; this server takes up to {limit}")

    def _fits(self, body: bytes, headers: Mapping[str, str]) -> bool:
        return _size(body, headers) <= self._connection.max_payload - HEADROOM

    async def _publish(
        self, stream: str, subject: str, body: bytes, headers: dict[str, str], timeout: float
    ) -> PubAck:
        async def publish(left: float) -> PubAck:
            return await self._jetstream.publish(
                subject, body, timeout=min(left, _ACK_TIMEOUT_S), headers=headers
            )

        return await self._stored(stream, publish, timeout)

    async def _stored(
        self, stream: str, attempt: Callable[[float], Awaitable[T]], timeout: float
    ) -> T:
        """What `attempt` gives, tried again until the time is over. It is told what is left."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        why = "no acknowledgement"
        while (left := end - loop.time()) > 0:
            try:
                return await unless_reconnected(self._connection, attempt(left))
            except nats.js.errors.NoStreamResponseError:
                # Nobody takes the subject: no such stream, or one that is just coming back.
                await self._check_stream(stream)
                why = "nothing answers; is JetStream enabled?"
            except nats.js.errors.APIError as error:
                if error.err_code not in _IN_TRANSITION:
                    raise _refusal(error) from error
                why = "JetStream is not available just now"
            except (
                nats.errors.ConnectionClosedError,
                nats.errors.ConnectionDrainingError,
            ) as error:
                raise ConnectionError("the connection to NATS is closed") from error
            except (TimeoutError, nats.errors.OutboundBufferLimitError):
                pass  # it may have been stored: again with the same id
            await asyncio.sleep(min(_RETRY_PAUSE_S, max(0.0, end - loop.time())))
        raise ClientTimeout(
            f"not known to be stored in {stream} within {timeout:g} s: {why}; it may still be"
        )

    async def _check_stream(self, stream: str) -> None:
        try:
            await self._jetstream.stream_info(stream)
        except nats.js.errors.NotFoundError:
            raise self._not_provisioned(stream) from None
        except nats.errors.Error:
            pass  # not allowed to ask, or JetStream is coming back

    @staticmethod
    def _not_provisioned(stream: str) -> NotProvisioned:
        return NotProvisioned(
            f"the server has no stream {stream}: run `hayrunner init` or start a worker"
        )


def _size(body: bytes, headers: Mapping[str, str]) -> int:
    return len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items())


def _refusal(error: nats.js.errors.APIError) -> Exception:
    if error.err_code == _MESSAGE_TOO_LARGE:
        return PayloadTooLarge("larger than the stream takes")
    if error.code == _UNAVAILABLE:
        # The server's own words are the only sign of which limit it is.
        if "per subject" in (error.description or ""):
            return Overloaded("the agent's queue is at its limit")
        return Overloaded("the queue of all agents is at its limit, or has no room to store")
    return InternalError(f"the stream refused it (JetStream error {error.err_code})")
