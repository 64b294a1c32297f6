"""NATS headers the contract uses: the only place that spells them."""

__all__ = [
    "BLOB",
    "BLOB_DIGEST",
    "DEAD_REASON",
    "DEAD_SIZE",
    "EXPECTED_LAST_SUBJECT_SEQUENCE",
    "MESSAGE_ID",
    "MSG_ID",
    "ORIGINAL_SUBJECT",
    "RETRY_OF",
    "STATUS_CODE",
    "THREAD_STATE",
    "TRACEPARENT",
    "TRACESTATE",
]

MSG_ID = "Nats-Msg-Id"
"""The server drops a second message with the same value within the stream's duplicate window."""

EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
"""`0` makes a publish succeed only where the subject holds nothing yet: a write-once subject."""

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

DEAD_REASON = "Hayrunner-Dead-Reason"
"""On a dead letter: the error code it was given up with."""

DEAD_SIZE = "Hayrunner-Dead-Size"
"""On a dead letter: the bytes of the request's body, of which fewer are there where it was cut."""

MESSAGE_ID = "Hayrunner-Message-Id"
"""The message id of a run. On a request it counts in place of the body's, which is kept as it is
when a dead letter is run again; on a dead letter it is the run's that was given up on."""

RETRY_OF = "Hayrunner-Retry-Of"
"""On a request that was a dead letter: the message id of the run that was given up on."""

ORIGINAL_SUBJECT = "Hayrunner-Original-Subject"
"""On a dead letter: the subject the request came on, so that it can be sent there again."""

STATUS_CODE = "Hayrunner-Code"
"""On a reply to `ask` that is no result: the error code."""

THREAD_STATE = "Hayrunner-Thread"
"""On a record of a thread: where the thread stands after it, as JSON in ASCII."""

BLOB = "Hayrunner-Blob"
"""The content is the object of this name in the bucket `RUN_BLOBS`; the body is a stub of it."""

BLOB_DIGEST = "Hayrunner-Blob-Digest"
"""Beside `Hayrunner-Blob`: `SHA-256=` and the content's digest, in URL-safe base64 with padding."""
