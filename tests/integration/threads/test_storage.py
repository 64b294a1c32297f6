"""One thread in the stream: appended once, read whole, changed by whoever comes first."""

import asyncio
import time

import pytest
from nats.aio.client import Client

from hayrunner.embedded import EmbeddedServer
from hayrunner.errors import StorageError
from hayrunner.storage.base import ThreadTurn
from hayrunner.storage.jetstream import JetStreamStorage, JetStreamThreads
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.headers import EXPECTED_LAST_SUBJECT_SEQUENCE
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.testing import eventually
from hayrunner_contracts.thread_client import ThreadClient
from hayrunner_contracts.thread_log import now
from hayrunner_contracts.thread_store import JetStreamThreadStore
from hayrunner_contracts.threads import ThreadMessages

SOME_SUBJECT = "threads.default.t"


def said(question: str) -> list[ChatMessage]:
    return [ChatMessage.user(question), ChatMessage.assistant(f"re: {question}")]


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.text or "" for message in messages]


def no_turns(thread_id: str, message_id: str) -> ThreadTurn:
    raise NotImplementedError


def storage_of(nc: Client, thread_id: str = "t", **more: float) -> JetStreamStorage:
    return JetStreamStorage(JetStreamThreadStore(nc, "default"), thread_id, agent="a", **more)


async def _holds(nc: Client, count: int) -> bool:
    return await stored(nc) == count


async def stored(nc: Client, subject: str = SOME_SUBJECT) -> int:
    info = await nc.jetstream().stream_info("THREADS", subjects_filter=subject)
    return (info.state.subjects or {}).get(subject, 0)


async def test_what_one_run_appended_the_next_one_loads(provisioned: Client) -> None:
    await storage_of(provisioned).append(new_message_id(), said("one"))
    await storage_of(provisioned).append(new_message_id(), said("two"))
    assert texts(await storage_of(provisioned).load()) == ["one", "re: one", "two", "re: two"]
    assert await storage_of(provisioned, "other").load() == []


async def test_an_append_that_is_repeated_is_stored_once(provisioned: Client) -> None:
    message_id = new_message_id()
    first = storage_of(provisioned)
    await first.load()
    await first.append(message_id, said("one"))
    await first.append(message_id, said("one"))
    await storage_of(provisioned).append(message_id, said("one, answered anew"))
    await storage_of(provisioned).append(new_message_id(), said("two"))
    assert texts(await storage_of(provisioned).load()) == ["one", "re: one", "two", "re: two"]
    assert await stored(provisioned) == 2


async def test_an_append_whose_answer_was_lost_is_found_again_by_its_id(
    provisioned: Client,
) -> None:
    """Long after the duplicate window too: here there is none, as the id was never seen by it."""
    message_id = new_message_id()
    waiting = storage_of(provisioned)
    await waiting.load()
    # The same record came in by another way: the writer has not heard of it.
    await storage_of(provisioned).append(message_id, said("one"))
    await waiting.append(message_id, said("one"))
    assert await stored(provisioned) == 1


async def test_a_hundred_concurrent_appends_from_two_connections_are_all_stored_once(
    provisioned: Client, client_connection: Client
) -> None:
    ids = [new_message_id() for _ in range(50)]

    async def append(connection: Client, message_id: str) -> None:
        await storage_of(connection).append(message_id, said(message_id))

    # Every id from both connections: a redelivery beside its first delivery.
    await asyncio.gather(
        *(append(nc, message_id) for nc in (provisioned, client_connection) for message_id in ids)
    )
    questions = texts(await storage_of(provisioned).load())[::2]
    assert sorted(questions) == sorted(ids)
    assert await stored(provisioned) == 50


async def test_a_run_that_is_already_stored_does_not_load_its_own_messages(
    provisioned: Client,
) -> None:
    first, second = new_message_id(), new_message_id()
    await storage_of(provisioned).append(first, said("one"))
    await storage_of(provisioned).append(second, said("two"))
    assert texts(await storage_of(provisioned).load(before_message_id=second)) == [
        "one",
        "re: one",
    ]
    assert await storage_of(provisioned).load(before_message_id=first) == []
    assert len(await storage_of(provisioned).load(before_message_id=new_message_id())) == 4


async def test_a_run_that_adds_more_than_a_message_holds_is_remembered_as_any_other(
    provisioned: Client,
) -> None:
    large = "x" * 2_000_000
    await storage_of(provisioned).append(new_message_id(), said("one"))
    first = storage_of(provisioned)
    message_id = new_message_id()
    await first.append(message_id, said(large))
    await first.append(message_id, said(large))
    await first.append(new_message_id(), said("two"))

    expected = ["one", "re: one", large, f"re: {large}", "two", "re: two"]
    assert texts(await first.load()) == expected
    assert texts(await storage_of(provisioned).load()) == expected
    thread = await ThreadClient(JetStreamThreadStore(provisioned, "default")).get("t")
    assert (thread.runs, thread.messages) == (3, 6)
    assert texts(thread.conversation) == expected
    assert await stored(provisioned) == 3


async def test_a_record_whose_content_is_gone_is_a_clear_error(provisioned: Client) -> None:
    await storage_of(provisioned).append(new_message_id(), said("x" * 2_000_000))
    await provisioned.jetstream().purge_stream("OBJ_THREAD_BLOBS")
    with pytest.raises(StorageError, match="not there") as error:
        await storage_of(provisioned).load()
    assert not error.value.retryable


async def test_messages_over_every_limit_are_a_clear_error_and_nothing_is_sent(
    provisioned: Client,
) -> None:
    store = JetStreamThreadStore(provisioned, "default", max_record_bytes=1_050_000)
    with pytest.raises(StorageError, match="too large") as error:
        await JetStreamStorage(store, "t").append(new_message_id(), said("x" * 1_100_000))
    assert not error.value.retryable
    assert "xxx" not in str(error.value)
    assert provisioned.is_connected
    assert await stored(provisioned) == 0


async def test_a_thread_of_two_thousand_messages_is_loaded_in_one_go(provisioned: Client) -> None:
    for number in range(1_000):
        record = ThreadMessages(at=now(), message_id=new_message_id(), messages=said(f"{number}"))
        await provisioned.publish(SOME_SUBJECT, encode(record))
    await eventually(lambda: _holds(provisioned, 1_000), what="a thousand records")

    started = time.perf_counter()
    messages = await storage_of(provisioned).load()
    took = time.perf_counter() - started

    assert len(messages) == 2_000
    assert texts(messages)[-2] == "999"
    print(f"2,000 messages in 1,000 records: loaded in {took * 1000:.0f} ms")
    assert took < 5


async def test_records_that_are_longer_than_a_batch_are_read_all_the_same(
    provisioned: Client,
) -> None:
    for number in range(8):
        await storage_of(provisioned).append(new_message_id(), said(f"{number}" + "x" * 400_000))
    assert [text[0] for text in texts(await storage_of(provisioned).load())[::2]] == [*"01234567"]


async def test_a_deleted_thread_is_refused_and_keeps_what_a_running_run_adds(
    provisioned: Client,
) -> None:
    threads = ThreadClient(JetStreamThreadStore(provisioned, "default"))
    running = storage_of(provisioned)
    await running.append(new_message_id(), said("one"))
    await running.load()
    await threads.delete("t")
    with pytest.raises(InvalidRequest, match="thread is deleted") as error:
        await storage_of(provisioned).load()
    assert error.value.field == "thread_id"
    await running.append(new_message_id(), said("two"))
    assert (await threads.get("t")).deleted
    await threads.restore("t")
    assert texts(await storage_of(provisioned).load()) == ["one", "re: one", "two", "re: two"]


async def test_a_record_of_a_newer_version_is_passed_over(provisioned: Client) -> None:
    await storage_of(provisioned).append(new_message_id(), said("one"))
    await provisioned.jetstream().publish(SOME_SUBJECT, b'{"type":"pinned","at":"now"}')
    await storage_of(provisioned).append(new_message_id(), said("two"))
    assert len(await storage_of(provisioned).load()) == 4


async def test_a_record_that_is_none_fails_the_load(provisioned: Client) -> None:
    await provisioned.jetstream().publish(SOME_SUBJECT, b"not json")
    with pytest.raises(StorageError, match="not a thread record"):
        await storage_of(provisioned).load()


async def test_a_stream_that_is_not_there_is_named(nc: Client) -> None:
    with pytest.raises(StorageError, match="no stream THREADS: run `hayrunner init`"):
        await storage_of(nc).load()


async def test_a_stale_writer_is_refused_by_the_stream(provisioned: Client) -> None:
    """What other writers have to send is what keeps them apart."""
    await storage_of(provisioned).append(new_message_id(), said("one"))
    headers = {EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}
    with pytest.raises(Exception, match="wrong last sequence"):
        await provisioned.jetstream().publish(SOME_SUBJECT, b"{}", headers=headers)


async def test_namespaces_do_not_see_each_others_threads(provisioned: Client) -> None:
    one = JetStreamThreads(provisioned, "default", turns=no_turns)
    other = JetStreamThreads(provisioned, "other", turns=no_turns)
    await one.thread("t", agent="a").append(new_message_id(), said("one"))
    assert await other.thread("t").load() == []
    assert await ThreadClient(JetStreamThreadStore(provisioned, "other")).list() == []


async def test_a_server_that_stays_away_is_a_retryable_error(
    provisioned: Client, nats_server: EmbeddedServer
) -> None:
    storage = storage_of(provisioned, patience_s=0.5)
    await storage.load()
    await nats_server.stop()
    with pytest.raises(StorageError, match="could not be saved within") as error:
        await storage.append(new_message_id(), said("one"))
    assert error.value.retryable
    await nats_server.start()
    await eventually(lambda: provisioned.is_connected, what="the connection")
