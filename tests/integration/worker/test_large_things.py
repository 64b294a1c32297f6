"""Requests, events and results that no message can carry: nobody who reads them can tell."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from tests.integration.worker.conftest import Requester, Serve, ServeFiles, kinds
from tests.integration.worker.scripted import ScriptedAgent, Session
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.embedded import EmbeddedServer
from hayrunner.serving.connection import Link
from hayrunner.serving.run_events import RunPublisher
from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.client import ReadSettings, RunClient
from hayrunner_contracts.errors import InvalidRequest, PayloadTooLarge, StorageFailed
from hayrunner_contracts.events import (
    Data,
    TextChunk,
    ToolCallStart,
    ToolInputComplete,
    ToolOutput,
)
from hayrunner_contracts.following import Event, MessageBuilder
from hayrunner_contracts.headers import BLOB, BLOB_DIGEST
from hayrunner_contracts.testing import assert_valid_stream, check_stream, eventually

LARGE = "äöü€ 0123456789 " * 130_000
"""About 3 MB in UTF-8."""
PARTS: list[dict[str, Any]] = [
    {"text": "a picture"},
    {"image": {"base64_image": "QUJD" * 500_000, "mime_type": "image/png"}},
]


@pytest.fixture(params=["", "max_payload: 65536"])
def server_arguments(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """The default server, and one that takes little at once."""
    config = tmp_path / "nats.conf"
    config.write_text(request.param)
    return ("-c", str(config))


@pytest.fixture
async def client(nc: Client) -> AsyncIterator[RunClient]:
    settings = ReadSettings(idle_check_s=0.2, patience_s=2.0)
    async with RunClient(nc, settings=settings) as made:
        yield made


async def call(session: Session, output: str | list[dict[str, Any]], call_id: str = "c1") -> None:
    emit = session.sink.emit
    await emit(ToolCallStart(tool_call_id=call_id, tool_name="look", step=1))
    await emit(
        ToolInputComplete(tool_call_id=call_id, tool_name="look", tool_input={"q": LARGE}, step=1)
    )
    await emit(ToolOutput(tool_call_id=call_id, tool_output=output, step=1))


def output_of(events: list[Event], call_id: str = "c1") -> Any:
    [found] = [e for e in events if isinstance(e, ToolOutput) and e.tool_call_id == call_id]
    return found.tool_output


async def test_a_large_request_runs_as_any_other(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    got: list[str | None] = []

    async def read(session: Session) -> str:
        got.append(session.request.prompt)
        return "read"

    await serve(ScriptedAgent(script=read))

    assert await client.run("support", LARGE) == "read"
    assert (await client.ask("support", LARGE)).answer == "read"
    assert check_stream([event async for event in client.stream("support", LARGE)]) == []
    assert check_stream([event async for event in client.ask_stream("support", LARGE)]) == []
    run = await client.submit("support", LARGE)
    assert (await run.result()).answer == "read"
    assert got == [LARGE] * 5
    await eventually(requester.queue_is_empty, what="an empty queue")


@pytest.mark.parametrize("output", [LARGE, PARTS], ids=["text", "binary"])
async def test_large_outputs_come_in_their_turn_live_and_late(
    serve: Serve, client: RunClient, output: str | list[dict[str, Any]]
) -> None:
    async def use(session: Session) -> str:
        await session.say("before")
        await call(session, output)
        await session.say("after")
        await session.sink.emit(Data(data_type="big", data={"a": [LARGE]}, step=1))
        return "done"

    await serve(ScriptedAgent(script=use))
    run = await client.submit("support", "hi")
    live = [event async for event in run.events()]
    late = [event async for event in run.events()]
    rest = [event async for event in run.events(after=4)]
    asked = [event async for event in client.ask_stream("support", "hi")]

    assert check_stream(live) == []
    assert [event.seq for event in live] == list(range(1, len(live) + 1))
    assert kinds(live) == [
        "message_start", "text_chunk", "tool_call_start", "tool_input_complete", "tool_output",
        "text_chunk", "data", "message_end", "stream_end",
    ]  # fmt: skip
    assert late == live
    assert rest == live[4:]
    assert asked[1:] == live[1:]
    assert output_of(live) == output


async def test_an_agents_tools_may_take_and_give_large_things(
    serve_files: ServeFiles, client: RunClient
) -> None:
    path = "x" * 2_000_000
    answer = "y" * 2_000_000
    await serve_files([call_turn(("read", {"path": path})), text_turn(answer)])
    run = await client.submit("support", LARGE, include_messages=True)
    events = [event async for event in run.events(timeout=30)]
    result = await run.result()

    assert_valid_stream(events)
    message = MessageBuilder()
    for event in events:
        message.add(event)
    [read] = message.tool_calls
    assert json.loads(read.input_text) == read.tool_input == read.executed_input == {"path": path}
    assert read.output == f"contents of {path}"
    assert message.text == result.answer == answer
    assert [m.role for m in result.messages or []] == ["assistant", "tool", "assistant"]
    assert [event async for event in run.events()] == events


async def test_who_knows_nothing_of_references_sees_numbers_and_types(
    serve: Serve, requester: Requester
) -> None:
    async def use(session: Session) -> str:
        await call(session, LARGE)
        return LARGE

    await serve(ScriptedAgent(script=use))
    message_id = await requester.publish(metadata={"a": "b"})
    result = await requester.ended(message_id)

    events = requester.events[message_id]
    assert check_stream(events) == []
    assert isinstance(events[3], ToolOutput)
    assert (events[3].tool_call_id, events[3].tool_output, events[3].step) == ("c1", "", 1)
    assert (result.status, result.answer, result.last_seq) == ("completed", None, len(events))
    assert result.metadata == {"a": "b"}
    assert result.usage is not None


@pytest.mark.parametrize("answer", [LARGE, {"rows": [{"text": LARGE}]}], ids=["text", "json"])
async def test_a_large_result_comes_whole(
    serve: Serve, requester: Requester, client: RunClient, answer: Any
) -> None:
    async def write(session: Session) -> Any:
        return answer

    await serve(ScriptedAgent(script=write))
    run = await client.submit("support", "hi", mode="answer")

    result = await run.result()
    assert (result.status, result.answer) == ("completed", answer)
    assert await run.result() == result
    assert (await client.ask("support", "hi")).answer == answer


async def test_a_large_result_that_comes_again_comes_whole_again(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    async def write(session: Session) -> Any:
        return LARGE

    agent = ScriptedAgent(script=write)
    await serve(agent)
    run = await client.submit("support", "hi", mode="answer")
    first = await run.result()
    await eventually(requester.queue_is_empty, what="an empty queue")
    again = await requester.nc.subscribe(f"runs.default.{run.message_id}.result")
    await requester.nc.flush()
    await requester.publish_raw(json.dumps({"prompt": "hi", "message_id": run.message_id}).encode())

    message = await again.next_msg(timeout=10)
    assert {BLOB, BLOB_DIGEST} <= set(message.headers or {})
    assert await run.result() == first
    assert agent.started == [run.message_id]


async def test_a_stub_that_the_stream_lacks_is_published_again_with_its_reference(
    serve: Serve, client: RunClient
) -> None:
    lost: set[int] = {2, 4, 5}

    def leaky(nc: Client, js: JetStreamContext, link: Link, **more: Any) -> RunPublisher:
        async def send(subject: str, data: bytes, headers: Any = None) -> None:
            if msgspec.json.decode(data)["seq"] not in lost:
                await nc.publish(subject, data, headers=headers)

        return RunPublisher(nc, js, link, send=send, **more)

    async def use(session: Session) -> str:
        await session.say("before")
        await call(session, LARGE)
        await session.say("after")
        return "done"

    await serve(ScriptedAgent(script=use), publisher=leaky)
    run = await client.submit("support", "hi")

    for _ in range(2):
        events = [event async for event in run.events()]
        assert check_stream(events) == []
        assert output_of(events) == LARGE


async def test_events_wait_behind_a_large_one_whoever_emits_them(
    serve: Serve, client: RunClient
) -> None:
    async def use(session: Session) -> str:
        await asyncio.gather(
            call(session, LARGE, "c1"), call(session, PARTS, "c2"), *map(session.say, "abcdef")
        )
        return "done"

    await serve(ScriptedAgent(script=use))
    events = [event async for event in client.stream("support", "hi")]

    assert check_stream(events) == []
    assert output_of(events, "c1") == LARGE
    assert output_of(events, "c2") == PARTS
    assert "".join(e.content for e in events if isinstance(e, TextChunk)) == "abcdef"


async def test_large_things_survive_a_restart_of_the_server(
    serve: Serve, client: RunClient, nats_server: EmbeddedServer
) -> None:
    go = asyncio.Event()

    async def use(session: Session) -> str:
        for number in range(4):
            await call(session, LARGE, f"c{number}")
            await go.wait()
        return LARGE

    await serve(ScriptedAgent(script=use))
    run = await client.submit("support", LARGE)

    async def read() -> list[Event]:
        return [event async for event in run.events(timeout=60)]

    reading = asyncio.create_task(read())
    await eventually(lambda: client.connection.stats["in_bytes"] > 3_000_000, what="the output")
    await nats_server.kill()
    await eventually(lambda: not client.connection.is_connected, what="the outage")
    go.set()
    await nats_server.start()

    events = await reading
    assert check_stream(events) == []
    assert [output_of(events, f"c{number}") for number in range(4)] == [LARGE] * 4
    assert (await run.result()).answer == LARGE


async def test_another_worker_goes_on_with_a_large_request_and_its_events(
    serve: Serve, client: RunClient, requester: Requester
) -> None:
    first = True
    stuck = asyncio.Event()

    async def use(session: Session) -> str:
        nonlocal first
        assert session.request.prompt == LARGE
        await call(session, LARGE, "c1")
        if first:
            first = False
            stuck.set()
            await asyncio.Event().wait()
        return LARGE

    one = await serve(ScriptedAgent(script=use))
    run = await client.submit("support", LARGE)
    await asyncio.wait_for(stuck.wait(), 10)
    await serve(ScriptedAgent(script=use))
    await one.shutdown()

    events = [event async for event in run.events()]
    resumed = kinds(events).index("run_resumed")
    assert check_stream(events) == []
    assert output_of(events[:resumed]) == output_of(events[resumed:]) == LARGE
    assert (await run.result()).answer == LARGE


async def test_a_request_larger_than_the_worker_takes_is_payload_too_large(
    serve: Serve, client: RunClient
) -> None:
    await serve(ScriptedAgent(), max_blob_bytes=2_000_000)
    with pytest.raises(PayloadTooLarge):
        await client.run("support", LARGE)
    with pytest.raises(PayloadTooLarge):
        await client.ask("support", LARGE)


async def test_an_output_larger_than_anything_may_be_fails_the_run(
    serve: Serve, client: RunClient
) -> None:
    async def use(session: Session) -> str:
        await call(session, LARGE)
        return "done"

    await serve(ScriptedAgent(script=use), max_blob_bytes=2_000_000)
    run = await client.submit("support", "hi")
    events = [event async for event in run.events()]

    assert kinds(events)[-3:] == ["error", "message_end", "stream_end"]
    result = await run.result()
    assert result.error is not None
    assert result.error.code == "payload_too_large"


class Watched(RunPublisher):
    """Says whether events wait."""

    @property
    def holds(self) -> bool:
        return bool(self._held)


async def test_a_last_output_that_cannot_be_stored_fails_the_run_with_its_frame(
    serve: Serve, client: RunClient, requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hayrunner.serving.publisher.PATIENCE_S", 0.1)
    monkeypatch.setattr("hayrunner.serving.publisher.PAUSE_S", 0.05)

    publishers: list[Watched] = []

    async def use(session: Session) -> str:
        await requester.js.delete_object_store("RUN_BLOBS")
        await session.sink.emit(Data(data_type="big", data={"a": LARGE}, step=1))
        await eventually(lambda: publishers[0].last_seq == 1 and not publishers[0].holds)
        return "done"

    def watched(nc: Client, js: JetStreamContext, link: Link, **more: Any) -> RunPublisher:
        publishers.append(Watched(nc, js, link, **more))
        return publishers[-1]

    await serve(ScriptedAgent(script=use), publisher=watched)
    run = await client.submit("support", "hi")
    events = [event async for event in run.events()]
    result = await run.result()

    assert kinds(events) == ["message_start", "error", "message_end", "stream_end"]
    assert check_stream(events) == []
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "storage_error")


async def test_content_that_is_gone_is_an_error_and_not_a_wait(
    serve: Serve, client: RunClient, requester: Requester
) -> None:
    async def use(session: Session) -> str:
        await call(session, LARGE)
        return LARGE

    await serve(ScriptedAgent(script=use))
    run = await client.submit("support", "hi")
    await requester.ended(run.message_id)
    await requester.js.purge_stream("OBJ_RUN_BLOBS")

    reading = run.events()
    assert kinds([await anext(reading), await anext(reading)]) == [
        "message_start",
        "tool_call_start",
    ]
    with pytest.raises(StorageFailed, match="event 3") as caught:
        await anext(reading)
    assert not caught.value.retryable
    with pytest.raises(StorageFailed, match="the result"):
        await run.result()
    assert kinds([event async for event in run.events(after=4)]) == ["message_end", "stream_end"]


async def test_an_object_without_a_message_is_nobodys(
    serve: Serve, client: RunClient, nc: Client
) -> None:
    """What a process leaves that dies after the content was stored and before the message was."""
    await serve(ScriptedAgent())
    run = await client.submit("support", "hi")
    await BlobStore(nc).put(f"default.{run.message_id}.event.2.0a", b"{}")
    assert check_stream([event async for event in run.events()]) == []
    with pytest.raises(InvalidRequest):
        await client.run("support", "")
