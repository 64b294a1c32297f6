"""Direct requests: core request-reply, stored nowhere, answered at once or not at all."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

import msgspec
import nats.errors
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg

from hayrunner_contracts.codec import decode_event, decode_result
from hayrunner_contracts.contents import Contents, EventContents
from hayrunner_contracts.errors import (
    ClientTimeout,
    Overloaded,
    RunError,
    RunFailure,
    error_from_wire,
    is_retryable,
)
from hayrunner_contracts.following import Event, EventFollower, EventsLost
from hayrunner_contracts.headers import STATUS_CODE
from hayrunner_contracts.mailbox import Mailbox
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import ask
from hayrunner_contracts.submission import Submission

__all__ = ["Asking"]

_NO_RESPONDERS = "503"


class Asking:
    """Sends direct requests and reads what comes back on a reply inbox of their own."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        submission: Submission,
        contents: Contents,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._submission = submission
        self._contents = contents

    async def answer(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> RunResult:
        """The one result. A reply that is none raises its error."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        subject, body, headers = await self._prepared(agent, request, headers, timeout)
        with self._submission.tracing.sending(subject, request.message_id, len(body)) as carried:
            left = max(0.1, end - loop.time())
            reply = await self._reply(agent, subject, body, {**carried, **headers}, left)
        left = max(0.1, end - loop.time())
        return await self._contents.result(reply.data, reply.headers, left)

    async def _reply(
        self, agent: str, subject: str, body: bytes, headers: dict[str, str], timeout: float
    ) -> Msg:
        try:
            reply = await self._connection.request(
                subject, body, timeout=timeout, headers=headers or None
            )
        except nats.errors.NoRespondersError:
            raise await self._nobody(agent) from None
        except nats.errors.TimeoutError:
            raise ClientTimeout(f"no answer within {timeout:g} s") from None
        except nats.errors.ConnectionClosedError:
            raise ConnectionError("the connection to NATS is closed") from None
        if STATUS_CODE in (reply.headers or {}):
            raise _refusal(reply)
        return reply

    async def events(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]:
        """The events, until `stream_end`."""
        subject, body, headers = await self._prepared(agent, request, headers, timeout)
        mailbox, follower = Mailbox(), EventFollower()
        contents = EventContents(self._contents)
        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(inbox, cb=mailbox.deliver)
        try:
            with self._submission.tracing.sending(
                subject, request.message_id, len(body)
            ) as carried:
                await self._connection.publish(
                    subject, body, reply=inbox, headers={**carried, **headers} or None
                )
            while not follower.done:
                message = await mailbox.next(timeout)
                if message is None:
                    raise self._silence(follower, timeout)
                for event in await self._read(agent, message, follower, contents):
                    yield await contents.whole(event, timeout)
        finally:
            if not self._connection.is_closed:
                await subscription.unsubscribe()

    async def _prepared(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> tuple[str, bytes, Mapping[str, str]]:
        if self._connection.is_closed:
            raise ConnectionError("the connection to NATS is closed")
        subject = ask(self._namespace, agent)
        body, headers = await self._submission.carried(agent, request, headers, timeout)
        return subject, body, headers

    async def _read(
        self, agent: str, message: Msg, follower: EventFollower, contents: EventContents
    ) -> list[Event]:
        headers = message.headers or {}
        if headers.get("Status") == _NO_RESPONDERS:
            raise await self._nobody(agent)
        if STATUS_CODE in headers:
            raise _refusal(message)
        try:
            event = decode_event(message.data)
        except ValueError:
            # A refusal may come as a result instead of events.
            raise _refusal(message) from None
        contents.note(event, headers, after=follower.last)
        ready = follower.feed(event)
        if follower.end_is_held and (gap := follower.gap) is not None:
            raise EventsLost(
                "events of a direct request were missed, and are stored nowhere",
                first=gap[0],
                last=gap[1],
            )
        return ready

    async def _nobody(self, agent: str) -> RunError:
        """Why nobody answers: nobody ever served the agent, or nobody does just now."""
        await self._submission.check_agent(agent)
        return Overloaded(f"no worker of agent {agent!r} is up")

    def _silence(self, follower: EventFollower, timeout: float) -> Exception:
        if self._connection.is_closed:
            return ConnectionError("the connection to NATS is closed")
        if (gap := follower.gap) is not None:
            return EventsLost(
                "events of a direct request were missed, and are stored nowhere",
                first=gap[0],
                last=gap[1],
            )
        return ClientTimeout(f"no event within {timeout:g} s")


def _refusal(reply: Msg) -> RunError:
    """The error in a reply that is neither a completed result nor an event."""
    try:
        result = decode_result(reply.data)
    except ValueError:
        result = None
    if result is not None and result.error is not None:
        return error_from_wire(result.error, result=result)
    try:
        return error_from_wire(msgspec.json.decode(reply.data, type=RunFailure))
    except ValueError:
        code = (reply.headers or {}).get(STATUS_CODE, "internal")
        text = "the worker refused the request without a reason this client can read"
        return error_from_wire(RunFailure(code=code, message=text, retryable=is_retryable(code)))
