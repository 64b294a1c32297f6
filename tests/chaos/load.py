"""The requesters of a chaos run: they submit what is planned, watch, decide, cancel, speak.

Every call is repeated until it is acknowledged, as a service would; a request under one message
id is one request. What each consumer was given is kept for the checker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.consumers import Seen, consume
from tests.chaos.journal import Journal
from tests.chaos.plan import Call, Plan, PlannedRun, prompt_of

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.commands import Approve, Cancel, Deny, Modify, RunCommand, Say
from hayrunner_contracts.errors import ClientTimeout, RunError
from hayrunner_contracts.events import ToolApprovalRequest
from hayrunner_contracts.following import EventsLost

__all__ = ["Load"]

_TRY_AGAIN_S = 0.1
_READ_S = 120.0


@dataclass(kw_only=True)
class Load:
    """All requesters. `clients` are shared, `connect` makes a connection of one's own."""

    plan: Plan
    clients: Sequence[RunClient]
    connect: Callable[[], Awaitable[RunClient]]
    journal: Journal
    patience_s: float
    accepted: set[int] = field(default_factory=set[int])
    finished: set[int] = field(default_factory=set[int])
    seen: list[Seen] = field(default_factory=list[Seen])

    async def run(self, began: float) -> None:
        """Until every run has a result and every consumer is done, or `patience_s` seconds after
        the plan's end."""
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(self._play(run, began)) for run in self.plan.runs]
        limit = began + self.plan.length_s + self.patience_s - loop.time()
        _, late = await asyncio.wait(tasks, timeout=limit)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _play(self, run: PlannedRun, began: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, began + run.at_s - loop.time()))
        client = self.clients[run.number % len(self.clients)]
        watched = Seen(run=run.number, kind=run.consumer)
        self.seen.append(watched)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consume(run, client, self.connect, watched))
            await self._submit(client, run)
            self.accepted.add(run.number)
            if any(call.decision for step in run.steps for call in step.calls):
                tasks.create_task(self._decide(client, run))
            if run.cancel_after_s is not None:
                tasks.create_task(self._cancel(client, run, run.cancel_after_s))
            if run.say_after_s is not None:
                tasks.create_task(self._say(client, run, run.say_after_s))
            await _until_done(lambda: client.result(run.message_id, timeout=_READ_S))
            self.finished.add(run.number)

    async def _submit(self, client: RunClient, run: PlannedRun) -> None:
        arguments: dict[str, Any] = {
            "message_id": run.message_id,
            "include_messages": True,
            "metadata": {"run": str(run.number)},
        }
        if run.thread_id is not None:
            arguments["thread_id"] = run.thread_id
        if run.timeout_s is not None:
            arguments["timeout_s"] = run.timeout_s
        if run.agent == "clerk":
            arguments["tool_concurrency"] = run.tool_concurrency

        async def submit() -> None:
            await client.submit(
                run.agent, prompt_of(run), mode=run.mode, tools=run.mode == "answer", **arguments
            )

        await _until_done(submit)
        self.journal.write("accepted", run=run.number, message_id=run.message_id)

    async def _decide(self, client: RunClient, run: PlannedRun) -> None:
        """Answer what the run asks, each request once; ends when the run does."""
        asked: set[str] = set()
        async with asyncio.TaskGroup() as answers:
            told = Seen(run=run.number, kind="live")
            while True:
                try:
                    events = client.attach(
                        run.message_id, told.last, attempt=told.attempt, timeout=_READ_S
                    )
                    async for event in events:
                        told.take(event)
                        if isinstance(event, ToolApprovalRequest) and (
                            event.tool_call_id not in asked
                        ):
                            asked.add(event.tool_call_id)
                            answers.create_task(self._answer(client, run, event))
                    return
                except (ClientTimeout, RunError, EventsLost):
                    return
                except ConnectionError:
                    await asyncio.sleep(_TRY_AGAIN_S)

    async def _answer(self, client: RunClient, run: PlannedRun, event: ToolApprovalRequest) -> None:
        step, index = event.tool_input["step"], event.tool_input["index"]
        call = run.steps[step - 1].calls[index]
        await asyncio.sleep(call.decide_after_s)
        await self._send(client, run, _decision(call, event))
        self.journal.write(
            "decided", run=run.number, step=step, index=index, call_id=event.tool_call_id
        )

    async def _cancel(self, client: RunClient, run: PlannedRun, after_s: float) -> None:
        await asyncio.sleep(after_s)
        for _ in range(2 if run.cancel_twice else 1):
            await self._send(client, run, Cancel(reason="planned"))
        self.journal.write("cancelled", run=run.number)

    async def _say(self, client: RunClient, run: PlannedRun, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._send(client, run, Say(text="and one more thing"))
        self.journal.write("said", run=run.number)

    async def _send(self, client: RunClient, run: PlannedRun, command: RunCommand) -> None:
        await _until_done(lambda: client.send_command(run.message_id, command))


def _decision(call: Call, event: ToolApprovalRequest) -> RunCommand:
    call_id = event.tool_call_id
    if call.decision == "deny":
        return Deny(tool_call_id=call_id, feedback="not this one")
    if call.decision == "modify":
        changed = {**event.tool_input, "seconds": 0.0}
        return Modify(tool_call_id=call_id, tool_input=changed)
    return Approve(tool_call_id=call_id)


async def _until_done(act: Callable[[], Awaitable[Any]]) -> Any:
    """Try until it works: servers go away and come back here. Whoever waits bounds it."""
    while True:
        try:
            return await act()
        except (ClientTimeout, ConnectionError):
            await asyncio.sleep(_TRY_AGAIN_S)
