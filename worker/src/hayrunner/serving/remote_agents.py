"""Agents elsewhere, for agents here that call them as subagents: durable runs over the bus."""

import asyncio
import uuid
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from nats.errors import Error as NatsError

from hayrunner.adapters.roster import OnEvent, RemoteCall
from hayrunner.serving.bus import Bus
from hayrunner.telemetry.bus import request_tracing
from hayrunner.telemetry.logs import cause_of, get_logger
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import ClientTimeout, InternalError, RunError
from hayrunner_contracts.following import EventsLost
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subagents import SUBAGENT_PATH

__all__ = ["BusAgents"]

_log = get_logger(__name__)

_SILENCE_S = 600.0
"""How long a remote run may say nothing, its time in the queue included."""
_RESULT_S = 30.0
_CANCEL_S = 3.0


class BusAgents:
    """See `adapters.roster.RemoteAgents`. Uses the worker's own connection."""

    def __init__(self, bus: Bus) -> None:
        self._client = RunClient(bus.nc, namespace=bus.namespace, tracing=request_tracing())

    async def run(self, call: RemoteCall, on_event: OnEvent) -> RunResult:
        message_id = new_message_id() if call.key is None else _derived_id(call.key)
        try:
            return await self._follow(call, message_id, on_event)
        except asyncio.CancelledError:
            if call.key is None or call.is_over():
                await self._cancel(message_id, "the run that asked was ended")
            raise
        except ClientTimeout as error:
            await self._cancel(message_id, "nothing was heard of it")
            raise InternalError("nothing was heard of the agent for too long") from error
        # Whatever else keeps the bus from telling (no connection, events gone by age) is the
        # caller's failed tool call, not its failed run.
        except (NatsError, ConnectionError, EventsLost) as error:
            _log.warning("a subagent could not be called", subagent=call.agent, **cause_of(error))
            raise InternalError("the agent could not be called over the bus") from error

    async def _follow(self, call: RemoteCall, message_id: str, on_event: OnEvent) -> RunResult:
        await self._client.submit(
            call.agent,
            call.prompt,
            message_id=message_id,
            user=call.user,
            metadata={SUBAGENT_PATH: "/".join(call.path)},
            deadline=_time(call.deadline),
            **_options(call),
        )
        # From its beginning: an earlier attempt may have asked, and the answer may be there.
        stream = self._client.attach(message_id, timeout=_SILENCE_S)
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    await on_event(event)
        except EventsLost:
            _log.warning(
                "events of a subagent are lost", subagent=call.agent, subagent_run=message_id
            )
            return await self._client.result(message_id, timeout=_SILENCE_S)
        return await self._client.result(message_id, timeout=_RESULT_S)

    async def _cancel(self, message_id: str, reason: str) -> None:
        """Best effort: where NATS is away, the remote run goes on to its own end or deadline."""
        try:
            await self._client.cancel(message_id, reason, timeout=_CANCEL_S)
        except (RunError, ClientTimeout, NatsError, ConnectionError) as error:
            _log.warning("a subagent was not cancelled", subagent_run=message_id, **cause_of(error))


def _derived_id(key: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"hayrunner:subagent:{key}"))


def _options(call: RemoteCall) -> dict[str, Any]:
    """Only what the parent's run has: the rest is the remote agent's own."""
    # Said either way: an agent's own setting must not record what this run does not.
    options: dict[str, Any] = {"record_content_telemetry": call.record_content_telemetry}
    if call.tool_context:
        options["tool_context"] = dict(call.tool_context)
    if call.token_budget is not None:
        options["token_budget"] = call.token_budget
    return options


def _time(deadline: float | None) -> datetime | None:
    return None if deadline is None else datetime.fromtimestamp(deadline, UTC)
