"""A durable run: one request in plain JSON gives its events in order and one result."""

import asyncio
import json

from tests.integration.worker.conftest import Requester, Serve, kinds
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner_contracts.codec import decode_result
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import MessageStart, TextChunk
from hayrunner_contracts.stream_rules import check_stream
from hayrunner_contracts.subjects import derived_message_id
from hayrunner_contracts.testing import eventually


async def test_a_request_gives_its_events_in_order_and_one_result(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    message_id = await requester.publish(metadata={"order": "7"}, thread_id="t1")

    result = await requester.ended(message_id)

    events = requester.events[message_id]
    assert kinds(events) == [
        "message_start",
        *["text_chunk"] * 3,
        "message_end",
        "stream_end",
    ]
    assert check_stream(events) == []
    assert result.status == "completed"
    assert result.answer == "Hello, world"
    assert result.metadata == {"order": "7"}
    assert result.thread_id == "t1"
    assert result.last_seq == 6
    assert len(requester.results[message_id]) == 1
    assert await requester.stored_events(message_id) == events
    await eventually(requester.queue_is_empty, what="an empty queue")


async def test_an_answer_run_publishes_its_frame_only(serve: Serve, requester: Requester) -> None:
    await serve(ScriptedAgent())
    message_id = await requester.publish(mode="answer")

    result = await requester.ended(message_id)

    assert result.answer == "Hello, world"
    assert kinds(requester.events[message_id]) == ["message_start", "message_end", "stream_end"]


async def test_a_request_without_an_id_gets_one_from_its_place_in_the_queue(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    sequence = await requester.publish_raw(b'{"prompt": "hi"}')

    message_id = derived_message_id("AGENT_REQUESTS", sequence)
    assert (await requester.ended(message_id)).status == "completed"


async def test_many_runs_at_once_keep_their_events_apart(
    serve: Serve, requester: Requester
) -> None:
    async def echo(session: Session) -> str:
        for piece in range(50):
            await session.say(f"{session.message_id}:{piece} ")
            await asyncio.sleep(0)
        return session.message_id

    worker = await serve(ScriptedAgent(script=echo), concurrency=16)
    ids = [await requester.publish() for _ in range(60)]

    for message_id in ids:
        assert (await requester.ended(message_id)).answer == message_id
        events = requester.events[message_id]
        assert check_stream(events) == []
        texts = [event.content for event in events if isinstance(event, TextChunk)]
        assert texts == [f"{message_id}:{piece} " for piece in range(50)]
    await eventually(lambda: worker.running == 0, what="no run left")


async def test_two_agents_share_one_slot(serve: Serve, requester: Requester) -> None:
    await serve(ScriptedAgent("one"), ScriptedAgent("two"), ScriptedAgent("three"), concurrency=1)
    ids = [await requester.publish(agent) for agent in ("one", "two", "three") * 3]

    for message_id in ids:
        assert (await requester.ended(message_id)).status == "completed"


async def test_no_more_runs_than_slots_go_on_at_once(serve: Serve, requester: Requester) -> None:
    going = 0
    most = 0

    async def count(session: Session) -> str:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await asyncio.sleep(0.02)
        going -= 1
        return "done"

    await serve(ScriptedAgent(script=count), concurrency=3)
    ids = [await requester.publish() for _ in range(20)]
    for message_id in ids:
        await requester.ended(message_id)

    assert most == 3


async def test_a_script_that_raises_gives_a_safe_text_with_a_reference(
    serve: Serve, requester: Requester
) -> None:
    async def fail(session: Session) -> str:
        raise RuntimeError("secret of a customer")

    await serve(ScriptedAgent(script=fail))
    result = await requester.ended(await requester.publish())

    assert result.status == "failed"
    assert result.error is not None
    assert result.error.code == "internal"
    assert result.error.ref is not None
    assert result.error.ref in result.error.message
    assert "secret" not in json.dumps(result.error.message)
    assert kinds(requester.events[result.message_id])[-3:] == ["error", "message_end", "stream_end"]


async def test_an_agent_that_refuses_its_options_fails_the_run_with_their_field(
    serve: Serve, requester: Requester
) -> None:
    class Picky(ScriptedAgent):
        def open_session(self, *args: object, **more: object) -> Session:
            raise InvalidRequest("options.hooks: unknown hook", field="options.hooks")

    await serve(Picky())
    result = await requester.ended(await requester.publish())

    assert result.error is not None
    assert (result.error.code, result.error.field) == ("invalid_request", "options.hooks")


async def test_a_text_too_large_for_one_message_is_published_in_pieces(
    serve: Serve, requester: Requester
) -> None:
    text = "héllo \n" * 300_000

    async def talk(session: Session) -> str:
        await session.say(text)
        await session.say("end")
        return "done"

    await serve(ScriptedAgent(script=talk))
    message_id = await requester.publish()
    await requester.ended(message_id)

    events = requester.events[message_id]
    assert check_stream(events) == []
    pieces = [event.content for event in events if isinstance(event, TextChunk)]
    assert "".join(pieces) == text + "end"


async def test_an_answer_larger_than_anything_may_be_fails_and_says_so(
    serve: Serve, requester: Requester
) -> None:
    async def talk(session: Session) -> str:
        return "x" * 2_000_000

    await serve(ScriptedAgent(script=talk), max_blob_bytes=1_500_000)
    result = await requester.ended(await requester.publish())

    assert result.status == "failed"
    assert result.error is not None
    assert result.error.code == "payload_too_large"


async def test_the_first_event_comes_with_next_to_no_delay(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    message_id = await requester.publish()
    await requester.ended(message_id)
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    for _ in range(20):
        start = loop.time()
        message_id = await requester.publish()
        await eventually(lambda m=message_id: requester.events[m], what="an event")
        delays.append(loop.time() - start)
        await requester.ended(message_id)

    assert isinstance(requester.events[message_id][0], MessageStart)
    # Locally about 4 ms; an expired pull or a poll would show as tens or hundreds.
    assert sorted(delays)[10] < 0.05


async def test_a_finished_run_that_comes_again_is_answered_and_not_run(
    serve: Serve, requester: Requester
) -> None:
    agent = ScriptedAgent()
    await serve(agent)
    message_id = await requester.publish()
    first = await requester.ended(message_id)
    await eventually(requester.queue_is_empty, what="an empty queue")
    before = await requester.js.get_last_msg("RUN_RESULTS", f"runs.default.{message_id}.result")

    # Without the header the stream does not see that it is the same request.
    await requester.publish_raw(json.dumps({"prompt": "hi", "message_id": message_id}).encode())

    await eventually(lambda: len(requester.results[message_id]) == 2, what="a second answer")
    assert requester.results[message_id][1] == first
    await eventually(requester.queue_is_empty, what="an empty queue")
    assert agent.started == [message_id]
    after = await requester.js.get_last_msg("RUN_RESULTS", f"runs.default.{message_id}.result")
    assert (after.seq, decode_result(after.data or b"")) == (before.seq, first)
    assert kinds(requester.events[message_id]).count("stream_end") == 1
