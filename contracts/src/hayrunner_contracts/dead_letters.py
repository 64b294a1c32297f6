"""Dead letters: requests that were given up on, looked at, run again, or thrown away.

A dead letter is the request as it came, bytes and headers, in the stream `DEAD_RUNS`, with headers
that say why it is there. Its number is its place in that stream.

Run again, it is a new run with a message id of its own, since a run has one result, once: the old
one keeps its failed result. The new id follows from the dead letter, so that the same one put into
the queue twice is one run.
"""

import uuid
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime

import msgspec
import nats.js.errors
from nats.aio.client import Client as Connection
from nats.js.api import RawStreamMsg

from hayrunner_contracts import headers, subjects
from hayrunner_contracts.codec import peek_message_id
from hayrunner_contracts.replay import JETSTREAM_API, NotProvisioned, StoredSubject
from hayrunner_contracts.submission import Submission

__all__ = ["DeadLetter", "DeadLetters", "NoDeadLetter", "NotWhole"]

_SUBJECT = "Nats-Subject"
_TIME = "Nats-Time-Stamp"
_ADDED = (headers.DEAD_REASON, headers.ORIGINAL_SUBJECT, headers.DEAD_SIZE, headers.MESSAGE_ID)
_STREAM_NOT_FOUND = 10059
_RETRY_TIMEOUT_S = 30.0


class NoDeadLetter(LookupError):
    """There is no such dead letter in this namespace."""


class NotWhole(ValueError):
    """The dead letter was cut when it was stored, and cannot be run again."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was given up on.

    `reason` is the error code of its failed result, `message_id` the run's, `at` when it was given
    up on, RFC 3339. `headers` are the request's own. `size` counts the bytes of the body as it
    came; `body` is all of it, but for one that was too large to be kept beside its headers.
    """

    number: int
    agent: str
    reason: str
    at: str
    message_id: str | None
    subject: str
    size: int
    headers: dict[str, str]
    body: bytes

    @property
    def whole(self) -> bool:
        return len(self.body) == self.size


class DeadLetters:
    """The dead letters of one namespace. `NotProvisioned` where there is no such stream;
    `nats.errors.Error` where the server does not answer."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        submission: Submission,
        *,
        api: str = JETSTREAM_API,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._submission = submission
        self._api = api
        self._jetstream = connection.jetstream(prefix=api)

    async def list(self, agent: str | None = None) -> AsyncGenerator[DeadLetter, None]:
        """All of them, or those of one agent, the oldest first."""
        stored = StoredSubject(
            self._connection, subjects.DEAD_RUNS, self._pattern(agent), api=self._api
        )
        sequence, more = 0, True
        while more:
            batch, more = await stored.after(sequence)
            for message in batch:
                yield _read(
                    message.headers.get(_SUBJECT, ""),
                    message.sequence,
                    message.headers.get(_TIME, ""),
                    message.headers,
                    message.data,
                )
                sequence = message.sequence

    async def get(self, number: int) -> DeadLetter:
        """One of them; `NoDeadLetter`."""
        if number < 1:
            raise self._none(number)
        try:
            found = await self._jetstream.get_msg(subjects.DEAD_RUNS, seq=number)
        except nats.js.errors.NotFoundError as error:
            if error.err_code == _STREAM_NOT_FOUND:
                raise _not_provisioned() from None
            raise self._none(number) from None
        if not (found.subject or "").startswith(f"dead.{self._namespace}."):
            raise self._none(number)
        return _read(
            found.subject or "", number, _time_of(found), found.headers or {}, found.data or b""
        )

    async def retry(self, number: int, *, timeout: float = _RETRY_TIMEOUT_S) -> str:
        """Put the request into the queue again and remove the dead letter; the new run's message
        id.

        `NoDeadLetter`, `NotWhole`; `Overloaded` where the queue is full and `UnknownAgent` where
        nobody ever served the agent: the dead letter is still there then.
        """
        letter = await self.get(number)
        if not letter.whole:
            raise NotWhole(f"dead letter {number} was cut, and cannot be run again")
        message_id = self._new_id(letter)
        sent_with = {**letter.headers, headers.MESSAGE_ID: message_id}
        if letter.message_id is not None:
            sent_with[headers.RETRY_OF] = letter.message_id
        agent = subjects.parse_requests_subject(letter.subject)[1]
        await self._submission.again(agent, letter.body, sent_with, message_id, timeout)
        await self._remove(number)
        return message_id

    async def drop(self, number: int) -> None:
        """Remove one for good; `NoDeadLetter`."""
        await self.get(number)
        await self._remove(number)

    async def _remove(self, number: int) -> None:
        try:
            await self._jetstream.delete_msg(subjects.DEAD_RUNS, number)
        except nats.js.errors.NotFoundError:
            return  # somebody else was faster
        except nats.js.errors.APIError:
            # What is gone already is answered with other codes, too.
            try:
                await self.get(number)
            except NoDeadLetter:
                return
            raise

    def _pattern(self, agent: str | None) -> str:
        if agent is None:
            return subjects.all_dead(self._namespace)
        return subjects.dead(self._namespace, agent)

    def _new_id(self, letter: DeadLetter) -> str:
        # With the time, as a stream that was removed and made anew counts from 1 again.
        name = f"hayrunner:{subjects.DEAD_RUNS}:{self._namespace}:{letter.number}:{letter.at}"
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))

    def _none(self, number: int) -> NoDeadLetter:
        return NoDeadLetter(f"there is no dead letter {number} in namespace {self._namespace}")


def _read(
    subject: str, number: int, at: str, stored_with: Mapping[str, str], body: bytes
) -> DeadLetter:
    agent = subject.rpartition(".")[2]
    own = {
        name: value
        for name, value in stored_with.items()
        if name not in _ADDED and not name.lower().startswith("nats-")
    }
    size = stored_with.get(headers.DEAD_SIZE, "")
    return DeadLetter(
        number=number,
        agent=agent,
        reason=stored_with.get(headers.DEAD_REASON, "unknown"),
        at=_seconds(at),
        message_id=stored_with.get(headers.MESSAGE_ID) or peek_message_id(body),
        subject=stored_with.get(headers.ORIGINAL_SUBJECT, ""),
        size=int(size) if size.isdecimal() else len(body),
        headers=own,
        body=body,
    )


def _time_of(message: RawStreamMsg) -> str:
    return "" if message.time is None else message.time.astimezone(UTC).isoformat()


def _seconds(text: str) -> str:
    """To the millisecond, whichever way the server told it."""
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return text
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _not_provisioned() -> NotProvisioned:
    return NotProvisioned(
        f"the server has no stream {subjects.DEAD_RUNS}: run `hayrunner init` or start a worker"
    )
