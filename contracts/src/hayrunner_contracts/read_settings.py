"""How a client reads runs."""

import msgspec

from hayrunner_contracts.contents import MAX_READ_BYTES
from hayrunner_contracts.replay import JETSTREAM_API

__all__ = ["ReadSettings"]


class ReadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reads runs.

    `idle_check_s`: after so long without an event the store is asked whether one was missed;
    doubled at every look without a find, up to `longest_idle_check_s`. `buffer_events` and
    `buffer_bytes`: what one reader holds for a consumer that is slower than the run, and as much
    again of what comes early; the rest is read from the stream when the consumer gets there.
    `patience_s`: how long after the end of a run its missing events may still turn up. `api`: the
    prefix of the JetStream API.
    `max_blob_bytes`: what is sent or read of one message that is too large for NATS.
    """

    idle_check_s: float = 2.0
    longest_idle_check_s: float = 10.0
    buffer_events: int = 10_000
    buffer_bytes: int = 16 * 1024 * 1024
    patience_s: float = 60.0
    api: str = JETSTREAM_API
    max_blob_bytes: int = MAX_READ_BYTES
