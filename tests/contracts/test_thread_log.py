"""A thread from its records."""

import msgspec
import pytest

from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import ContractError
from hayrunner_contracts.examples import THREAD_RECORDS
from hayrunner_contracts.headers import THREAD_STATE
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.thread_log import ThreadLog, now, read_state, written_state
from hayrunner_contracts.threads import (
    ThreadCreated,
    ThreadDeleted,
    ThreadMessages,
    ThreadRecord,
    ThreadRestored,
)

SAID = ThreadMessages(
    at=now(),
    message_id="01981a60-0000-7000-8000-000000000001",
    messages=[ChatMessage.user("hi"), ChatMessage.assistant("hello")],
)


def log_of(*records: ThreadRecord) -> ThreadLog:
    log = ThreadLog("t")
    for sequence, record in enumerate(records, start=1):
        log.take(encode(record), sequence=sequence, headers={})
    return log


def test_a_thread_without_records_does_not_exist() -> None:
    log = ThreadLog("t")
    assert (log.exists, log.thread(), log.messages(), log.last_sequence) == (False, None, [], 0)


def test_a_second_record_of_one_run_does_not_count() -> None:
    log = log_of(SAID, SAID)
    assert log.state is not None
    assert (log.state.runs, log.state.messages, len(log.messages())) == (1, 2, 2)
    assert log.last_sequence == 2


def test_the_messages_before_a_run_are_those_of_the_runs_before_it() -> None:
    other = msgspec.structs.replace(SAID, message_id="other")
    log = log_of(SAID, other)
    assert len(log.messages()) == 4
    assert log.messages("other") == SAID.messages
    assert log.messages(SAID.message_id) == []
    assert len(log.messages("unheard of")) == 4


def test_a_deleted_thread_shows_nothing_and_loses_nothing() -> None:
    log = log_of(SAID, THREAD_RECORDS["rated"], ThreadDeleted(at=now()))
    thread = log.thread()
    assert thread is not None
    assert (thread.deleted, thread.log, thread.ratings, thread.conversation) == (True, [], {}, [])
    log.take(encode(ThreadRestored(at=now())), sequence=4, headers={})
    thread = log.thread()
    assert thread is not None
    assert (thread.deleted, len(thread.conversation), len(thread.ratings)) == (False, 2, 1)


def test_a_rating_of_null_takes_a_rating_back() -> None:
    rated = THREAD_RECORDS["rated"]
    log = log_of(SAID, rated, msgspec.structs.replace(rated, rating=None))
    thread = log.thread()
    assert thread is not None
    assert thread.ratings == {}


def test_a_header_is_ascii_and_counts_more_than_what_is_left_of_the_records() -> None:
    whole = log_of(ThreadCreated(at=now(), title="Über ✓\nzwei"), SAID)
    assert whole.state is not None
    header = written_state(whole.state)
    assert header.isascii()
    assert "\n" not in header
    assert read_state(header) == whole.state

    rest = ThreadLog("t")
    rest.take(encode(SAID), sequence=2, headers={THREAD_STATE: header})
    assert rest.state == whole.state


@pytest.mark.parametrize("header", [None, "", "{}", "[1]", "x"])
def test_a_header_that_cannot_be_read_is_as_none(header: str | None) -> None:
    assert read_state(header) is None


def test_a_record_of_an_unknown_type_moves_on_and_changes_nothing() -> None:
    log = log_of(SAID)
    before = log.state
    log.take(b'{"type":"pinned","at":"x"}', sequence=7, headers={})
    assert (log.state, log.last_sequence) == (before, 7)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"type":"messages"}', b"\xff"])
def test_what_is_no_record_is_an_error_without_its_content(data: bytes) -> None:
    with pytest.raises(ContractError, match="not a thread record: sequence 3"):
        ThreadLog("t").take(data, sequence=3, headers={})
