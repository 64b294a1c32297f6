"""What a thread is, from its records. Pure: no bus, no clock but `now`."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Union

import msgspec

from hayrunner_contracts.errors import ContractError
from hayrunner_contracts.headers import MSG_ID, THREAD_STATE
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.threads import (
    THREAD_RECORD_TYPES,
    Thread,
    ThreadCreated,
    ThreadDeleted,
    ThreadMessages,
    ThreadRated,
    ThreadRating,
    ThreadRecord,
    ThreadRestored,
    ThreadState,
)

__all__ = ["ThreadLog", "now", "read_state", "written_state"]

_RECORDS: "msgspec.json.Decoder[ThreadRecord]" = msgspec.json.Decoder(
    Union[tuple(THREAD_RECORD_TYPES.values())]  # noqa: UP007 # pyright: ignore[reportArgumentType, reportCallIssue]
)
_STATES = msgspec.json.Decoder(ThreadState)


class _Head(msgspec.Struct):
    type: str


_HEADS = msgspec.json.Decoder(_Head)


def now() -> str:
    """The time of a record: RFC 3339, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def written_state(state: ThreadState) -> str:
    """The header's value: JSON in ASCII, as a header may hold."""
    return json.dumps(msgspec.to_builtins(state), separators=(",", ":"))


def read_state(header: str | None) -> ThreadState | None:
    """The state in a header; None where there is none, or none that can be read."""
    if header is None:
        return None
    try:
        return _STATES.decode(header)
    except msgspec.DecodeError:
        return None


class ThreadLog:
    """A thread as far as it was read. `last_sequence` is that of its last record in the stream,
    0 for a thread that nobody wrote to."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.last_sequence = 0
        self.state: ThreadState | None = None
        self._added: dict[str, ThreadMessages] = {}
        self._ratings: dict[str, ThreadRating] = {}
        self._ids: set[str] = set()

    @property
    def exists(self) -> bool:
        """Whether anything was ever written to it."""
        return self.state is not None

    @property
    def deleted(self) -> bool:
        """Whether it was deleted and not restored."""
        return self.state is not None and self.state.deleted

    def has_run(self, message_id: str) -> bool:
        """Whether the messages of that run are in it."""
        return message_id in self._added

    def has_record(self, record_id: str) -> bool:
        """Whether a record was stored with that `Nats-Msg-Id`."""
        return record_id in self._ids

    def messages(self, before_message_id: str | None = None) -> list[ChatMessage]:
        """All messages, oldest first; those before the run `before_message_id`, if that one is
        in the thread."""
        found: list[ChatMessage] = []
        for message_id, added in self._added.items():
            if message_id == before_message_id:
                break
            found.extend(added.messages)
        return found

    def thread(self) -> Thread | None:
        """The thread as its readers see it; None where nobody wrote to it."""
        if self.state is None:
            return None
        shown = not self.deleted
        return Thread(
            thread_id=self.thread_id,
            log=list(self._added.values()) if shown else [],
            ratings=dict(self._ratings) if shown else {},
            **{name: getattr(self.state, name) for name in ThreadState.__struct_fields__},
        )

    def take(self, data: bytes, *, sequence: int, headers: Mapping[str, str]) -> None:
        """A stored record. One of a type that this version does not know changes nothing here;
        `ContractError` for anything that is no record."""
        try:
            record = _RECORDS.decode(data)
        except msgspec.DecodeError as error:
            record = None
            if not _is_unknown(data):
                raise ContractError(f"not a thread record: sequence {sequence}") from error
        if record is not None:
            self.state = self.state_after(record)
            self._apply(record)
        # What was written before the oldest record that is still kept stands in the header only.
        self.state = read_state(headers.get(THREAD_STATE)) or self.state
        self.last_sequence = sequence
        if (record_id := headers.get(MSG_ID)) is not None:
            self._ids.add(record_id)

    def state_after(self, record: ThreadRecord) -> ThreadState:
        """Where the thread stands once `record` is its last one."""
        state = self.state or ThreadState(created_at=record.at, updated_at=record.at)
        state = msgspec.structs.replace(state, updated_at=record.at)
        match record:
            case ThreadCreated():
                return msgspec.structs.replace(state, title=record.title)
            case ThreadMessages() if record.message_id not in self._added:
                return msgspec.structs.replace(
                    state, runs=state.runs + 1, messages=state.messages + len(record.messages)
                )
            case ThreadDeleted() | ThreadRestored():
                return msgspec.structs.replace(state, deleted=isinstance(record, ThreadDeleted))
            case _:
                return state

    def _apply(self, record: ThreadRecord) -> None:
        if isinstance(record, ThreadMessages):
            self._added.setdefault(record.message_id, record)
        elif isinstance(record, ThreadRated):
            if record.rating is None:
                self._ratings.pop(record.message_id, None)
            else:
                self._ratings[record.message_id] = ThreadRating(
                    rating=record.rating, comment=record.comment, at=record.at
                )


def _is_unknown(data: bytes) -> bool:
    try:
        return _HEADS.decode(data).type not in THREAD_RECORD_TYPES
    except msgspec.DecodeError:
        return False
