"""Bytes to payloads, however they are split."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayrunner.generators.sse import EventTooLong, SseParser


def payloads_of(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    found = [payload for piece in pieces for payload in parser.feed(piece)]
    return found + parser.close()


def reference(data: bytes) -> list[bytes]:
    """The standard's algorithm, line by line, with the leniency at the end."""
    found: list[bytes] = []
    lines: list[bytes] = []
    for line in [*re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf")), b""]:
        if not line:
            found.append(b"\n".join(lines))
            lines = []
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return [payload for payload in found if payload]


pieces_of_streams = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"data:", b"data: ", b"event: x", b": ping", b"data"])
    | st.sampled_from(["é🙂".encode(), b"{}", b" ", b"\xef\xbb\xbf", b"id: 1"])
).map(b"".join)


@given(pieces_of_streams, st.lists(st.integers(0, 200)))
def test_any_split_gives_what_the_standard_says(data: bytes, cuts: list[int]) -> None:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in pairwise(borders)]
    assert payloads_of(*pieces) == reference(data)


@given(pieces_of_streams)
def test_a_stream_that_comes_byte_by_byte_gives_the_same(data: bytes) -> None:
    assert payloads_of(*(data[i : i + 1] for i in range(len(data)))) == payloads_of(data)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_ends_a_line_at_once(end: bytes) -> None:
    parser = SseParser()
    assert parser.feed(b"data: a" + end + b"data: b" + end + end) == [b"a\nb"]
    assert parser.feed(b"data: c" + end + end) == [b"c"]


def test_comments_and_other_fields_are_read_over() -> None:
    stream = b": keep-alive\n\nevent: message\nid: 7\nretry: 10\ndata: x\n\n: ping\n\n"
    assert payloads_of(stream) == [b"x"]


@pytest.mark.parametrize("stream", [b"data: \n\n", b"data:\n\n", b"data\n\n", b"data: \n"])
def test_an_event_without_a_payload_is_read_over(stream: bytes) -> None:
    assert payloads_of(stream, b"data: x\n\n") in ([b"x"], [b"\nx"])
    assert b"" not in payloads_of(stream)


def test_only_one_space_after_the_colon_is_taken_away() -> None:
    assert payloads_of(b"data:x\n\ndata:  y\n\n") == [b"x", b" y"]


def test_a_missing_last_blank_line_loses_nothing() -> None:
    assert payloads_of(b"data: a\n\ndata: [DONE]") == [b"a", b"[DONE]"]


def test_a_byte_order_mark_is_skipped_at_the_beginning_only() -> None:
    assert payloads_of(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == [b"a"]
    assert payloads_of(b"data: \xef\xbb\xbf\n\n") == [b"\xef\xbb\xbf"]


def test_an_event_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    parser = SseParser(max_event_bytes=100)
    assert parser.feed(b"data: " + b"x" * 90) == []
    with pytest.raises(EventTooLong):
        parser.feed(b"x" * 90)
