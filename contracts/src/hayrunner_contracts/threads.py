"""A conversation as it is kept: a log of small records on its subject, one per change.

Nothing is written over. What a thread is follows from its records in order, and every record
travels with a header, `Hayrunner-Thread`, that says where the thread stands after it
(`ThreadState`), so that threads can be listed without reading a message.
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from hayrunner_contracts.messages import ChatMessage

__all__ = [
    "THREAD_RECORD_TYPES",
    "Rating",
    "Thread",
    "ThreadCreated",
    "ThreadDeleted",
    "ThreadInfo",
    "ThreadMessages",
    "ThreadRated",
    "ThreadRating",
    "ThreadRecord",
    "ThreadRestored",
    "ThreadState",
]

T = TypeVar("T")

Rating = Literal["up", "down"] | float
"""A thumb, or a number on a scale of the rater's own."""

_Title = Annotated[str, Meta(max_length=200)]
_Comment = Annotated[str, Meta(max_length=4_000)]


class ThreadRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=""
):
    """What every record has. `at` is RFC 3339 in UTC."""

    at: str


class ThreadCreated(ThreadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="created"):
    """The thread was made before anything was said in it. Threads need not be: the first run
    makes its thread."""

    title: _Title | None = None


class ThreadMessages(ThreadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="messages"):
    """What one run added: what was asked, then what the run made of it. Once per message id; a
    second record with the same one does not count."""

    message_id: str
    agent: str | None = None
    messages: list[ChatMessage]


class ThreadRated(ThreadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="rated"):
    """Somebody rated what a run added. The last rating counts; null takes it back."""

    message_id: str
    rating: Rating | None = None
    comment: _Comment | None = None


class ThreadDeleted(ThreadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="deleted"):
    """From here on the thread has no messages and takes no runs. Its records stay."""


class ThreadRestored(ThreadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="restored"):
    """The thread is as it was before it was deleted."""


THREAD_RECORD_TYPES: dict[str, type[ThreadRecord]] = {
    str(record.__struct_config__.tag): record
    for record in (ThreadCreated, ThreadMessages, ThreadRated, ThreadDeleted, ThreadRestored)
}


class ThreadState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a thread stands after a record: the record's header `Hayrunner-Thread`, as JSON in
    ASCII. `runs` and `messages` count what was ever added."""

    created_at: str
    updated_at: str
    title: str | None = None
    deleted: bool = False
    runs: int = 0
    messages: int = 0


class ThreadInfo(ThreadState, frozen=True, kw_only=True, omit_defaults=True):
    """One thread of a list."""

    thread_id: str


class ThreadRating(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody thought of a run."""

    rating: Rating
    comment: str | None = None
    at: str


class Thread(ThreadInfo, frozen=True, kw_only=True, omit_defaults=True):
    """A thread as it is now. `log` has what each run added, oldest first, and `ratings` are by
    message id; both are empty while the thread is deleted."""

    log: list[ThreadMessages] = []
    ratings: dict[str, ThreadRating] = {}

    @property
    def conversation(self) -> list[ChatMessage]:
        """The messages of all runs, oldest first."""
        return [message for added in self.log for message in added.messages]
