"""The object store on a real server: what is put is what is got, and what is not there is said."""

import os
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from tests.integration.worker.conftest import Requester

from hayrunner.serving.provisioning import provision
from hayrunner.settings import Settings
from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.errors import PayloadTooLarge, StorageFailed
from hayrunner_contracts.references import digest_of

BUCKET = "RUN_BLOBS"
NAME = "default.m1.request.0a"
MANY = 10_000_000


@pytest.fixture(params=["", "max_payload: 16384"])
def server_arguments(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """The default server, and one that takes little at once."""
    config = tmp_path / "nats.conf"
    config.write_text(request.param)
    return ("-c", str(config))


@pytest.fixture
async def store(nc: Client, requester: Requester) -> BlobStore:
    await provision(requester.js, Settings(), [])
    return BlobStore(nc)


@pytest.mark.parametrize("size", [0, 1, 16384, 131_072, 131_073, 3_000_000])
async def test_what_was_put_is_got_by_us_and_by_any_nats_client(
    store: BlobStore, requester: Requester, size: int
) -> None:
    data = os.urandom(size)

    reference = await store.put(NAME, data)

    assert reference.name == NAME
    assert await store.get(NAME, digest=reference.digest, max_bytes=MANY) == data
    bucket = await requester.js.object_store(BUCKET)
    found = await bucket.get(NAME)
    assert found.data == data
    assert found.info.digest == reference.digest == digest_of(data)


async def test_an_object_of_another_nats_client_is_read(
    store: BlobStore, requester: Requester, nc: Client
) -> None:
    if nc.max_payload < 131_072:
        pytest.skip("nats-py makes chunks that this server refuses")
    bucket = await requester.js.object_store(BUCKET)
    data = os.urandom(500_000)
    await bucket.put(NAME, data)

    assert await store.get(NAME, digest=digest_of(data), max_bytes=MANY) == data


async def test_the_last_of_two_objects_of_a_name_counts(store: BlobStore) -> None:
    await store.put(NAME, b"one")
    await store.put(NAME, b"two")
    assert await store.get(NAME, max_bytes=MANY) == b"two"


async def test_what_is_deleted_is_gone_with_all_it_was_made_of(
    store: BlobStore, requester: Requester
) -> None:
    await store.put(NAME, os.urandom(500_000))
    await store.put("default.m2.request.0a", b"kept")

    await store.delete(NAME)
    await store.delete(NAME)

    with pytest.raises(StorageFailed, match="not there"):
        await store.get(NAME, max_bytes=MANY)
    assert await store.get("default.m2.request.0a", max_bytes=MANY) == b"kept"
    assert await requester.count("OBJ_RUN_BLOBS") == 2


async def test_an_object_over_the_limit_is_not_read(store: BlobStore) -> None:
    await store.put(NAME, bytes(100_000))
    with pytest.raises(PayloadTooLarge, match=r"100000 bytes; at most 99999 are read"):
        await store.get(NAME, max_bytes=99_999)


async def test_content_of_another_digest_is_refused(store: BlobStore) -> None:
    await store.put(NAME, b"one")
    with pytest.raises(StorageFailed, match="another digest") as caught:
        await store.get(NAME, digest=digest_of(b"two"), max_bytes=MANY)
    assert not caught.value.retryable


async def test_an_object_without_all_of_its_chunks_is_refused(
    store: BlobStore, requester: Requester
) -> None:
    await store.put(NAME, os.urandom(500_000))
    await requester.js.delete_msg("OBJ_RUN_BLOBS", 2)
    with pytest.raises(StorageFailed, match="not whole"):
        await store.get(NAME, max_bytes=MANY)


@pytest.mark.parametrize("description", [b"", b"{}", b'{"name":"","bucket":"","nuid":"a.>"}'])
async def test_an_object_whose_description_cannot_be_read_is_refused(
    store: BlobStore, requester: Requester, description: bytes
) -> None:
    await store.put("default.m2.request.0a", b"kept")
    await store.put(NAME, b"one")
    bucket = await requester.js.object_store(BUCKET)
    subject = "$O.RUN_BLOBS.M.ZGVmYXVsdC5tMS5yZXF1ZXN0LjBh"
    assert (await bucket.get_info(NAME)).size == 3
    await requester.js.publish(subject, description, headers={"Nats-Rollup": "sub"})

    with pytest.raises(StorageFailed, match="description"):
        await store.get(NAME, max_bytes=MANY)
    with pytest.raises(StorageFailed, match="description"):
        await store.delete(NAME)


async def test_without_a_bucket_it_is_nats_that_fails(nc: Client) -> None:
    with pytest.raises(nats.errors.Error):
        await BlobStore(nc).put(NAME, b"one", patience_s=0.2)
