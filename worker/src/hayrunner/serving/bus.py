"""What every part of the serving half needs to speak on the bus."""

from dataclasses import dataclass

from nats.aio.client import Client
from nats.js import JetStreamContext

from hayrunner.serving.connection import Link

__all__ = ["Bus"]


@dataclass(frozen=True, kw_only=True)
class Bus:
    """The connection, its JetStream, what it is like just now, and the worker's namespace.
    `max_blob_bytes` is what may be kept of one message that is too large for NATS."""

    nc: Client
    js: JetStreamContext
    link: Link
    namespace: str
    max_blob_bytes: int = 32 * 1024 * 1024
