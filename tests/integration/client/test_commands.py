"""Commands are stored for their run, whatever state it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_command
from hayrunner_contracts.commands import Approve, Cancel, Deny, Modify, Say
from hayrunner_contracts.subjects import RUN_COMMANDS, commands

if TYPE_CHECKING:
    from tests.integration.client.conftest import ScriptedWorker


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
