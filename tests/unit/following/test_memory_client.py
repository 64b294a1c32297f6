"""The in-memory double behaves as the client does."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel

from hayrunner_contracts.commands import Approve, Cancel
from hayrunner_contracts.errors import (
    Cancelled,
    ClientTimeout,
    InternalError,
    InvalidRequest,
    Overloaded,
    RunFailure,
    UnknownAgent,
)
from hayrunner_contracts.events import (
    Error,
    MessageEnd,
    MessageStart,
    StreamEnd,
    StreamEvent,
    TextChunk,
    ToolApprovalRequest,
)
from hayrunner_contracts.following import MessageBuilder
from hayrunner_contracts.memory_client import InMemoryRunClient
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.runs import AgentClient
from hayrunner_contracts.testing import eventually


class Movie(BaseModel):
    title: str


async def test_a_text_is_streamed_and_returned() -> None:
    async with InMemoryRunClient({"support": "On its way."}) as client:
        seen = [event async for event in client.stream("support", "Where is order 7?")]
        assert await client.run("support", "Where?", tools=True) == "On its way."

    assert [type(event) for event in seen] == [MessageStart, TextChunk, MessageEnd, StreamEnd]
    assert [event.seq for event in seen] == [1, 2, 3, 4]
    assert [made.request.prompt for made in client.requests] == ["Where is order 7?", "Where?"]
    assert client.requests[1].request.tools


async def test_large_things_need_nothing_of_their_own() -> None:
    large = "x" * 3_000_000
    async with InMemoryRunClient({"support": large}) as client:
        assert await client.run("support", large) == large
        assert client.requests[0].request.prompt == large


async def test_a_value_becomes_an_instance() -> None:
    async with InMemoryRunClient({"extractor": {"title": "Alien"}}) as client:
        assert await client.run("extractor", "text", response_format=Movie) == Movie(title="Alien")
        assert await client.run("extractor", "text") == {"title": "Alien"}


async def test_text_that_is_json_is_read_where_json_was_asked_for() -> None:
    async with InMemoryRunClient({"extractor": '{"title": "Alien"}'}) as client:
        assert await client.run("extractor", "text", response_format=Movie) == Movie(title="Alien")


async def test_events_get_the_frame_and_numbers_they_lack() -> None:
    script = [TextChunk(content="a"), TextChunk(content="b")]
    async with InMemoryRunClient({"support": script}) as client:
        run = await client.submit("support", "hi")
        message = MessageBuilder()
        async for event in run.events():
            message.add(event)

        assert message.message_id == run.message_id
        assert message.text == "ab"
        assert message.done
        assert (await run.result()).last_seq == 5
        assert [event.seq async for event in run.events(after=3)] == [4, 5]


async def test_a_callable_sees_the_request() -> None:
    async def echo(request: RunRequest) -> str:
        return f"You said {request.prompt}"

    async with InMemoryRunClient({"echo": echo}) as client:
        assert await client.run("echo", "hello") == "You said hello"


async def test_a_result_is_returned_as_the_runs_own() -> None:
    result = RunResult(
        message_id="",
        agent="",
        status="failed",
        error=RunFailure(code="overloaded", message="busy", retryable=True),
    )
    async with InMemoryRunClient({"support": result}) as client:
        run = await client.submit("support", "hi", metadata={"k": "v"})
        outcome = await run.result()
        assert (outcome.message_id, outcome.metadata) == (run.message_id, {"k": "v"})
        with pytest.raises(Overloaded):
            await client.run("support", "hi")


@pytest.mark.parametrize("call", ["run", "ask"])
async def test_an_error_is_raised_by_calls_and_yielded_by_streams(call: str) -> None:
    async with InMemoryRunClient({"support": Overloaded("busy")}) as client:
        with pytest.raises(Overloaded, match="busy"):
            await getattr(client, call)("support", "hi")
        seen = [event async for event in client.stream("support", "hi")]

    assert [type(event) for event in seen] == [MessageStart, Error, MessageEnd, StreamEnd]


async def test_a_script_that_breaks_is_a_failed_run() -> None:
    def broken(_: RunRequest) -> str:
        raise ZeroDivisionError

    async with InMemoryRunClient({"support": broken}) as client:
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await client.run("support", "hi")


async def test_an_unknown_agent_is_refused() -> None:
    async with InMemoryRunClient() as client:
        with pytest.raises(UnknownAgent):
            await client.run("nobody-home", "hi")
        with pytest.raises(UnknownAgent):
            await anext(client.stream("nobody-home", "hi"))
        with pytest.raises(InvalidRequest):
            await client.submit("no.such", "hi")


async def test_a_script_can_wait_for_an_approval() -> None:
    async def refund(_: RunRequest) -> AsyncIterator[StreamEvent]:
        yield ToolApprovalRequest(tool_call_id="c1", tool_name="refund", tool_input={})
        await eventually(lambda: client.commands)
        yield TextChunk(content="Refunded.")

    client = InMemoryRunClient({"support": refund})
    async with client:
        run = await client.submit("support", "hi")
        async for event in run.events():
            if isinstance(event, ToolApprovalRequest):
                await run.approve(event.tool_call_id)
        assert (await run.result()).answer == "Refunded."
    assert client.commands == [(run.message_id, Approve(tool_call_id="c1"))]


async def test_a_cancel_ends_a_run_that_goes_on() -> None:
    async def endless(_: RunRequest) -> AsyncIterator[StreamEvent]:
        yield TextChunk(content="half an")
        await asyncio.Event().wait()

    async with InMemoryRunClient({"support": endless}) as client:
        run = await client.submit("support", "hi")
        seen: list[object] = []
        async for event in run.events():
            seen.append(type(event))
            if isinstance(event, TextChunk):
                await run.cancel("enough")
                await run.cancel()

        assert seen == [MessageStart, TextChunk, Error, MessageEnd, StreamEnd]
        result = await run.result()
        assert (result.status, result.answer) == ("cancelled", "half an")
        assert client.commands[0] == (run.message_id, Cancel(reason="enough"))


async def test_a_run_cancelled_before_it_began_ends_cancelled() -> None:
    async with InMemoryRunClient({"support": "hi"}) as client:
        run = await client.submit("support", "hi")
        await run.cancel()
        assert (await run.result()).status == "cancelled"

        early = new_message_id()
        await client.cancel(early)
        with pytest.raises(Cancelled):
            await client.run("support", "hi", message_id=early)


async def test_one_message_id_is_one_run() -> None:
    async with InMemoryRunClient({"support": "hi"}) as client:
        message_id = new_message_id()
        await client.submit("support", "hi", message_id=message_id)
        assert await client.run("support", "hi", message_id=message_id) == "hi"
        assert len(client.requests) == 1


async def test_a_reader_may_come_before_the_run() -> None:
    async with InMemoryRunClient({"support": "hi"}) as client:
        message_id = new_message_id()
        reading = asyncio.create_task(anext(client.attach(message_id)))
        await asyncio.sleep(0)
        await client.submit("support", "hi", message_id=message_id)
        assert isinstance(await reading, MessageStart)


async def test_what_does_not_come_ends_at_the_timeout() -> None:
    async with InMemoryRunClient() as client:
        with pytest.raises(ClientTimeout):
            await client.result(new_message_id(), timeout=0.01)
        with pytest.raises(ClientTimeout):
            await anext(client.attach(new_message_id(), timeout=0.01))


async def test_a_direct_request_is_recorded_as_one() -> None:
    async with InMemoryRunClient({"support": "hi"}) as client:
        result = await client.ask("support", "hi", headers={"traceparent": "00-1-2-01"})
        assert [type(event) async for event in client.ask_stream("support", "hi")][-1] is StreamEnd

    assert (result.answer, result.last_seq) == ("hi", 0)
    assert [made.direct for made in client.requests] == [True, True]
    assert client.requests[0].headers == {"traceparent": "00-1-2-01"}


def test_it_needs_no_nats_client() -> None:
    program = (
        "import sys; import hayrunner_contracts.memory_client;"
        "sys.exit(any(name.split('.')[0] == 'nats' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_it_has_the_interface_of_the_client() -> None:
    from hayrunner_contracts.client import RunClient

    for client in (RunClient, InMemoryRunClient):
        assert issubclass(client, AgentClient)
        assert not client.__abstractmethods__
