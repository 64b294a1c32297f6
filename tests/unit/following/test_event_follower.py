"""What arrives early, late or twice comes out in order and once."""

import random

import pytest

from hayrunner_contracts.events import MessageStart, StreamEnd, TextChunk, UnknownEvent
from hayrunner_contracts.following import Event, EventFollower
from hayrunner_contracts.message_ids import new_message_id

MESSAGE_ID = new_message_id()


def a_run(length: int) -> list[Event]:
    return [
        MessageStart(seq=1, message_id=MESSAGE_ID, agent="support"),
        *(TextChunk(seq=seq, content=str(seq)) for seq in range(2, length)),
        StreamEnd(seq=length),
    ]


def fed(follower: EventFollower, arriving: list[Event]) -> list[Event]:
    return [ready for event in arriving for ready in follower.feed(event)]


def test_events_in_order_pass_straight_through() -> None:
    follower = EventFollower()

    assert fed(follower, a_run(5)) == a_run(5)
    assert follower.done
    assert follower.gap is None


@pytest.mark.parametrize("seed", range(20))
def test_any_order_with_doubles_comes_out_as_the_run(seed: int) -> None:
    run = a_run(30)
    arriving = run + random.Random(seed).choices(run, k=20)
    random.Random(seed).shuffle(arriving)
    follower = EventFollower()

    assert fed(follower, arriving) == run
    assert follower.done
    assert not follower.waiting


def test_a_gap_names_what_is_missing_and_closes() -> None:
    run = a_run(8)
    follower = EventFollower()
    assert fed(follower, [run[0], run[4], run[5]]) == [run[0]]
    assert follower.gap == (2, 4)
    assert follower.waiting

    assert fed(follower, run[1:4]) == run[1:6]
    assert follower.gap is None


def test_a_late_reader_gets_what_comes_after_its_cursor() -> None:
    follower = EventFollower(after=6)

    assert [event.seq for event in fed(follower, a_run(9))] == [7, 8, 9]


def test_a_reader_that_has_seen_the_end_is_done() -> None:
    follower = EventFollower(after=9)

    assert fed(follower, a_run(9)) == []
    assert follower.done


def test_nothing_is_taken_after_the_end() -> None:
    follower = EventFollower()
    fed(follower, a_run(4))

    assert follower.feed(TextChunk(seq=5, content="late")) == []
    assert not follower.waiting


def test_what_was_held_beyond_the_end_is_dropped() -> None:
    follower = EventFollower()
    follower.feed(TextChunk(seq=6, content="stray"))

    assert len(fed(follower, a_run(4))) == 4
    assert not follower.waiting


def test_an_end_before_its_turn_is_held_and_told() -> None:
    run = a_run(4)
    follower = EventFollower()
    fed(follower, [run[0], run[3]])

    assert follower.end_is_held
    assert not follower.done


def test_the_hold_is_bounded_and_says_what_it_refused() -> None:
    follower = EventFollower(hold=3)
    early = [TextChunk(seq=seq, content="x") for seq in range(2, 8)]

    assert fed(follower, [*early]) == []
    assert follower.refused == 3
    assert [event.seq for event in fed(follower, a_run(8))] == list(range(1, 9))


def test_an_event_that_was_never_published_is_dropped() -> None:
    assert EventFollower().feed(TextChunk(content="seq is 0")) == []


def test_unknown_events_keep_their_place() -> None:
    run = a_run(4)
    run[1] = UnknownEvent(type="mood", seq=2, raw=b'{"type":"mood","seq":2}')

    assert fed(EventFollower(), run) == run


def test_a_negative_cursor_is_refused() -> None:
    with pytest.raises(ValueError, match="after"):
        EventFollower(after=-1)
