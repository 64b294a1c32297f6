"""`client.threads`, on NATS and in the double for tests: the same promises."""

import asyncio

import pytest
from nats.aio.client import Client

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import ClientTimeout, InvalidRequest
from hayrunner_contracts.memory_threads import InMemoryThreadStore
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.replay import NotProvisioned
from hayrunner_contracts.testing import InMemoryRunClient, eventually
from hayrunner_contracts.thread_client import ThreadClient, ThreadStore
from hayrunner_contracts.thread_log import ThreadLog, now
from hayrunner_contracts.thread_store import JetStreamThreadStore
from hayrunner_contracts.threads import Rating, ThreadMessages


@pytest.fixture(params=["nats", "memory"])
def store(request: pytest.FixtureRequest, provisioned: Client) -> ThreadStore:
    if request.param == "memory":
        return InMemoryThreadStore()
    return JetStreamThreadStore(provisioned, "default")


@pytest.fixture
def threads(store: ThreadStore) -> ThreadClient:
    return ThreadClient(store)


async def add_run(store: ThreadStore, thread_id: str = "t") -> str:
    """What a run leaves."""
    message_id = new_message_id()
    messages = [ChatMessage.user("hi"), ChatMessage.assistant("hello")]
    record = ThreadMessages(at=now(), message_id=message_id, agent="support", messages=messages)
    await store.change(thread_id, lambda _: record, record_id=message_id)
    return message_id


async def a_moment_later() -> None:
    """Times of records are milliseconds."""
    before = now()
    await eventually(lambda: now() != before, what="the next millisecond")


async def test_a_thread_is_created_with_a_title_once(threads: ThreadClient) -> None:
    made = await threads.create("t", title="Über Order 7 ✓")
    assert (made.thread_id, made.title, made.runs) == ("t", "Über Order 7 ✓", 0)
    with pytest.raises(InvalidRequest, match="there is a thread of that id"):
        await threads.create("t")
    assert (await threads.create()).thread_id != (await threads.create()).thread_id
    assert (await threads.get("t")).title == "Über Order 7 ✓"
    assert list(await threads.messages("t")) == []


async def test_threads_are_listed_the_last_changed_first(
    threads: ThreadClient, store: ThreadStore
) -> None:
    assert await threads.list() == []
    await threads.create("a", title="A")
    await a_moment_later()
    await threads.create("b")
    await a_moment_later()
    await add_run(store, "a")
    found = await threads.list()
    assert [info.thread_id for info in found] == ["a", "b"]
    assert (found[0].title, found[0].runs, found[0].messages) == ("A", 1, 2)
    assert [info.thread_id for info in await threads.list(limit=1)] == ["a"]
    await threads.delete("a")
    assert [info.thread_id for info in await threads.list()] == ["b"]
    everything = await threads.list(include_deleted=True)
    assert {info.thread_id: info.deleted for info in everything} == {"a": True, "b": False}


async def test_three_hundred_threads_are_listed(threads: ThreadClient, store: ThreadStore) -> None:
    await asyncio.gather(*(add_run(store, f"t{number}") for number in range(300)))
    assert len(await threads.list()) == 300


@pytest.mark.parametrize("rating", ["up", "down", 4.5, -1])
async def test_the_last_rating_of_a_run_counts(
    threads: ThreadClient, store: ThreadStore, rating: Rating
) -> None:
    message_id = await add_run(store)
    await threads.rate("t", message_id, "down", comment="Wrong order.")
    await threads.rate("t", message_id.upper(), rating, comment="Right after all.")
    given = (await threads.get("t")).ratings[message_id]
    assert (given.rating, given.comment) == (rating, "Right after all.")
    await threads.rate("t", message_id, None)
    assert (await threads.get("t")).ratings == {}
    assert len(await threads.messages("t")) == 2


async def test_a_deleted_thread_shows_nothing_until_it_is_restored(
    threads: ThreadClient, store: ThreadStore
) -> None:
    message_id = await add_run(store)
    await threads.rate("t", message_id, "up")
    await threads.delete("t")
    await threads.delete("t")
    hidden = await threads.get("t")
    assert (hidden.deleted, hidden.log, hidden.ratings) == (True, [], {})
    with pytest.raises(InvalidRequest, match="is deleted"):
        await threads.rate("t", message_id, "up")
    await threads.restore("t")
    await threads.restore("t")
    shown = await threads.get("t")
    assert (shown.deleted, len(shown.conversation), list(shown.ratings)) == (
        False,
        2,
        [message_id],
    )


async def test_what_is_not_there_and_what_may_not_be_is_refused_by_name(
    threads: ThreadClient, store: ThreadStore
) -> None:
    await add_run(store)
    message_id = new_message_id()
    for call, field in (
        (threads.get("nobody"), "thread_id"),
        (threads.delete("nobody"), "thread_id"),
        (threads.restore("nobody"), "thread_id"),
        (threads.rate("nobody", message_id, "up"), "thread_id"),
        (threads.rate("t", message_id, "up"), "message_id"),
        (threads.rate("t", "no uuid", "up"), "message_id"),
        (threads.rate("t", message_id, "sideways"), "rating"),  # pyright: ignore[reportArgumentType]
        (threads.rate("t", message_id, True), "rating"),
        (threads.rate("t", message_id, float("nan")), "rating"),
        (threads.rate("t", message_id, "up", comment="x" * 4_001), "comment"),
        (threads.create("a.b"), "thread_id"),
        (threads.create(title="x" * 201), "title"),
        (threads.get("a b"), "thread_id"),
    ):
        with pytest.raises(InvalidRequest) as error:
            await call
        assert error.value.field == field


async def test_many_raters_at_once_all_count(provisioned: Client) -> None:
    store = JetStreamThreadStore(provisioned, "default")
    runs = [await add_run(store) for _ in range(20)]
    threads = ThreadClient(JetStreamThreadStore(provisioned, "default"))
    await asyncio.gather(*(threads.rate("t", run, "up") for run in runs))
    assert set((await threads.get("t")).ratings) == set(runs)


async def test_a_title_outlives_the_record_that_gave_it(provisioned: Client) -> None:
    """What the stream forgot by age stands in the header of what is left."""
    store = JetStreamThreadStore(provisioned, "default")
    threads = ThreadClient(store)
    await threads.create("t", title="Order 7")
    message_id = await add_run(store)
    await add_run(store)
    jetstream = provisioned.jetstream()
    for sequence in (1, 2):
        await jetstream.delete_msg("THREADS", sequence)
    thread = await threads.get("t")
    assert (thread.title, thread.runs, len(thread.log)) == ("Order 7", 2, 1)
    assert message_id not in [added.message_id for added in thread.log]


async def test_a_server_without_the_stream_says_so(client: RunClient) -> None:
    for call in (client.threads.list(), client.threads.get("t"), client.threads.create("t")):
        with pytest.raises(NotProvisioned, match="hayrunner init"):
            await call


async def test_a_closed_connection_is_a_connection_error(client: RunClient) -> None:
    await client.connection.close()
    with pytest.raises(ConnectionError):
        await client.threads.get("t")


async def test_an_operation_gives_up_when_its_time_is_over() -> None:
    class Away(InMemoryThreadStore):
        async def read(self, thread_id: str) -> ThreadLog:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(ClientTimeout, match=r"not read within 0\.05 s"):
        await ThreadClient(Away()).get("t", timeout=0.05)


async def test_the_double_remembers_what_its_runs_said() -> None:
    async with InMemoryRunClient({"support": "It is on its way."}) as client:
        await client.run("support", "Where is order 7?", thread_id="t")
        await client.run("support", "Secret.", thread_id="t", memory=False)
        await client.run("support", "New.", thread_id="t", history=[])
        said = [message.text for message in await client.threads.messages("t")]
        assert said == ["Where is order 7?", "It is on its way."]
        await client.threads.delete("t")
        with pytest.raises(InvalidRequest, match="is deleted"):
            await client.run("support", "Again?", thread_id="t")
        await client.threads.restore("t")
        assert await client.run("support", "Again?", thread_id="t") == "It is on its way."
        assert (await client.threads.get("t")).runs == 2
