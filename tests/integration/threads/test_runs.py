"""Runs on threads: remembered across workers, one after the other, left alone when asked to."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import KeyNotFoundError
from tests.integration.threads.conftest import Echo, Serve

from hayrunner.agent import Agent
from hayrunner.serving.turns import Turn
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import BusyThread, Cancelled, DeadlineExceeded, InvalidRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.runs import error_of
from hayrunner_contracts.subjects import thread_lock_key
from hayrunner_contracts.testing import eventually

KEY = thread_lock_key("default", "t")


async def holder(client: RunClient) -> str | None:
    """The run that has the thread, as the bucket says."""
    bucket = await client.connection.jetstream().key_value("RUNS")
    try:
        entry = await bucket.get(KEY)
    except KeyNotFoundError:
        return None
    return str(json.loads(entry.value or b"{}")["message_id"])


async def questions(client: RunClient) -> list[str]:
    return [message.text or "" for message in await client.threads.messages("t")][::2]


async def finished(client: RunClient, message_id: str) -> RunResult:
    return await client.result(message_id, timeout=20)


async def test_large_turns_are_remembered(serve: Serve, client: RunClient, echo: Echo) -> None:
    large = "x" * 1_500_000
    await serve()
    assert await client.run("support", large, thread_id="t") == f"re: {large}"
    assert await client.run("support", "two", thread_id="t") == "re: two"
    assert echo.seen["two"] == [[large, f"re: {large}", "two"]]


async def test_two_workers_go_on_with_one_conversation(
    serve: Serve, client: RunClient, echo: Echo
) -> None:
    first = await serve()
    assert await client.run("support", "one", thread_id="t") == "re: one"
    await first.shutdown()
    await serve()
    assert await client.run("support", "two", thread_id="t") == "re: two"
    assert echo.seen["two"] == [["one", "re: one", "two"]]
    thread = await client.threads.get("t")
    assert (thread.runs, thread.messages, thread.log[0].agent) == (2, 4, "support")


async def test_a_hundred_runs_of_ten_threads_on_two_workers_keep_every_message_once(
    serve: Serve, client: RunClient
) -> None:
    await serve(concurrency=4)
    await serve(concurrency=4)
    names = [f"t{number}" for number in range(10)]
    await asyncio.gather(
        *(
            client.run("support", f"{name}-{number}", thread_id=name)
            for number in range(10)
            for name in names
        )
    )
    for name in names:
        said = [message.text for message in await client.threads.messages(name)]
        asked = said[::2]
        assert sorted(map(str, asked)) == sorted(f"{name}-{number}" for number in range(10))
        # Each answer stands behind its question: no two runs were in the thread at once.
        assert said[1::2] == [f"re: {question}" for question in asked]


@pytest.mark.parametrize("direct", [False, True], ids=["durable", "direct"])
async def test_the_second_run_of_a_busy_thread_waits_and_sees_what_the_first_said(
    serve: Serve, client: RunClient, echo: Echo, direct: bool
) -> None:
    """On another worker, with one slot each: a waiting run takes none from the first."""
    await serve()
    await serve()
    go = echo.hold("one")
    call = client.ask if direct else client.run
    first = asyncio.create_task(call("support", "one", thread_id="t"))
    await echo.called("one")
    second = asyncio.create_task(call("support", "two", thread_id="t"))
    third = asyncio.create_task(client.run("support", "three", thread_id="other"))
    await third
    assert echo.seen["two"] == []
    go.set()
    await asyncio.gather(first, second)
    assert echo.seen["two"] == [["one", "re: one", "two"]]
    await eventually(lambda: _free(client), what="a free thread")


async def test_a_busy_thread_refuses_where_the_request_says_so(
    serve: Serve, client: RunClient, echo: Echo
) -> None:
    await serve()
    go = echo.hold("one")
    first = asyncio.create_task(client.run("support", "one", thread_id="t"))
    await echo.called("one")
    with pytest.raises(BusyThread) as error:
        await client.run("support", "two", thread_id="t", on_busy_thread="reject")
    assert error.value.retryable
    assert echo.seen["two"] == []
    go.set()
    await first
    assert await client.run("support", "two", thread_id="t", on_busy_thread="reject") == "re: two"
    assert await questions(client) == ["one", "two"]


async def test_a_waiting_run_can_be_cancelled_and_obeys_its_deadline(
    serve: Serve, client: RunClient, echo: Echo
) -> None:
    worker = await serve(concurrency=2)
    go = echo.hold("one")
    first = asyncio.create_task(client.run("support", "one", thread_id="t"))
    await echo.called("one")
    cancelled = await client.submit("support", "two", thread_id="t")
    await eventually(lambda: _begun(client, cancelled.message_id), what="the second run")
    await cancelled.cancel()
    with pytest.raises(Cancelled):
        _raise(await cancelled.result(timeout=10))
    with pytest.raises(DeadlineExceeded):
        await client.run("support", "three", thread_id="t", timeout_s=0.3)
    assert echo.seen["two"] == echo.seen["three"] == []
    await eventually(lambda: worker.running == 1, what="the slots of both")
    go.set()
    await first
    assert await questions(client) == ["one"]
    assert await client.run("support", "four", thread_id="other") == "re: four"
    await eventually(lambda: worker.running == 0, what="every slot back")


async def test_a_cancel_that_is_swallowed_ends_a_waiting_run_all_the_same(
    serve: Serve, client: RunClient, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve(concurrency=2)
    go = echo.hold("one")
    first = asyncio.create_task(client.run("support", "one", thread_id="t"))
    await echo.called("one")
    asked: list[int] = []

    async def swallowing(self: Turn, *, only_own: bool = False) -> bool:
        asked.append(1)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0 if only_own or len(asked) == 1 else 30)
        return False

    monkeypatch.setattr(Turn, "_tried", swallowing)
    waiting = await client.submit("support", "two", thread_id="t")
    await eventually(lambda: len(asked) > 1, what="the run looking at the thread")
    await waiting.cancel()
    with pytest.raises(Cancelled):
        _raise(await waiting.result(timeout=10))
    go.set()
    await first


@pytest.mark.parametrize("of_agent", [False, True], ids=["the worker's", "the agent's"])
async def test_runs_that_wait_do_not_keep_the_one_they_wait_for_from_a_slot(
    serve: Serve, client: RunClient, echo: Echo, agent_class: type[Agent], of_agent: bool
) -> None:
    """The worker of the first one goes away. All of the other's slots would be taken by those
    that wait, if waiting took one."""
    slots = 8 if of_agent else 1
    agent_class.max_concurrent_runs = 1 if of_agent else None
    leaving = await serve(concurrency=slots)
    go = echo.hold("one")
    first = await client.submit("support", "one", thread_id="t")
    await echo.called("one")
    staying = await serve(concurrency=slots)
    waiting = [await client.submit("support", f"w{number}", thread_id="t") for number in range(3)]
    for run in waiting:
        await eventually(lambda run=run: _begun(client, run.message_id), what="a waiting run")
    await leaving.shutdown()
    await echo.called("one", 2)
    assert staying.running == 1
    go.set()
    results = [await finished(client, run.message_id) for run in (first, *waiting)]
    assert [result.status for result in results] == ["completed"] * 4
    assert (await questions(client))[0] == "one"
    assert sorted(await questions(client)) == ["one", "w0", "w1", "w2"]


@pytest.mark.parametrize("direct", [False, True], ids=["claimed", "direct"])
async def test_a_turn_of_a_run_that_is_gone_is_taken(
    serve: Serve, client: RunClient, direct: bool
) -> None:
    await serve()
    bucket = await client.connection.jetstream().key_value("RUNS")
    gone = "01981a60-0000-7000-8000-00000000dead"
    if not direct:
        record = (
            b'{"status":"failed","agent":"support","worker":"dead","attempt":1,'
            b'"counted_attempts":1,"sequence":1,"created_at":0,"updated_at":0}'
        )
        await bucket.create(f"default.{gone}", record)
    taken = f'{{"message_id":"{gone}","worker":"dead","taken_at":0}}'
    await bucket.create(KEY, taken.encode())
    assert await client.run("support", "one", thread_id="t", timeout=5) == "re: one"


async def test_a_turn_of_a_run_that_goes_on_is_not_taken(
    serve: Serve, client: RunClient, nc: Client
) -> None:
    """One with an open claim, whoever's; and one without, whose worker answers for it."""
    await serve()
    bucket = await client.connection.jetstream().key_value("RUNS")
    running = "01981a60-0000-7000-8000-00000000beef"
    alive = True

    async def answer(message: Msg) -> None:
        assert message.data.decode() == f"default.{running}"
        await message.respond(b"1" if alive else b"0")

    await nc.subscribe("workers.far.holds", cb=answer)
    await nc.flush()
    await bucket.create(KEY, f'{{"message_id":"{running}","worker":"far","taken_at":0}}'.encode())
    with pytest.raises(BusyThread):
        await client.run("support", "one", thread_id="t", on_busy_thread="reject")
    waiting = asyncio.create_task(client.run("support", "two", thread_id="t"))
    alive = False
    assert await waiting == "re: two"


async def test_a_run_that_was_taken_over_still_has_its_turn(
    serve: Serve, client: RunClient, echo: Echo
) -> None:
    """Its worker is cut off without a word: the claim stays open, the turn with it."""
    leaving = await serve(concurrency=1)
    go = echo.hold("one")
    first = await client.submit("support", "one", thread_id="t")
    await echo.called("one")
    assert await holder(client) == first.message_id
    await leaving.shutdown()
    assert await holder(client) == first.message_id
    await serve()
    second = await client.submit("support", "two", thread_id="t")
    await echo.called("one", 2)
    go.set()
    assert (await finished(client, second.message_id)).status == "completed"
    assert echo.seen["two"] == [["one", "re: one", "two"]]
    assert echo.seen["one"] == [["one"], ["one"]]


async def test_a_run_behind_another_one_goes_first_where_an_earlier_attempt_had_its_turn(
    serve: Serve, client: RunClient, nc: Client, echo: Echo
) -> None:
    """An attempt that is no more took the turn when the next one stood in line already."""
    worker = await serve()
    bucket = await client.connection.jetstream().key_value("RUNS")
    running = "01981a60-0000-7000-8000-00000000beef"

    async def answer(message: Msg) -> None:
        await message.respond(b"1")

    await nc.subscribe("workers.far.holds", cb=answer)
    await nc.flush()
    await bucket.create(KEY, f'{{"message_id":"{running}","worker":"far","taken_at":0}}'.encode())
    first = await client.submit("support", "one", thread_id="t")
    await eventually(lambda: _begun(client, first.message_id), what="the run")
    await eventually(lambda: worker.running == 0, what="its place in the line")
    second = await client.submit("support", "two", thread_id="t")
    await eventually(lambda: _begun(client, second.message_id), what="the run")
    await eventually(lambda: worker.running == 0, what="its place in the line")
    taken = f'{{"message_id":"{second.message_id}","worker":"far","taken_at":0}}'
    await bucket.put(KEY, taken.encode())
    assert (await finished(client, second.message_id)).status == "completed"
    assert (await finished(client, first.message_id)).status == "completed"
    assert await questions(client) == ["two", "one"]


@pytest.mark.parametrize(
    "options", [{"memory": False}, {"history": []}], ids=lambda options: next(iter(options))
)
async def test_a_run_without_memory_touches_nothing(
    serve: Serve, client: RunClient, nc: Client, echo: Echo, options: dict[str, Any]
) -> None:
    await serve()
    await client.run("support", "one", thread_id="t")
    touched: list[str] = []

    async def note(message: Msg) -> None:
        touched.append(message.subject)

    for subject in (
        "threads.>",
        "$KV.RUNS.*.thread.>",
        "$JS.API.*.*.THREADS",
        "$JS.API.*.*.*.THREADS",
        "$JS.API.DIRECT.GET.THREADS.>",
    ):
        await nc.subscribe(subject, cb=note)
    lock_reads: list[bytes] = []

    async def note_lock(message: Msg) -> None:
        if b".thread." in message.data:
            lock_reads.append(message.data)

    await nc.subscribe("$JS.API.STREAM.MSG.GET.KV_RUNS", cb=note_lock)
    await nc.flush()
    assert await client.run("support", "two", thread_id="t", **options) == "re: two"
    assert await client.ask("support", "two", thread_id="t", **options)
    await nc.flush()
    assert (touched, lock_reads) == ([], [])
    assert echo.seen["two"] == [["two"], ["two"]]

    # And that this would have been seen:
    await client.run("support", "three", thread_id="t")
    await eventually(lambda: len(touched) >= 4 and lock_reads, what="reads and writes")
    print("with memory:", sorted(touched), len(lock_reads))


async def test_a_deleted_thread_refuses_runs_until_it_is_restored(
    serve: Serve, client: RunClient, echo: Echo
) -> None:
    await serve()
    await client.run("support", "one", thread_id="t")
    await client.threads.delete("t")
    with pytest.raises(InvalidRequest, match="thread is deleted") as error:
        await client.run("support", "two", thread_id="t")
    assert error.value.field == "thread_id"
    assert echo.seen["two"] == []
    await client.threads.restore("t")
    assert await client.run("support", "three", thread_id="t") == "re: three"
    assert echo.seen["three"] == [["one", "re: one", "three"]]


async def test_a_run_that_fails_gives_its_turn_back(
    serve: Serve, client: RunClient, echo: Echo
) -> None:
    await serve()
    with pytest.raises(Exception, match="max_turns"):
        await client.run("support", "one", thread_id="t", max_turns=0)
    assert await holder(client) is None
    assert await client.run("support", "two", thread_id="t", on_busy_thread="reject") == "re: two"


async def _free(client: RunClient) -> bool:
    return await holder(client) is None


async def _begun(client: RunClient, message_id: str) -> bool:
    info = await client.connection.jetstream().stream_info(
        "RUN_EVENTS", subjects_filter=f"runs.default.{message_id}.events"
    )
    return bool(info.state.subjects)


def _raise(result: RunResult) -> None:
    error = error_of(result)
    assert error is not None
    raise error
