"""Requests that refer to their content: what is wrong with a reference is answered and buried."""

import json
import uuid
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.client import Client
from tests.integration.worker.conftest import Requester, Serve
from tests.integration.worker.scripted import ScriptedAgent

from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.headers import BLOB, BLOB_DIGEST
from hayrunner_contracts.references import digest_of
from hayrunner_contracts.testing import eventually

Send = Callable[..., Awaitable[str]]


@pytest.fixture
async def refer(serve: Serve, requester: Requester, nc: Client) -> Send:
    """Publishes a request that refers to content; its message id."""
    await serve(ScriptedAgent(), max_blob_bytes=200_000)
    store = BlobStore(nc)

    async def send(
        content: bytes | None,
        *,
        name: str | None = None,
        digest: str | None = None,
        stub_id: str | None = None,
    ) -> str:
        message_id = stub_id or str(uuid.uuid4())
        name = name or f"default.{message_id}.request.1"
        if content is not None:
            await store.put(name, content)
        headers = {
            BLOB: name,
            BLOB_DIGEST: digest or digest_of(content or b""),
            "Nats-Msg-Id": message_id,
        }
        await requester.js.publish(
            "agents.default.support.requests",
            json.dumps({"message_id": message_id}).encode(),
            headers=headers,
        )
        return message_id

    return send


@pytest.mark.parametrize(
    ("content", "more", "code", "words"),
    [
        (None, {}, "invalid_request", "not there"),
        (b"{}", {"digest": digest_of(b"[]")}, "invalid_request", "another digest"),
        (b"{}", {"digest": "SHA-256=abc"}, "invalid_request", "must be SHA-256="),
        (b"{}", {"name": "other.m.request.1"}, "invalid_request", "another namespace"),
        (None, {"name": "default.>.request"}, "invalid_request", "not the name"),
        (b"[" * 1_000, {}, "invalid_request", "nested"),
        (b"no JSON", {}, "invalid_request", "JSON"),
        (
            b'{"prompt":"hi","message_id":"01981a60-0000-7000-8000-000000000001"}',
            {},
            "invalid_request",
            "the same",
        ),
        (bytes(200_001), {}, "payload_too_large", "at most 200000"),
    ],
)
async def test_a_reference_that_leads_nowhere_good_is_answered_and_buried(
    refer: Send,
    requester: Requester,
    content: bytes | None,
    more: dict[str, str],
    code: str,
    words: str,
) -> None:
    message_id = await refer(content, **more)
    result = await requester.ended(message_id)

    assert result.error is not None
    assert (result.error.code, words in result.error.message) == (code, True), result.error
    dead = await requester.js.get_last_msg("DEAD_RUNS", "dead.default.support")
    assert json.loads(dead.data or b"") == {"message_id": message_id}
    assert dead.headers is not None
    assert {BLOB, BLOB_DIGEST} <= set(dead.headers)
    await eventually(requester.queue_is_empty, what="an empty queue")
    # And the worker is well.
    result = await requester.ended(await requester.publish())
    assert result.status == "completed"


async def test_content_without_an_id_has_that_of_its_message(
    refer: Send, requester: Requester
) -> None:
    message_id = await refer(b'{"prompt":"hi"}')
    result = await requester.ended(message_id)
    assert (result.status, result.message_id) == ("completed", message_id)
