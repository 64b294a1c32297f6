"""A worker that stood still wakes up, and speaks about a run that another one has by now."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client
from tests.integration.worker.conftest import Requester, Serve

from hayrunner.serving.claims import ClaimLost
from hayrunner.serving.connection import Link
from hayrunner.serving.publisher import Send
from hayrunner.serving.run_events import RunPublisher, read_stored_run
from hayrunner_contracts.codec import encode
from hayrunner_contracts.events import MessageEnd, TextChunk, Usage
from hayrunner_contracts.following import Event, MessageBuilder
from hayrunner_contracts.subjects import RUN_EVENTS
from hayrunner_contracts.testing import assert_valid_stream

# One kind of server is enough: what is looked at is the worker.
pytestmark = pytest.mark.parametrize("nats_server", ["process"], indirect=True)

MESSAGE_ID = "01981a60-0000-7000-8000-000000000009"


class Attempts:
    """Publishers of several attempts at one run, over one connection."""

    def __init__(self, nc: Client, requester: Requester) -> None:
        self.nc = nc
        self.requester = requester
        self.subject = f"runs.default.{MESSAGE_ID}.events"

    async def begin(
        self,
        attempt: int,
        *,
        discard_after: int = 1,
        send: Send | None = None,
        may_go_on: Callable[[], Awaitable[bool]] | None = None,
    ) -> RunPublisher:
        js, link = self.nc.jetstream(), Link()
        link.bind(self.nc)
        stored = await read_stored_run(self.nc, js, self.subject)
        publisher = RunPublisher(
            self.nc,
            js,
            link,
            namespace="default",
            message_id=MESSAGE_ID,
            stored=stored,
            send=send,
            may_go_on=may_go_on,
        )
        await publisher.begin(
            agent="support",
            thread_id=None,
            attempt=attempt,
            discard_after=discard_after,
            patience_s=5,
        )
        return publisher

    async def text(self) -> str:
        """What a consumer of the stream is left with; the stream is held to the rules."""
        stored: dict[int, Event] = {}
        for event in await self.requester.stored_events(MESSAGE_ID):
            stored.setdefault(event.seq, event)
        events = [event for _, event in sorted(stored.items())]
        assert_valid_stream(events)
        message = MessageBuilder()
        for event in events:
            message.add(event)
        return message.text


async def say(publisher: RunPublisher, *words: str) -> None:
    for word in words:
        await publisher.emit(TextChunk(content=word, step=1))


async def finish(publisher: RunPublisher) -> None:
    await publisher.emit(MessageEnd(finish_reason="stop", usage=Usage()))
    await publisher.verify(patience_s=5)
    await publisher.end(patience_s=5)


async def test_what_a_stale_worker_says_after_the_takeover_is_void(
    serve: Serve, requester: Requester, nc: Client
) -> None:
    await serve()
    attempts = Attempts(nc, requester)
    stale = await attempts.begin(1)
    await say(stale, "one ", "two ")
    await nc.flush()
    fresh = await attempts.begin(2)
    await say(stale, "stale ", "words ", "that ", "nobody ", "wants ")
    await nc.flush()
    await say(fresh, "right ", "text")
    await finish(fresh)
    assert await attempts.text() == "right text"


async def test_a_stale_worker_that_is_ahead_leaves_no_gap_and_no_text(
    serve: Serve, requester: Requester, nc: Client
) -> None:
    await serve()
    attempts = Attempts(nc, requester)
    stale = await attempts.begin(1)
    await say(stale, "one ")
    await nc.flush()
    fresh = await attempts.begin(2)
    await say(fresh, "right ")
    await fresh.verify(patience_s=5)
    # Numbers that the fresh one has not come to, one of them lost on its way.
    for seq in (6, 7, 9):
        await nc.publish(attempts.subject, encode(TextChunk(seq=seq, content="stale ")))
    await nc.flush()
    await say(fresh, "text")
    await finish(fresh)
    assert await attempts.text() == "right text"


async def test_a_stale_worker_that_speaks_while_it_is_taken_over_is_gone_on_after(
    serve: Serve, requester: Requester, nc: Client
) -> None:
    await serve()
    attempts = Attempts(nc, requester)
    stale = await attempts.begin(1)
    await say(stale, "one ")
    await nc.flush()
    js, link = nc.jetstream(), Link()
    link.bind(nc)
    stored = await read_stored_run(nc, js, attempts.subject)
    await say(stale, "two ", "three ")
    await nc.flush()
    fresh = RunPublisher(nc, js, link, namespace="default", message_id=MESSAGE_ID, stored=stored)
    await fresh.begin(agent="support", thread_id=None, attempt=2, patience_s=5)
    await say(fresh, "right text")
    await finish(fresh)
    assert await attempts.text() == "right text"


async def test_a_stale_worker_that_finds_others_words_among_its_own_falls_silent(
    serve: Serve, requester: Requester, nc: Client
) -> None:
    await serve()
    attempts = Attempts(nc, requester)

    async def no_longer() -> bool:
        return False

    stale = await attempts.begin(1, may_go_on=no_longer)
    await say(stale, "one ", "two ")
    await nc.flush()
    fresh = await attempts.begin(2)
    await say(fresh, "right ")
    await nc.flush()
    with pytest.raises(ClaimLost):
        await stale.verify(patience_s=5)
    await say(fresh, "text")
    await finish(fresh)
    assert await attempts.text() == "right text"


async def test_a_stale_worker_speaks_and_an_event_is_lost_and_still_no_number_is_missing(
    serve: Serve, requester: Requester, nc: Client
) -> None:
    await serve()
    attempts = Attempts(nc, requester)
    stale = await attempts.begin(1)
    await nc.flush()

    async def lossy(subject: str, data: bytes) -> None:
        if b"message_end" not in data:
            await nc.publish(subject, data)

    fresh = await attempts.begin(2, send=lossy)
    await say(stale, "one ", "stale ")
    await nc.flush()
    await say(fresh, "right ", "text")
    await finish(fresh)
    assert await attempts.text() == "right text"


async def test_a_stale_worker_that_speaks_just_before_the_end_is_seen(
    serve: Serve, requester: Requester, nc: Client
) -> None:
    await serve()
    attempts = Attempts(nc, requester)
    stale = await attempts.begin(1)
    await nc.flush()
    fresh = await attempts.begin(2)
    await say(fresh, "right ", "text")
    await fresh.emit(MessageEnd(finish_reason="stop", usage=Usage()))
    await fresh.verify(patience_s=5)
    await say(stale, *("stale " for _ in range(9)))
    await nc.flush()
    await fresh.end(patience_s=5)
    assert await attempts.text() == "right text"


async def test_what_the_stream_loses_just_before_the_end_is_stored_again(
    serve: Serve, requester: Requester, nc: Client
) -> None:
    """As a cluster was seen to do that lost its leader."""
    await serve()
    attempts = Attempts(nc, requester)
    publisher = await attempts.begin(1)
    await say(publisher, "right ", "text")
    await publisher.emit(MessageEnd(finish_reason="stop", usage=Usage()))
    await publisher.verify(patience_s=5, keep=True)
    js = nc.jetstream()
    for _ in range(2):
        last = await js.get_last_msg(RUN_EVENTS, attempts.subject)
        await js.delete_msg(RUN_EVENTS, last.seq or 0)
    await publisher.end(patience_s=5)
    assert await attempts.text() == "right text"


async def test_what_a_new_leader_lacks_when_the_end_is_stored_is_stored_behind_it(
    serve: Serve, requester: Requester, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve()
    monkeypatch.setattr("hayrunner.serving.run_events._ELECTION_S", -1.0)
    attempts = Attempts(nc, requester)
    publisher = await attempts.begin(1)
    await say(publisher, "right ", "text")
    await publisher.emit(MessageEnd(finish_reason="stop", usage=Usage()))
    await publisher.verify(patience_s=5, keep=True)
    store = publisher._publish_acked  # pyright: ignore[reportPrivateUsage]

    async def store_and_lose(*args: Any, **more: Any) -> bool:
        stored = await store(*args, **more)
        js = nc.jetstream()
        found = await js.get_last_msg(RUN_EVENTS, attempts.subject)
        await js.delete_msg(RUN_EVENTS, (found.seq or 0) - 1)
        return stored

    monkeypatch.setattr(publisher, "_publish_acked", store_and_lose)
    await publisher.end(patience_s=5)
    assert await attempts.text() == "right text"


async def test_a_process_that_stood_still_asks_for_its_claim_before_it_speaks(nc: Client) -> None:
    link = Link()
    link.bind(nc)
    asked: list[bool] = []

    async def may_go_on() -> bool:
        asked.append(True)
        return False

    publisher = RunPublisher(
        nc,
        nc.jetstream(),
        link,
        namespace="default",
        message_id="m",
        may_go_on=may_go_on,
        overdue=lambda: True,
    )
    await publisher.emit(TextChunk(content="stale"))
    assert (publisher.last_seq, asked) == (0, [])
    await publisher.flush()
    assert (publisher.last_seq, asked) == (0, [True])
