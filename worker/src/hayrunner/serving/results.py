"""The one result of a run: made, stored write-once, published again for a late redelivery."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
from nats.js.errors import APIError

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.serving.blobs import Blobs
from hayrunner.serving.bus import Bus
from hayrunner.serving.failures import failure
from hayrunner.serving.stored import is_write_once_refusal, last_of, store
from hayrunner_contracts import headers, subjects
from hayrunner_contracts.codec import decode_result, encode
from hayrunner_contracts.errors import RunFailure, StorageFailed
from hayrunner_contracts.references import result_stub
from hayrunner_contracts.results import RunResult

__all__ = [
    "RunFacts",
    "carried",
    "make_result",
    "publish_again",
    "store_result",
    "stored_result",
]

_PAYLOAD_MARGIN = 1_024
_KEPT_HEADERS = (headers.BLOB, headers.BLOB_DIGEST)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run besides its outcome. Times are seconds since the epoch."""

    message_id: str
    agent: str
    attempts: int = 1
    requested_at: float | None = None
    started_at: float | None = None
    thread_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    include_messages: bool = False


def make_result(facts: RunFacts, outcome: RunOutcome, *, last_seq: int) -> RunResult:
    """The result, ended now."""
    return RunResult(
        message_id=facts.message_id,
        agent=facts.agent,
        status=outcome.status,
        answer=outcome.answer,
        finish_reason=outcome.finish_reason,
        usage=outcome.usage,
        model_calls=outcome.model_calls,
        attempts=facts.attempts,
        error=outcome.error,
        messages=outcome.messages if facts.include_messages else None,
        last_seq=last_seq,
        metadata=facts.metadata,
        thread_id=facts.thread_id,
        requested_at=_rfc3339(facts.requested_at),
        started_at=_rfc3339(facts.started_at),
        ended_at=_rfc3339(time.time()),
    )


def fit(result: RunResult, limit: int) -> tuple[RunResult, bytes]:
    """The result and its bytes, at most `limit` of them: without its messages where that is
    enough, else failed with `payload_too_large`."""
    data = encode(result)
    if len(data) <= limit:
        return result, data
    if result.messages is not None:
        result = msgspec.structs.replace(result, messages=None)
        data = encode(result)
    if len(data) > limit:
        text = f"the answer is larger than the {limit} bytes that it may have"
        result = _without_answer(result, failure("payload_too_large", text))
        data = encode(result)
    return result, data


def _without_answer(result: RunResult, cause: RunFailure) -> RunResult:
    return msgspec.structs.replace(
        result, status="failed", answer=None, messages=None, metadata={}, error=cause
    )


async def carried(
    bus: Bus, result: RunResult, *, patience_s: float
) -> tuple[RunResult, bytes, dict[str, str]]:
    """The result as it can be published: itself, the bytes of its message, and their headers.

    Where it is too large for a message, its content is stored and the message is a stub. A result
    is never lost to its size: where it is larger than anything may be, or the object store takes
    nothing, it says so in its error. `nats.errors.Error` where NATS is away for too long.
    """
    limit = bus.nc.max_payload - _PAYLOAD_MARGIN
    data = encode(result)
    if len(data) <= limit:
        return result, data, {}
    result, data = fit(result, max(limit, bus.max_blob_bytes))
    if len(data) <= limit:
        return result, data, {}
    blobs = Blobs(bus).of(result.message_id)
    try:
        reference = await blobs.put_at_last("result", data, patience_s=patience_s)
    except StorageFailed:
        text = "the answer was too large for one message, and could not be stored elsewhere"
        result = _without_answer(result, failure("storage_error", text))
        return result, encode(result), {}
    return result, encode(result_stub(result)), reference.headers


async def store_result(bus: Bus, result: RunResult, *, patience_s: float) -> RunResult:
    """Store the result, once: where there is one already, that one counts and is returned.

    `nats.errors.Error` where it cannot be stored within `patience_s` seconds.
    """
    result, data, more = await carried(bus, result, patience_s=patience_s)
    try:
        await store(
            bus.js,
            subjects.result(bus.namespace, result.message_id),
            data,
            headers={
                **more,
                headers.MSG_ID: f"{result.message_id}.result",
                headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0",
            },
            patience_s=patience_s,
        )
    except APIError as error:
        if not is_write_once_refusal(error):
            raise
        return await stored_result(bus, result.message_id) or result
    return result


async def stored_result(bus: Bus, message_id: str) -> RunResult | None:
    """The result that is stored of a run, None where there is none; of one that was too large for
    a message the stub, which says how the run ended and not with what."""
    found = await last_of(bus.js, subjects.RUN_RESULTS, subjects.result(bus.namespace, message_id))
    return None if found is None else decode_result(found.data)


async def publish_again(bus: Bus, message_id: str) -> bool:
    """Publish a stored result once more, for whoever waits just now; whether there was one.

    Live subscribers get the message, and the stream refuses it: the write-once header makes the
    second copy one that is seen and not stored.
    """
    subject = subjects.result(bus.namespace, message_id)
    found = await last_of(bus.js, subjects.RUN_RESULTS, subject)
    if found is None:
        return False
    kept = {name: found.headers[name] for name in _KEPT_HEADERS if name in found.headers}
    again = {**kept, headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}
    await bus.nc.publish(subject, found.data, headers=again)
    return True


def _rfc3339(moment: float | None) -> str | None:
    if moment is None:
        return None
    text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
