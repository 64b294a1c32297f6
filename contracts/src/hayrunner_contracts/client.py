"""The client on NATS. Needs the extra `client` (nats-py).

    async with await RunClient.connect("nats://localhost:4222") as client:
        async for event in client.stream("support", "Where is order 7?"):
            ...

What the calls promise is said on `AgentClient`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Self, Unpack
from weakref import WeakSet

import nats
import nats.errors
from msgspec import UNSET
from nats.aio.client import Client as Connection

from hayrunner_contracts.answers import ResponseFormat, answer_schema
from hayrunner_contracts.arguments import Prompt, RunArguments, compose_request
from hayrunner_contracts.asking import Asking
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.contents import Contents
from hayrunner_contracts.dead_letters import DeadLetters
from hayrunner_contracts.following import Event
from hayrunner_contracts.reading import EventReader, ReadSettings, ResultReader
from hayrunner_contracts.replay import NotProvisioned
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.runs import (
    ANSWER_TIMEOUT_S,
    COMMAND_TIMEOUT_S,
    EVENT_TIMEOUT_S,
    SUBMIT_TIMEOUT_S,
    AgentClient,
    Run,
)
from hayrunner_contracts.subjects import DEFAULT_NAMESPACE, token
from hayrunner_contracts.subjects import message_id as canonical_id
from hayrunner_contracts.submission import Submission
from hayrunner_contracts.thread_client import ThreadClient
from hayrunner_contracts.thread_store import JetStreamThreadStore
from hayrunner_contracts.tracing import RequestTracing

__all__ = ["AgentClient", "NotProvisioned", "ReadSettings", "Run", "RunClient"]

_log = logging.getLogger("hayrunner_contracts.client")

CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0
_CONNECTION_DEFAULTS: dict[str, Any] = {
    "name": "hayrunner-client",
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.5,
    # A server that is there and answers nothing is left after three of these.
    "ping_interval": 5,
    "max_outstanding_pings": 2,
    "flush_timeout": 2.0,
}


class RunClient(AgentClient):
    """Runs agents over NATS.

    `connection` stays open when the client closes, unless `connect` made it. `settings` say how
    runs are read. `tracing` makes a span of every request and sends its context along: an
    `OpenTelemetryTracing` of `hayrunner_contracts.otel`.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        settings: ReadSettings | None = None,
        tracing: RequestTracing | None = None,
    ) -> None:
        self._connection = connection
        self._namespace = token("namespace", namespace)
        self._settings = settings or ReadSettings()
        api, most = self._settings.api, self._settings.max_blob_bytes
        self._submission = Submission(
            connection, namespace, api=api, max_bytes=most, tracing=tracing
        )
        contents = Contents(connection, namespace, api=api, max_bytes=most)
        self._asking = Asking(connection, namespace, self._submission, contents)
        self._dead_letters = DeadLetters(
            connection, namespace, self._submission, api=self._settings.api
        )
        self._threads = ThreadClient(
            JetStreamThreadStore(connection, namespace, api=self._settings.api)
        )
        self._readers: WeakSet[EventReader | ResultReader] = WeakSet()
        self._owns_connection = False
        self._closed = False

    @classmethod
    async def connect(
        cls,
        url: str | list[str] = "nats://localhost:4222",
        namespace: str = DEFAULT_NAMESPACE,
        *,
        settings: ReadSettings | None = None,
        tracing: RequestTracing | None = None,
        timeout: float = CONNECT_TIMEOUT_S,
        **options: Any,
    ) -> Self:
        """Connect, and reconnect for as long as the client is open.

        `options` are those of `nats.connect`: `user`, `password`, `token`, `user_credentials`,
        `nkeys_seed`, `tls`, … `ConnectionError` if there is no connection within `timeout`
        seconds.
        """
        token("namespace", namespace)
        reconnected = _Callbacks(options.pop("reconnected_cb", None))
        options = {**_CONNECTION_DEFAULTS, "error_cb": _log_error, **options}
        try:
            async with asyncio.timeout(timeout):
                connection = await nats.connect(url, reconnected_cb=reconnected.call, **options)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise ConnectionError(
                f"no connection to NATS within {timeout:g} s ({type(error).__name__})"
            ) from error
        client = cls(connection, namespace=namespace, settings=settings, tracing=tracing)
        client._owns_connection = True
        reconnected.also = client._look_again
        return client

    @property
    def connection(self) -> Connection:
        """The connection underneath."""
        return self._connection

    @property
    def namespace(self) -> str:
        """The namespace of every run this client starts or reads."""
        return self._namespace

    @property
    def threads(self) -> ThreadClient:
        """The conversations of the namespace, read from and written to the stream itself."""
        return self._threads

    @property
    def dead_letters(self) -> DeadLetters:
        """The requests of the namespace that were given up on."""
        return self._dead_letters

    def _stream(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]:
        token("agent", agent)
        return self._started_events(agent, request, headers, timeout)

    async def _started_events(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(self._started_wire(agent, request, headers, timeout)) as reading:
            async for event, _ in reading:
                yield event

    async def _started_wire(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[tuple[Event, bytes], None]:
        await self._submission.check_agent(agent)
        async with self._event_reader(request.message_id or "") as reader:
            ack = await self._submission.request(
                agent, request, headers, min(timeout, SUBMIT_TIMEOUT_S)
            )
            if ack.duplicate:
                reader.catch_up()
            async with aclosing(reader.read_wire(timeout)) as reading:
                async for item in reading:
                    yield item

    async def stream_wire(
        self,
        agent: str,
        prompt: Prompt,
        *,
        response_format: ResponseFormat = UNSET,
        timeout: float = EVENT_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> AsyncGenerator[tuple[Event, bytes], None]:
        """`stream`, each event with the bytes that it was published as."""
        token("agent", agent)
        schema = answer_schema(response_format)
        request = compose_request(prompt, arguments, mode="stream", response_format=schema)
        headers = arguments.get("headers", {})
        async with aclosing(self._started_wire(agent, request, headers, timeout)) as reading:
            async for item in reading:
                yield item

    async def _answer(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> RunResult:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        await self._submission.check_agent(agent)
        async with self._result_reader(request.message_id or "") as reader:
            ack = await self._submission.request(agent, request, headers, timeout)
            if ack.duplicate:
                reader.suspect()
            return await reader.read(end - loop.time())

    async def _submit(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> None:
        await self._submission.request(agent, request, headers, timeout)

    async def _ask(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> RunResult:
        return await self._asking.answer(agent, request, headers, timeout)

    def _ask_stream(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]:
        token("agent", agent)
        return self._asking.events(agent, request, headers, timeout)

    def attach(
        self,
        message_id: str,
        after: int = 0,
        *,
        attempt: int | None = None,
        timeout: float = EVENT_TIMEOUT_S,
    ) -> AsyncGenerator[Event, None]:
        return self._attached_events(canonical_id(message_id), after, attempt, timeout)

    async def _attached_events(
        self, message_id: str, after: int, attempt: int | None, timeout: float
    ) -> AsyncGenerator[Event, None]:
        reading = self.attach_wire(message_id, after, attempt=attempt, timeout=timeout)
        async with aclosing(reading):
            async for event, _ in reading:
                yield event

    async def attach_wire(
        self,
        message_id: str,
        after: int = 0,
        *,
        attempt: int | None = None,
        timeout: float = EVENT_TIMEOUT_S,
    ) -> AsyncGenerator[tuple[Event, bytes], None]:
        """`attach`, each event with the bytes that it was published as."""
        async with self._event_reader(canonical_id(message_id), after, attempt) as reader:
            reader.catch_up()
            async with aclosing(reader.read_wire(timeout)) as reading:
                async for item in reading:
                    yield item

    async def result(self, message_id: str, *, timeout: float = ANSWER_TIMEOUT_S) -> RunResult:
        async with self._result_reader(canonical_id(message_id)) as reader:
            reader.suspect()
            return await reader.read(timeout)

    async def send_command(
        self, message_id: str, command: RunCommand, *, timeout: float = COMMAND_TIMEOUT_S
    ) -> None:
        await self._submission.command(canonical_id(message_id), command, timeout)

    async def close(self) -> None:
        """Close the connection, if `connect` made it. Readers still open raise
        `ConnectionError`."""
        if self._closed:
            return
        self._closed = True
        if not self._owns_connection:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._connection.close()
        except TimeoutError:
            _log.warning("the connection did not close within %g s", _CLOSE_TIMEOUT_S)
        except OSError:
            pass  # there was something left to send, and nobody to take it
        self._look_again()

    def _event_reader(
        self, message_id: str, after: int = 0, attempt: int | None = None
    ) -> EventReader:
        reader = EventReader(
            self._connection,
            self._namespace,
            message_id,
            self._settings,
            after=after,
            attempt=attempt,
        )
        self._readers.add(reader)
        return reader

    def _result_reader(self, message_id: str) -> ResultReader:
        reader = ResultReader(self._connection, self._namespace, message_id, self._settings)
        self._readers.add(reader)
        return reader

    def _look_again(self) -> None:
        """The connection was away, or is closed: whoever reads looks for itself."""
        for reader in list(self._readers):
            reader.suspect()


class _Callbacks:
    """The caller's callback for a reconnect, and ours after it."""

    def __init__(self, first: Callable[[], Awaitable[None]] | None) -> None:
        self._first = first
        self.also: Callable[[], None] | None = None

    async def call(self) -> None:
        if self._first is not None:
            await self._first()
        if self.also is not None:
            self.also()


async def _log_error(error: Exception) -> None:
    """nats-py's own handler logs a traceback for every failed reconnect."""
    _log.warning("NATS connection: %s", type(error).__name__)
