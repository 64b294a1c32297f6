"""New message ids: UUIDv7 (RFC 9562), so that ids sort by the time they were made."""

import secrets
import time
import uuid

__all__ = ["new_message_id"]


def new_message_id() -> str:
    """A UUIDv7: 48 bits of Unix milliseconds, then 74 random bits.

    Ids made within one millisecond are in no order.
    """
    milliseconds = time.time_ns() // 1_000_000
    random = secrets.randbits(74)
    value = (milliseconds & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= (random >> 62) << 64
    value |= 0b10 << 62
    value |= random & ((1 << 62) - 1)
    return str(uuid.UUID(int=value))
