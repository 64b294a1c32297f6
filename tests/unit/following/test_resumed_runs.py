"""A run that another worker goes on with, read by those who saw what was never stored."""

import random

import pytest

from hayrunner_contracts.events import (
    MessageEnd,
    MessageStart,
    RunResumed,
    StreamEnd,
    StreamEvent,
    TextChunk,
)
from hayrunner_contracts.following import Event, EventFollower, MessageBuilder, followed_events
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.testing import check_stream, effective_events

START = MessageStart(seq=1, message_id=new_message_id(), agent="support")


def texts(first: int, last: int, mark: str = "a") -> list[Event]:
    return [TextChunk(seq=seq, step=1, content=f"{mark}{seq} ") for seq in range(first, last + 1)]


def resumed(seq: int, attempt: int, discard_after: int = 1) -> RunResumed:
    return RunResumed(seq=seq, attempt=attempt, discard_after=discard_after)


def ending(seq: int) -> list[Event]:
    return [MessageEnd(seq=seq, finish_reason="stop"), StreamEnd(seq=seq + 1)]


def fed(follower: EventFollower, arriving: list[Event]) -> list[Event]:
    return [ready for event in arriving for ready in follower.feed(event)]


# Three events were stored, five were seen when worker and server died.
SEEN = [START, *texts(2, 5)]
STORED = [START, *texts(2, 3), resumed(4, 2), *texts(5, 8, "b"), *ending(9)]


def test_a_reader_ahead_of_what_is_stored_goes_back_with_the_run() -> None:
    follower = EventFollower()
    assert fed(follower, SEEN) == SEEN

    assert fed(follower, STORED[3:]) == STORED[3:]
    assert follower.done
    assert check_stream([*SEEN, *STORED[3:]]) == []


def test_the_message_is_that_of_the_stored_run() -> None:
    ahead, late = MessageBuilder(), MessageBuilder()
    for event in [*SEEN, *STORED[3:]]:
        ahead.add(event)
    for event in STORED:
        late.add(event)

    assert ahead.text == late.text == "b5 b6 b7 b8 "
    assert ahead.events == late.events
    assert (ahead.attempt, ahead.last_seq, ahead.done) == (2, 10, True)


def test_reading_the_stream_again_from_its_beginning_finds_a_missed_resumption() -> None:
    follower = EventFollower()
    fed(follower, SEEN)

    assert fed(follower, STORED) == STORED[3:]


def test_a_resumption_that_was_seen_is_a_double() -> None:
    follower = EventFollower()
    fed(follower, STORED[:6])

    assert fed(follower, [*STORED[:6], *STORED[6:]]) == STORED[6:]


def test_a_resumption_beyond_a_gap_waits_and_what_was_held_of_the_dead_worker_goes() -> None:
    follower = EventFollower()
    fed(follower, [START, *texts(2, 2), *texts(5, 7)])
    assert follower.feed(resumed(4, 2)) == []
    assert follower.dropped
    fed(follower, texts(5, 6, "b"))

    assert fed(follower, texts(3, 3)) == [*texts(3, 3), resumed(4, 2), *texts(5, 6, "b")]


def test_a_third_attempt_goes_back_below_the_second() -> None:
    follower = EventFollower()
    arriving = [*SEEN, resumed(4, 2), *texts(5, 9, "b"), resumed(6, 3), *texts(7, 7, "c")]
    assert fed(follower, arriving) == arriving
    assert check_stream([*arriving, *ending(8)]) == []

    kept = effective_events([*arriving, *ending(8)])
    assert [event.seq for event in kept] == [1, 6, 7, 8, 9]


def test_a_second_attempt_read_after_the_third_was_held_is_taken_in_its_turn() -> None:
    follower = EventFollower()
    fed(follower, SEEN)
    assert fed(follower, [resumed(12, 3), *texts(13, 13, "c")]) == []

    stored = [START, *texts(2, 3), resumed(4, 2), *texts(5, 11, "b")]
    stored += [resumed(12, 3), *texts(13, 13, "c")]
    assert fed(follower, stored) == stored[3:]


def test_the_first_stored_of_two_events_with_one_number_counts() -> None:
    stored = [START, *texts(2, 3), resumed(4, 2), *texts(5, 6, "b"), *texts(5, 6, "a")]
    stored += [*texts(7, 7, "b"), *ending(8)]

    assert followed_events(stored) == [*stored[:6], *stored[8:]]
    early = [START, *texts(4, 4, "a"), *texts(2, 4, "b"), *ending(5)]
    assert followed_events(early) == [START, *texts(2, 3, "b"), *texts(4, 4, "a"), *ending(5)]


def test_leftovers_stored_before_a_resumption_are_void() -> None:
    stored = [START, *texts(2, 3), *texts(4, 5, "a"), resumed(4, 2), *texts(5, 5, "b"), *ending(6)]
    builder = MessageBuilder()
    for event in followed_events(stored):
        builder.add(event)

    assert builder.text == "b5 "
    assert check_stream(followed_events(stored)) == []


def test_a_reader_with_a_cursor_has_seen_the_resumptions_before_it() -> None:
    follower = EventFollower(after=6)
    assert fed(follower, STORED) == STORED[6:]


def test_a_reader_that_says_what_it_saw_is_told_of_a_resumption_before_its_cursor() -> None:
    assert fed(EventFollower(after=5, attempt=1), STORED) == STORED[3:]
    assert fed(EventFollower(after=6, attempt=2), STORED) == STORED[6:]


def test_a_resumption_after_the_stream_was_read_is_news() -> None:
    follower = EventFollower(after=5)
    assert fed(follower, STORED[:3]) == []
    follower.caught_up()

    assert fed(follower, STORED[3:]) == STORED[3:]


def test_an_end_below_what_was_seen_says_that_something_was_missed() -> None:
    follower = EventFollower()
    fed(follower, [START, *texts(2, 20)])
    assert follower.feed(StreamEnd(seq=10)) == []
    assert follower.misled
    assert not follower.done

    assert fed(follower, STORED) == STORED[3:]
    assert follower.done
    assert not follower.misled


def test_a_count_back_without_a_higher_attempt_is_a_fault() -> None:
    assert check_stream([*SEEN, resumed(4, 1), *ending(5)]) == [
        "seq 6 expected, 4 found (RunResumed)"
    ]
    assert check_stream([*SEEN, resumed(7, 2), *ending(8)]) == [
        "seq 6 expected, 7 found (RunResumed)"
    ]


def test_what_is_held_is_bounded_in_bytes() -> None:
    follower = EventFollower(hold_bytes=100)
    for event in texts(3, 6):
        follower.take(event, b"x" * 40)
    assert follower.refused == 2

    assert len(fed(follower, [START, *texts(2, 6)])) == 6


@pytest.mark.parametrize("seed", range(200))
def test_readers_that_come_go_and_see_what_dies_agree_on_the_message(seed: int) -> None:
    """Workers and server die together at random points; readers live, cut off, late and new."""
    chance = random.Random(seed)
    stored: list[Event] = []
    readers = [_Reader(chance) for _ in range(4)]
    attempts = chance.randint(1, 4)
    for attempt in range(1, attempts + 1):
        seq = len(stored) and stored[-1].seq
        spoken: list[StreamEvent] = [
            START if attempt == 1 else resumed(seq + 1, attempt, chance.randint(1, seq))
        ]
        for number in range(seq + 2, seq + 2 + chance.randint(0, 12)):
            spoken.append(TextChunk(seq=number, step=1, content=f"{attempt}.{number} "))
        if attempt == attempts:
            spoken += [MessageEnd(seq=spoken[-1].seq + 1, finish_reason="stop")]
            spoken += [StreamEnd(seq=spoken[-1].seq + 1)]
        # The first is stored before it is said; of an attempt that dies, not all that was said is.
        kept = len(spoken) if attempt == attempts else chance.randint(1, len(spoken))
        for number, event in enumerate(spoken):
            if number < kept:
                stored.append(event)
            for reader in readers:
                reader.hear(event, stored)
        for reader in readers:
            reader.reconnect()
    truth = MessageBuilder()
    for event in followed_events(stored):
        truth.add(event)

    for reader in readers:
        reader.catch_up(stored)
        assert reader.message.done
        assert reader.message.text == truth.text
        assert reader.message.events == truth.events
        assert check_stream(reader.seen) == []


class _Reader:
    """Hears some of what is said, and reads the stream after a cut and at the end."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._follower = EventFollower()
        self._blind = False
        self.seen: list[Event] = []
        self.message = MessageBuilder()

    def hear(self, event: Event, stored: list[Event]) -> None:
        if self._chance.random() < 0.1:
            self._blind = True  # cut off: misses this, and reads before it hears anything more
            return
        if self._chance.random() < 0.05:  # a new reader goes on where this one was
            after, attempt = self.message.last_seq, self.message.attempt
            self._follower = EventFollower(after, attempt=attempt)
            self._blind = True
        if self._blind:
            self._blind = False
            self.catch_up(stored)
        self._feed(event)

    def reconnect(self) -> None:
        self._blind = True

    def catch_up(self, stored: list[Event]) -> None:
        for event in stored:
            self._feed(event)
        self._follower.caught_up()

    def _feed(self, event: Event) -> None:
        for ready in self._follower.feed(event):
            self.seen.append(ready)
            self.message.add(ready)


def test_an_end_of_an_attempt_that_was_not_announced_sends_the_reader_back_to_the_stream() -> None:
    """A lonely server passed on what it could not store, and then what came after `run_resumed`:
    the numbers fit."""
    stored = [
        *(START, *texts(2, 3), resumed(4, 2), *texts(5, 8, "b")),
        *(MessageEnd(seq=9, finish_reason="stop"), StreamEnd(seq=10, attempt=2)),
    ]
    follower, message = EventFollower(), MessageBuilder()
    seen = fed(follower, [*SEEN, *stored[5:]])
    assert seen == [*SEEN, *stored[5:-1]]
    assert (follower.misled, follower.done) == (True, False)

    seen += fed(follower, stored)
    assert follower.done
    for event in seen:
        message.add(event)
    assert message.text == "b5 b6 b7 b8 "


def test_an_end_that_comes_early_is_held_until_its_attempt_is_announced() -> None:
    end = StreamEnd(seq=7, attempt=2)
    follower = EventFollower()
    assert fed(follower, [START, *texts(2, 3), end]) == [START, *texts(2, 3)]
    rest = [resumed(4, 2), *texts(5, 5), MessageEnd(seq=6, finish_reason="stop")]
    assert fed(follower, rest) == rest
    assert fed(follower, [end]) == [end]
    assert follower.done


def test_a_first_event_of_another_attempt_than_the_one_that_was_seen_announces_it() -> None:
    stored: list[Event] = [
        MessageStart(seq=1, message_id=START.message_id, agent="support", attempt=2),
        *texts(2, 3),
        *(MessageEnd(seq=4, finish_reason="stop"), StreamEnd(seq=5, attempt=2)),
    ]
    follower = EventFollower()
    seen = fed(follower, [START, *stored[1:]])
    assert follower.misled
    assert [*seen, *fed(follower, stored)] == [START, *stored[1:]]
    assert follower.done
