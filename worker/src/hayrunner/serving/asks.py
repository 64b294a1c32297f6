"""Direct requests: core request-reply, kept nowhere, answered by whoever has a free slot.

The lowest latency there is, and no redelivery: a worker that dies takes its direct runs with it,
and the requester's timeout tells. In mode `stream` the reply inbox gets the events, numbered
from 1 and ending in `stream_end`; in mode `answer` it gets the one result.
"""

import asyncio
import time
from dataclasses import dataclass, field

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from hayrunner.adapters.outcome import RunOutcome
from hayrunner.serving.blobs import Blobs
from hayrunner.serving.bus import Bus
from hayrunner.serving.commands import CommandInbox
from hayrunner.serving.drive import Drive, FrameSink, Stopper
from hayrunner.serving.failures import failed, failure
from hayrunner.serving.holdings import Holdings
from hayrunner.serving.publisher import EventPublisher
from hayrunner.serving.results import RunFacts, carried, make_result
from hayrunner.serving.served import AgentRegistry
from hayrunner.serving.slots import Slots
from hayrunner.telemetry.bus import attempt_span, note_attempt_end
from hayrunner.telemetry.log_fields import bind, bound
from hayrunner.telemetry.logs import cause_of, get_logger, new_ref
from hayrunner.telemetry.metrics import Metrics
from hayrunner.telemetry.model_meter import counting
from hayrunner.telemetry.tracing import is_on
from hayrunner_contracts import subjects
from hayrunner_contracts.codec import (
    RequestLimits,
    deadline_of,
    peek_message_id,
)
from hayrunner_contracts.errors import RunError, RunFailure
from hayrunner_contracts.events import MessageStart, StreamEnd, StreamEvent
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.requests import RunMode, RunRequest

__all__ = ["Asks"]

_log = get_logger(__name__)

_BLOB_PATIENCE_S = 10.0
_NOT_READ = "the request's content could not be read just now; try again"


class _Nowhere:
    """The sink of a run whose requester wants its result only."""

    async def emit(self, event: StreamEvent) -> None:
        return


@dataclass(kw_only=True)
class Asks:
    """Takes direct requests, one task each. One per worker."""

    bus: Bus
    registry: AgentRegistry
    slots: Slots
    holdings: Holdings
    metrics: Metrics
    blobs: Blobs
    limits: RequestLimits = field(default_factory=RequestLimits)
    draining: bool = False
    _running: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def receive(self, message: Msg, agent: str) -> None:
        """Start on a request and return: the subscription must not wait for a run."""
        if not message.reply:
            _log.warning("a direct request without a reply inbox was ignored", agent=agent)
            return
        task = asyncio.create_task(self._traced(message, agent), name=f"ask {agent}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    @property
    def running(self) -> set["asyncio.Task[None]"]:
        return set(self._running)

    async def _traced(self, message: Msg, agent: str) -> None:
        if not is_on():
            await self._answer(message, agent)
            return
        destination = subjects.ask(self.bus.namespace, agent)
        message_id = peek_message_id(message.data)
        with attempt_span(destination, message.headers or {}, message_id=message_id):
            await self._answer(message, agent)

    async def _answer(self, message: Msg, agent: str) -> None:
        with bound(agent=agent), counting(self.metrics):
            await self._answered(message, agent)

    async def _answered(self, message: Msg, agent: str) -> None:
        taken = False
        try:
            if self.draining or not self.slots.try_run(agent):
                await self._refuse(message, agent, failure("overloaded"))
                return
            taken = True
            await self._run(message, agent)
        except NatsError as error:
            _log.warning("NATS failed a direct run", agent=agent, **cause_of(error))
        # The message boundary: a fault of the worker's own is logged, and the requester told.
        except Exception as error:
            ref = new_ref()
            _log.error("the worker failed a direct run", agent=agent, ref=ref, **cause_of(error))
            text = f"an unexpected error; the worker's log has it as {ref}"
            cause = RunFailure(code="internal", message=text, ref=ref)
            await self._refuse(message, agent, cause)
        finally:
            if taken:
                self.slots.leave(agent)

    async def _run(self, message: Msg, agent: str) -> None:
        requested_at = time.time()
        try:
            request = await self.blobs.decode_request(
                message.data, message.headers, limits=self.limits
            )
        except RunError as error:
            await self._refuse(message, agent, error.to_wire())
            return
        except NatsError:
            # The request itself came: whoever sent it has a word to wait for.
            await self._refuse(message, agent, failure("storage_error", _NOT_READ))
            return
        message_id = request.message_id or new_message_id()
        bind(message_id=message_id, attempt=1)
        facts = _facts(request, agent, message_id, requested_at)
        publisher = EventPublisher(
            self.bus.nc, self.bus.link, message.reply, blobs=self.blobs.of(message_id)
        )
        streams = request.mode == "stream"
        # A run whose events go nowhere cannot tell anybody that it waits for a decision.
        stopper = Stopper(attended=streams)
        inbox = CommandInbox(
            self.bus,
            message_id,
            on_cancel=lambda reason: stopper.stop("cancelled", reason),
            on_command=stopper.tell,
        )
        self.metrics.run_started(agent, queue_wait_s=None)
        try:
            # First of all: whoever is told of the run may send it commands at once.
            await inbox.open(read_stored=False)
            if streams:
                await publisher.emit(_start(facts))
            sink = FrameSink(publisher if streams else _Nowhere(), whole=streams)
            outcome = await self._drive(request, facts, sink, stopper)
            await self._reply(message, facts, outcome, publisher, request.mode)
        except asyncio.CancelledError:
            # The worker goes away, and there is no queue that another one could take this from.
            await self._refuse(message, agent, failure("worker_lost"), request.mode, publisher)
            raise
        finally:
            await inbox.close()
            await publisher.close()
            self.metrics.run_left(agent, duration_s=time.time() - requested_at)

    async def _drive(
        self, request: RunRequest, facts: RunFacts, sink: FrameSink, stopper: Stopper
    ) -> RunOutcome:
        drive = Drive(
            agent=self.registry.get(facts.agent),
            agent_name=facts.agent,
            request=request,
            message_id=facts.message_id,
            deadline=deadline_of(request, facts.requested_at or time.time()),
        )
        with self.holdings.direct(facts.message_id):
            return await drive.run(sink, stopper)

    async def _refuse(
        self,
        message: Msg,
        agent: str,
        cause: RunFailure,
        mode: RunMode | None = None,
        publisher: EventPublisher | None = None,
    ) -> None:
        """Answer with a failure. In mode `stream`, which a request that cannot be read has not,
        as events: those that came before, if any, are followed by the end of the stream."""
        outcome = failed(cause)
        message_id = peek_message_id(message.data) or new_message_id()
        facts = RunFacts(message_id=message_id, agent=agent, requested_at=time.time())
        if mode == "stream" and publisher is not None:
            await FrameSink(publisher, whole=True).complete(outcome)
        await self._reply(message, facts, outcome, publisher, mode or "answer")

    async def _reply(
        self,
        message: Msg,
        facts: RunFacts,
        outcome: RunOutcome,
        publisher: EventPublisher | None,
        mode: RunMode,
    ) -> None:
        if mode == "stream" and publisher is not None:
            await publisher.emit(StreamEnd())
            await publisher.flush()
        else:
            result = make_result(facts, outcome, last_seq=0)
            _, data, more = await carried(self.bus, result, patience_s=_BLOB_PATIENCE_S)
            await self.bus.nc.publish(message.reply, data, headers=more or None)
        code = None if outcome.error is None else outcome.error.code
        self.metrics.run_ended(facts.agent, outcome=outcome.status, error_code=code)
        note_attempt_end(outcome.status, code)


def _start(facts: RunFacts) -> MessageStart:
    return MessageStart(
        message_id=facts.message_id, agent=facts.agent, thread_id=facts.thread_id, attempt=1
    )


def _facts(request: RunRequest, agent: str, message_id: str, requested_at: float) -> RunFacts:
    return RunFacts(
        message_id=message_id,
        agent=agent,
        requested_at=requested_at,
        started_at=requested_at,
        thread_id=request.thread_id,
        metadata=request.metadata,
        include_messages=request.include_messages,
    )
