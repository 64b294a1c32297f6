"""Messages whose content is kept elsewhere: how they say so, and what stands in their place.

A message that is larger than the server takes travels as a stub: a small message of the same kind,
with headers that name the object in `RUN_BLOBS` that has the whole one. docs/contract.md says
which fields a stub has. Pure: `hayrunner_contracts.blobs` stores and reads.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import StreamEvent
from hayrunner_contracts.headers import BLOB, BLOB_DIGEST
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import blob_name, blob_parts

__all__ = [
    "BlobReference",
    "digest_of",
    "event_stub",
    "new_blob_name",
    "reference_of",
    "request_stub",
    "result_stub",
]

E = TypeVar("E", bound=StreamEvent)

LARGE_FIELD = 512
"""A field of a stub whose JSON is longer than this, in bytes, is emptied."""
_SHOWN_MESSAGE = 1_000

_DIGEST = re.compile(r"SHA-256=[A-Za-z0-9_-]{43}=")
_EMPTY: tuple[tuple[type[Any], Any], ...] = ((str, ""), (list, []), (dict, {}))


class BlobReference(msgspec.Struct, frozen=True):
    """The object that has a message's content, and the digest that the content must have."""

    name: str
    digest: str

    @property
    def headers(self) -> dict[str, str]:
        """What a message carries that refers to it."""
        return {BLOB: self.name, BLOB_DIGEST: self.digest}


def reference_of(
    headers: Mapping[str, str] | None, *, namespace: str | None = None
) -> BlobReference | None:
    """The reference that a message's headers have; None for one that is whole.

    `InvalidRequest` with the header as its field: for a name that is none of an object of a run,
    or of another namespace than `namespace`, and for a digest that is missing or none.
    """
    name = (headers or {}).get(BLOB)
    if headers is None or name is None:
        return None
    try:
        parts = blob_parts(name)
    except InvalidRequest as error:
        raise InvalidRequest(f"{BLOB}: is {error.message}", field=BLOB) from None
    if namespace is not None and parts[0] != namespace:
        raise InvalidRequest(f"{BLOB}: names an object of another namespace", field=BLOB)
    digest = headers.get(BLOB_DIGEST)
    if digest is None or _DIGEST.fullmatch(digest) is None:
        raise InvalidRequest(
            f"{BLOB_DIGEST}: must be SHA-256= and the digest in URL-safe base64", field=BLOB_DIGEST
        )
    return BlobReference(name, digest)


def new_blob_name(namespace: str, message_id: str, what: str) -> str:
    """A name that nobody has used and nobody can guess, for an object with `what` of a run."""
    return blob_name(namespace, message_id, f"{what}.{secrets.token_hex(8)}")


def digest_of(data: bytes) -> str:
    """The digest of some content, as the header has it, and as NATS object stores keep it."""
    return f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()}"


def event_stub(event: E) -> E:
    """The event without what is large in it: text becomes "", a list [], an object {}."""
    emptied = {
        name: _emptied(value)
        for name in event.__struct_fields__
        if _is_large(value := getattr(event, name))
    }
    return msgspec.structs.replace(event, **emptied)


def result_stub(result: RunResult) -> RunResult:
    """The result without its answer and messages, and without what else is large in it."""
    error = result.error
    if error is not None:
        error = msgspec.structs.replace(error, message=error.message[:_SHOWN_MESSAGE])
    return msgspec.structs.replace(
        result,
        answer=None,
        messages=None,
        error=error,
        metadata={} if _is_large(result.metadata) else result.metadata,
    )


def request_stub(message_id: str | None) -> bytes:
    """The body of a request that is kept elsewhere: its id and nothing else."""
    return msgspec.json.encode({} if message_id is None else {"message_id": message_id})


def _is_large(value: Any) -> bool:
    return isinstance(value, str | list | dict) and len(msgspec.json.encode(value)) > LARGE_FIELD


def _emptied(value: Any) -> Any:
    return next(empty for kind, empty in _EMPTY if isinstance(value, kind))
