"""What is known of runs is read from NATS, and decisions are told by what became of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hayrunner.cli.run_commands import Outcome, Verdict, cancel, decide
from hayrunner.cli.run_records import RunDetails, RunRecords, statuses_of
from hayrunner.cli.run_views import pending_calls
from hayrunner.embedded import EmbeddedServer
from hayrunner.errors import ConfigurationError
from hayrunner.serving.provisioning import provision
from hayrunner.settings import load_settings
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.codec import decode_command, encode
from hayrunner_contracts.commands import COMMAND_REFUSED, Approve, Cancel, Deny, Modify
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import (
    Data,
    MessageEnd,
    MessageStart,
    StreamEnd,
    StreamEvent,
    ToolApprovalRequest,
    ToolCallStart,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
)
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import claim_key, commands, events, result
from hayrunner_contracts.testing import eventually, numbered

AT = 1_767_323_045.0


class Nats:
    """A server with the streams, and what a worker would have written."""

    def __init__(self, client: RunClient) -> None:
        self.client = client
        self.js = client.connection.jetstream()
        self.records = RunRecords(client)

    async def claim(self, status: str, *, agent: str = "support", **more: Any) -> str:
        message_id = more.pop("message_id", None) or new_message_id()
        record = {
            "status": status, "agent": agent, "worker": "w1", "attempt": 2, "counted_attempts": 1,
            "sequence": 7, "created_at": AT, "updated_at": AT + 1, **more,
        }  # fmt: skip
        key = claim_key(self.client.namespace, message_id)
        await self.js.publish(f"$KV.RUNS.{key}", json.dumps(record).encode())
        return message_id

    async def tell(self, message_id: str, *told: StreamEvent, first: int = 1) -> None:
        for event in numbered(told, first=first):
            await self.js.publish(events("default", message_id), encode(event))

    async def end(self, message_id: str, status: Any = "completed", **more: Any) -> None:
        done = RunResult(message_id=message_id, agent="support", status=status, **more)
        await self.js.publish(result("default", message_id), encode(done))

    async def commands(self, message_id: str) -> list[Any]:
        sent: list[Any] = []
        info = await self.js.stream_info("RUN_COMMANDS")
        for seq in range(1, info.state.last_seq + 1):
            message = await self.js.get_msg("RUN_COMMANDS", seq=seq)
            if message.subject == commands("default", message_id):
                sent.append(decode_command(message.data or b""))
        return sent


@pytest.fixture
async def nats() -> AsyncIterator[Nats]:
    async with EmbeddedServer() as server, await RunClient.connect(server.url) as client:
        nats = Nats(client)
        await provision(nats.js, load_settings(nats_url=server.url, storage="memory"), ["support"])
        yield nats


async def ids(nats: Nats, *statuses: str, **more: Any) -> list[str]:
    found = await nats.records.recent(statuses=statuses_of(statuses), **more)
    return [record.message_id for record in found]


async def test_runs_are_listed_by_status_with_the_last_changed_first(nats: Nats) -> None:
    done = await nats.claim("completed")
    running = await nats.claim("running")
    handed_back = await nats.claim("waiting")
    parked = await nats.claim("waiting", parked={"wake_at": AT + 60, "commands_seen": 3})
    queued = [(await nats.client.submit("support", f"hi {n}")).message_id for n in range(2)]
    await nats.client.submit("support", "taken", message_id=running)
    refused = new_message_id()
    await nats.end(refused, "failed")
    await nats.claim("failed", agent="other", message_id=None)
    await nats.js.publish("$KV.RUNS.default.thread.t1", b'{"message_id": "x"}')
    await nats.js.publish("$KV.RUNS.elsewhere.x", b"{}")

    assert await ids(nats, "queued") == queued
    assert await ids(nats, "running") == [running]
    assert await ids(nats, "waiting") == [parked, handed_back]
    assert await ids(nats, "completed", "running") == [running, done]
    assert await ids(nats, "done", agent="support") == [refused, done]
    assert await ids(nats, limit=3) == [*queued, (await ids(nats, "done", limit=1))[0]]
    listed = {record.message_id: record for record in await nats.records.recent()}
    assert len(listed) == 8
    assert (listed[parked].parked, listed[handed_back].parked) == (True, False)
    assert listed[parked].wakes_at == "2026-01-02T03:05:05.000Z"
    assert listed[queued[0]].agent == "support"


async def test_many_runs_cost_no_more_than_those_that_are_shown(nats: Nats) -> None:
    """The claims of the others are larger than could be read in time."""
    for _ in range(40):
        await nats.claim("completed", kept={"seq": 4, "step": 2, "data": {"x": "y" * 200_000}})
    newest = await nats.claim("running", kept={"seq": 4, "step": 3, "data": [1]}, novelty={"a": 1})
    received = nats.client.connection.stats["in_bytes"]

    [record] = await nats.records.recent(limit=1)
    assert (record.message_id, record.step) == (newest, 3)
    assert nats.client.connection.stats["in_bytes"] - received < 40 * 200_000


async def test_a_namespace_sees_its_own_runs_only(nats: Nats) -> None:
    theirs = await nats.claim("running")
    other = RunClient(nats.client.connection, namespace="elsewhere")

    assert await RunRecords(other).recent() == []
    with pytest.raises(ConfigurationError, match="no run"):
        await RunRecords(other).find(theirs)


async def test_an_id_that_is_none_or_of_no_run_is_refused(nats: Nats) -> None:
    with pytest.raises(InvalidRequest, match="must be a UUID"):
        await nats.records.find("nonsense")
    with pytest.raises(ConfigurationError, match="no run"):
        await nats.records.find(new_message_id())
    with pytest.raises(ConfigurationError, match="--status takes one of"):
        statuses_of(["sleeping"])


async def test_a_run_is_found_whatever_is_left_of_it(nats: Nats) -> None:
    queued = (await nats.client.submit("support", "hi")).message_id
    claimed = await nats.claim("running")
    only_result, only_events = new_message_id(), new_message_id()
    await nats.end(only_result, "failed")
    await nats.tell(only_events, MessageStart(message_id=only_events, agent="support"))
    closing = await nats.claim("finishing")
    await nats.end(closing)

    statuses = [
        (await nats.records.find(one)).record.status
        for one in (queued, claimed, only_result, only_events, closing)
    ]
    assert statuses == ["queued", "running", "failed", "running", "completed"]


CALL: dict[str, Any] = {"tool_call_id": "c1", "tool_name": "refund"}
INPUT = {"order": 7}
OTHER: dict[str, Any] = {"tool_call_id": "c2", "tool_name": "refund"}


def asked(call: dict[str, Any]) -> list[StreamEvent]:
    return [
        ToolCallStart(step=1, **call),
        ToolInputComplete(step=1, tool_input=INPUT, **call),
        ToolApprovalRequest(step=1, tool_input=INPUT, **call),
    ]


async def a_run_that_asks(nats: Nats, *calls: dict[str, Any]) -> tuple[str, int]:
    """Its id, and the next seq."""
    message_id = await nats.claim("running")
    told = [MessageStart(message_id=message_id, agent="support")]
    told += [event for call in calls or (CALL,) for event in asked(call)]
    await nats.tell(message_id, *told)
    return message_id, len(told) + 1


async def test_what_waits_for_a_decision_is_shown(nats: Nats) -> None:
    message_id, _ = await a_run_that_asks(nats, CALL, OTHER)
    found: RunDetails = await nats.records.find(message_id)
    assert [request.tool_call_id for request in pending_calls(found.message)] == ["c1", "c2"]


RAN = ToolExecutionCommitted(step=1, tool_input=INPUT, **CALL)
OUTPUT = ToolOutput(step=1, tool_call_id="c1", tool_output="done")
DENIED = ToolOutput(step=1, tool_call_id="c1", tool_output="not approved", is_error=True)
NOT_TAKEN = Data(
    data_type=COMMAND_REFUSED,
    data={"command": "modify", "tool_call_id": "c1", "reason": "order: must be a number"},
)
APPROVE, DENY = Approve(tool_call_id="c1"), Deny(tool_call_id="c1")
MODIFY = Modify(tool_call_id="c1", tool_input={"order": "x"})


@pytest.mark.parametrize(
    ("decision", "told", "outcome"),
    [
        (APPROVE, [RAN, OUTPUT], Outcome(Verdict.TAKEN)),
        (DENY, [DENIED], Outcome(Verdict.TAKEN)),
        (MODIFY, [NOT_TAKEN], Outcome(Verdict.REFUSED, "order: must be a number")),
        (DENY, [RAN, OUTPUT], Outcome(Verdict.REFUSED, "somebody else approved the call")),
        (APPROVE, [DENIED], Outcome(Verdict.REFUSED, "the call was denied, or came too late")),
        (
            APPROVE,
            [MessageEnd(finish_reason="cancelled"), StreamEnd()],
            Outcome(Verdict.REFUSED, "the run ended without it"),
        ),
    ],
)
async def test_a_decision_is_confirmed_by_what_the_run_does(
    nats: Nats, decision: Any, told: list[StreamEvent], outcome: Outcome
) -> None:
    message_id, seq = await a_run_that_asks(nats)

    async def work() -> None:
        await eventually(lambda: _has_command(nats, message_id))
        await nats.tell(message_id, *told, first=seq)

    found, _ = await asyncio.gather(decide(nats.client, message_id, decision, wait_s=10), work())
    assert found == outcome
    assert await nats.commands(message_id) == [decision]


async def _has_command(nats: Nats, message_id: str) -> bool:
    return bool(await nats.commands(message_id))


async def test_a_decision_of_which_nothing_is_seen_in_time_is_stored(nats: Nats) -> None:
    message_id, _ = await a_run_that_asks(nats)
    verdict, reason = await decide(nats.client, message_id, APPROVE, wait_s=0.2)
    assert verdict is Verdict.UNCONFIRMED
    assert "nothing seen of it within 0.2 s" in str(reason)

    message_id, _ = await a_run_that_asks(nats, CALL, OTHER)
    verdict, reason = await decide(nats.client, message_id, APPROVE, wait_s=0.2)
    assert (verdict, reason) == (Verdict.STORED, "the step goes on after a decision on c2")


async def test_nothing_is_sent_where_there_is_nothing_to_decide(nats: Nats) -> None:
    message_id, seq = await a_run_that_asks(nats)
    with pytest.raises(ConfigurationError, match="waiting: c1"):
        await decide(nats.client, message_id, Approve(tool_call_id="c9"), wait_s=1)
    await nats.tell(message_id, RAN, OUTPUT, first=seq)
    verdict, _ = await decide(nats.client, message_id, APPROVE, wait_s=1)
    assert verdict is Verdict.REFUSED
    await nats.claim("completed", message_id=message_id)
    assert await decide(nats.client, message_id, APPROVE, wait_s=1) == Outcome(
        Verdict.REFUSED, "the run has ended: completed"
    )
    assert await nats.commands(message_id) == []

    await decide(nats.client, message_id, APPROVE, wait_s=0)
    assert await nats.commands(message_id) == [APPROVE]


async def test_a_cancel_is_confirmed_by_the_result(nats: Nats) -> None:
    message_id = await nats.claim("running")

    async def work() -> None:
        await eventually(lambda: _has_command(nats, message_id))
        await nats.end(message_id, "cancelled")

    outcome, _ = await asyncio.gather(cancel(nats.client, message_id, "why", wait_s=10), work())
    assert outcome == Outcome(Verdict.TAKEN)
    assert await nats.commands(message_id) == [Cancel(reason="why")]
    assert await cancel(nats.client, message_id, "again", wait_s=10) == Outcome(Verdict.TAKEN)
    assert len(await nats.commands(message_id)) == 1


async def test_a_cancel_that_came_too_late_or_is_not_confirmed_says_so(nats: Nats) -> None:
    done = await nats.claim("completed")
    await nats.end(done)
    assert await cancel(nats.client, done, "why", wait_s=1) == Outcome(
        Verdict.REFUSED, "the run had already ended: completed"
    )
    queued = (await nats.client.submit("support", "hi")).message_id
    verdict, reason = await cancel(nats.client, queued, "why", wait_s=0.2)
    assert verdict is Verdict.UNCONFIRMED
    assert "ends when a worker comes to it" in str(reason)
    with pytest.raises(ConfigurationError, match="no run"):
        await cancel(nats.client, new_message_id(), "why", wait_s=1)
