"""A command's connection to NATS, with the same settings as a worker's."""

import ssl
from typing import Any
from urllib.parse import urlsplit

from hayrunner.cli.exits import Unreachable, at_end
from hayrunner.errors import ConfigurationError
from hayrunner.settings import Settings
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.tracing import RequestTracing

__all__ = ["connect", "shown_servers"]

_TIMEOUT_S = 3.0


async def connect(settings: Settings, *, timeout_s: float = _TIMEOUT_S) -> RunClient:
    """A client; `Unreachable` where there is no connection within `timeout_s` seconds, with what
    was seen on the way."""
    seen: list[Exception] = []

    async def note(error: Exception) -> None:
        seen.append(error)

    try:
        return await RunClient.connect(
            settings.servers,
            settings.namespace,
            tracing=_tracing(settings),
            timeout=timeout_s,
            error_cb=note,
            connect_timeout=timeout_s,
            reconnect_time_wait=0.2,
            **_credentials(settings),
        )
    except ConnectionError as error:
        raise Unreachable(_advice(settings, seen)) from error
    except ImportError:
        raise ConfigurationError(
            "credentials and nkeys need the package nkeys: pip install nkeys"
        ) from None


def _tracing(settings: Settings) -> RequestTracing | None:
    """Traces of what a command asks of agents, sent when it ends."""
    if settings.traces is None:
        return None
    from hayrunner.telemetry.otel_setup import set_up_export
    from hayrunner_contracts.otel import OpenTelemetryTracing

    export = set_up_export(settings)
    if export is None:
        return None
    at_end(export.end)
    return OpenTelemetryTracing(export.provider)


def shown_servers(settings: Settings) -> str:
    """The addresses without what they may hold of a password."""
    return ", ".join(
        server.replace(f"{urlsplit(server).netloc.rpartition('@')[0]}@", "", 1)
        if "@" in urlsplit(server).netloc
        else server
        for server in settings.servers
    )


def _advice(settings: Settings, seen: list[Exception]) -> str:
    where = shown_servers(settings)
    # nats-py gives what the server says: a few words, without what the client sent. A server
    # that refuses closes the connection, too, and either of the two may be read last.
    if any("uthorization" in str(error) for error in seen):
        return (
            f"NATS at {where} refuses these credentials: set HAYRUNNER_NATS_USER and "
            "HAYRUNNER_NATS_PASSWORD, HAYRUNNER_NATS_TOKEN, HAYRUNNER_NATS_CREDENTIALS or "
            "HAYRUNNER_NATS_NKEY"
        )
    why = f" ({type(seen[-1]).__name__})" if seen else ""
    return (
        f"cannot reach NATS at {where}{why}: start `nats-server -js`, or name another server with "
        "--nats or HAYRUNNER_NATS_URL"
    )


def _credentials(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "user": settings.nats_user,
        "user_credentials": _path(settings.nats_credentials),
        "nkeys_seed": _path(settings.nats_nkey),
        "tls": _tls(settings),
    }
    if settings.nats_password is not None:
        options["password"] = settings.nats_password.get_secret_value()
    if settings.nats_token is not None:
        options["token"] = settings.nats_token.get_secret_value()
    return {name: value for name, value in options.items() if value is not None}


def _path(path: Any) -> str | None:
    return None if path is None else str(path)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not any((settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key)):
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
