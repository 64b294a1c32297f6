"""The connection to NATS: its options, and what it is like just now.

Where a number or a callback looks odd, the reason is a failure that was seen: see
docs/decisions.md, "What kills or wedges a worker".
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

from faststream.nats import NatsBroker
from faststream.nats.security import NatsCredentials, NatsNKey, NatsToken, NatsUserPassword
from faststream.security import BaseSecurity
from nats.aio.client import Client

from hayrunner.errors import ConfigurationError
from hayrunner.settings import Settings
from hayrunner.telemetry.logs import get_logger

__all__ = ["Link", "abort_transport", "make_broker", "shown_servers"]

_log = get_logger(__name__)

# A server that is there and answers nothing is left after three pings: well before the runs held
# here are given to others, where that is to be had.
_PINGS_PER_ACK_WAIT = 6
_PING_INTERVAL_MOST_S = 10.0
_PING_INTERVAL_LEAST_S = 1.0
_FLUSH_TIMEOUT_S = 2.0
# The default of 2 s would make a worker the last to come back after a server restart, when
# another one asks whether it still holds its runs.
_RECONNECT_WAIT_S = 0.25
_PENDING_BYTES = 8 * 1024 * 1024
_STUCK_CLOSE_S = 3.0
_TOLD_AGAIN_S = 10.0


class Link:
    """What is known of the connection. One per worker, fed by the connection's callbacks."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        """Set once the connection is closed for good: the worker cannot go on."""
        self.connected_at = 0.0
        """When it connected last, on the monotonic clock."""
        self.outages = 0
        """How often it was lost and came back, or is away now."""
        self.held_characters = 0
        """What all runs of this worker hold back while the connection is away."""
        self._closing = False
        self._told: dict[str, float] = {}
        self._client: Client | None = None
        self._back: list[Callable[[], Awaitable[None]]] = []
        self._returning: asyncio.Task[None] | None = None

    def bind(self, client: Client) -> None:
        """The client that the callbacks speak of, once it has connected."""
        self._client = client
        self.connected_at = time.monotonic()

    @property
    def up(self) -> bool:
        return self._client is not None and self._client.is_connected

    def when_back(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call this after every reconnect."""
        self._back.append(call)

    def no_longer_when_back(self, call: Callable[[], Awaitable[None]]) -> None:
        """Whatever was to be done after a reconnect is over."""
        self._back.remove(call)

    def expect_close(self) -> None:
        """From now on, a closed connection is no failure."""
        self._closing = True

    async def on_disconnected(self) -> None:
        self.outages += 1
        if not self._closing:
            _log.warning("the connection to NATS is lost; runs go on, events wait")

    async def on_reconnected(self) -> None:
        self.connected_at = time.monotonic()
        _log.info("the connection to NATS is back")
        # Not here: the client takes an error in this callback for one of the connection.
        self._returning = asyncio.create_task(self._call_back(), name="back at NATS")

    async def _call_back(self) -> None:
        for call in list(self._back):
            await call()

    async def on_closed(self) -> None:
        if not self._closing:
            _log.error("the connection to NATS is closed for good")
        self.lost.set()

    async def on_error(self, error: Exception) -> None:
        # The type only: texts of the server may name subjects, and with them ids. Not each one:
        # while a server is away, every try to reach it is an error.
        kind, now = type(error).__name__, time.monotonic()
        if not self._closing and now - self._told.get(kind, -_TOLD_AGAIN_S) >= _TOLD_AGAIN_S:
            self._told[kind] = now
            _log.warning("NATS reported an error", error_type=kind)

    async def watch(self) -> None:
        """Abort a transport that closes without end.

        With a stalled server and a backlog, `wait_closed` waits for minutes, and no reconnect
        happens meanwhile (nats.py #671). Runs until cancelled.
        """
        since: float | None = None
        while True:
            await asyncio.sleep(_STUCK_CLOSE_S / 3)
            client = self._client
            if client is None or not client.is_reconnecting:
                since = None
                continue
            now = time.monotonic()
            since = now if since is None else since
            if now - since > _STUCK_CLOSE_S:
                abort_transport(client)
                since = None


def abort_transport(client: Client) -> None:
    """Drop a closing socket at once. Reaches into nats-py, which has no public way."""
    writer: Any = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is not None and writer.transport.is_closing():
        with contextlib.suppress(OSError, RuntimeError):
            writer.transport.abort()


def make_broker(settings: Settings, link: Link) -> NatsBroker:
    """A broker that is not connected yet; `ConfigurationError` where its files cannot be read."""
    return NatsBroker(
        settings.servers,
        security=_security(settings),
        name=f"hayrunner {settings.worker_id}",
        max_reconnect_attempts=-1,
        reconnect_time_wait=_RECONNECT_WAIT_S,  # pyright: ignore[reportArgumentType]
        connect_timeout=3,
        ping_interval=_ping_interval_s(settings),  # pyright: ignore[reportArgumentType]
        max_outstanding_pings=2,
        flush_timeout=_FLUSH_TIMEOUT_S,
        pending_size=_PENDING_BYTES,
        drain_timeout=5,
        graceful_timeout=1.0,
        error_cb=link.on_error,
        disconnected_cb=link.on_disconnected,
        reconnected_cb=link.on_reconnected,
        closed_cb=link.on_closed,
        logger=None,
    )


def _ping_interval_s(settings: Settings) -> float:
    wanted = settings.ack_wait_s / _PINGS_PER_ACK_WAIT
    return min(_PING_INTERVAL_MOST_S, max(_PING_INTERVAL_LEAST_S, wanted))


def shown_servers(settings: Settings) -> str:
    """The addresses without the user and password that may stand in them."""
    return ", ".join(server.rpartition("@")[2] for server in settings.servers)


def _security(settings: Settings) -> BaseSecurity | None:
    tls = _tls(settings)
    try:
        if settings.nats_credentials is not None:
            return NatsCredentials.from_file(settings.nats_credentials, ssl_context=tls)
        if settings.nats_nkey is not None:
            return NatsNKey.from_file(settings.nats_nkey, ssl_context=tls)
    except ImportError:
        raise ConfigurationError(
            "credentials and nkeys need the package nkeys: pip install nkeys"
        ) from None
    if settings.nats_token is not None:
        return NatsToken(settings.nats_token.get_secret_value(), ssl_context=tls)
    if settings.nats_user is not None:
        secret = settings.nats_password
        password = "" if secret is None else secret.get_secret_value()
        return NatsUserPassword(settings.nats_user, password, ssl_context=tls)
    return None if tls is None else BaseSecurity(ssl_context=tls)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    given = (settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key)
    if not any(given):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.nats_tls_ca)
        if settings.nats_tls_cert is not None:
            context.load_cert_chain(settings.nats_tls_cert, settings.nats_tls_key)
    except (OSError, ssl.SSLError):
        raise ConfigurationError(
            "HAYRUNNER_NATS_TLS_*: a file cannot be read, or is no certificate or key in PEM form"
        ) from None
    return context
