"""Commands are stored for their run, whatever state it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.client.wire_cutter import WireCutter

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_command
from hayrunner_contracts.commands import Approve, Cancel, Deny, Modify, RunCommand, Say
from hayrunner_contracts.errors import ClientTimeout
from hayrunner_contracts.replay import StoredSubject
from hayrunner_contracts.subjects import RUN_COMMANDS, commands
from hayrunner_contracts.testing import eventually

if TYPE_CHECKING:
    from tests.integration.client.conftest import NatsServer, ScriptedWorker

Connect = Callable[..., Awaitable[RunClient]]
Start = Callable[[Any], "asyncio.Task[Any]"]


async def test_commands_are_stored_for_the_run(client: RunClient, worker: ScriptedWorker) -> None:
    run = await client.submit("support", "hi")
    await run.cancel("changed my mind")
    await run.approve("call-1")
    await run.deny("call-2", feedback="no")
    await run.modify("call-3", {"amount": 5})
    await run.say("one more thing")
    await client.cancel(run.message_id)

    sent: list[object] = []
    subject = commands("default", run.message_id)
    subscription = await worker.jetstream.subscribe(
        subject, stream=RUN_COMMANDS, ordered_consumer=True
    )
    for _ in range(6):
        sent.append(decode_command((await subscription.next_msg(timeout=5)).data))
    await subscription.unsubscribe()
    assert sent == [
        Cancel(reason="changed my mind"),
        Approve(tool_call_id="call-1"),
        Deny(tool_call_id="call-2", feedback="no"),
        Modify(tool_call_id="call-3", tool_input={"amount": 5}),
        Say(text="one more thing"),
        Cancel(),
    ]


async def test_a_command_sent_while_the_server_is_away_is_stored_once_when_it_is_back(
    client: RunClient, worker: ScriptedWorker, server: NatsServer, tasks: Start
) -> None:
    run = await client.submit("support", "hi")
    server.stop()
    await eventually(lambda: not client.connection.is_connected)
    sending = tasks(run.cancel("while you were away"))
    await asyncio.sleep(0)
    assert not sending.done()
    await server.start()

    await asyncio.wait_for(sending, 15)
    assert await stored(worker, run.message_id) == [Cancel(reason="while you were away")]


async def test_a_command_in_flight_when_the_connection_is_cut_is_stored_once(
    worker: ScriptedWorker, cutter: WireCutter, connect: Connect
) -> None:
    client = await connect(url=cutter.url)
    run = await client.submit("support", "hi")
    sent: list[RunCommand] = []
    for number in range(10):
        command = Say(text=f"number {number}")
        sending = asyncio.ensure_future(run.send(command))
        if number % 2:
            await asyncio.sleep(0)
        cutter.cut()
        await asyncio.wait_for(sending, 15)
        sent.append(command)

    assert await stored(worker, run.message_id) == sent


@pytest.mark.parametrize("what", ["command", "request"])
async def test_what_cannot_be_stored_in_time_raises(
    client: RunClient, worker: ScriptedWorker, server: NatsServer, what: str
) -> None:
    run = await client.submit("support", "hi")
    server.stop()
    await eventually(lambda: not client.connection.is_connected)

    sending = (
        client.send_command(run.message_id, Cancel(), timeout=0.5)
        if what == "command"
        else client.submit("support", "hi", timeout=0.5)
    )
    with pytest.raises(ClientTimeout, match="not known to be stored in"):
        await sending


async def test_a_command_over_a_closed_connection_raises(
    client: RunClient, worker: ScriptedWorker
) -> None:
    run = await client.submit("support", "hi")
    await client.connection.close()

    with pytest.raises(ConnectionError, match="closed"):
        await run.approve("call-1")


async def stored(worker: ScriptedWorker, message_id: str) -> list[RunCommand]:
    """The commands that the stream holds for a run."""
    subject = commands("default", message_id)
    batch, _ = await StoredSubject(worker.connection, RUN_COMMANDS, subject).after(0)
    return [decode_command(message.data) for message in batch]
