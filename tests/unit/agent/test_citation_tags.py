"""Citation tags that arrive in pieces."""

import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hayrunner.adapters.citation_tags import TagFilter, renumbered
from hayrunner_contracts.events import Data, ModelCallEnd, StreamEvent, TextChunk

TAG = re.compile(r"\[[0-9]{1,4}\]")
# Mostly what tags are made of, so that many texts have some, whole and broken.
TEXTS = st.text(alphabet="[]0123 9a,", max_size=60)


@st.composite
def split_texts(draw: st.DrawFn) -> list[str]:
    text = draw(TEXTS)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(split_texts())
def test_any_split_gives_the_same_text_and_no_piece_ends_inside_a_tag(pieces: list[str]) -> None:
    filtered = TagFilter()
    passed = [*(filtered.feed(piece) for piece in pieces), filtered.flush()]

    text = "".join(pieces)
    assert "".join(passed) == text
    borders = {sum(map(len, passed[:n])) for n in range(len(passed))}
    for tag in TAG.finditer(text):
        assert not any(tag.start() < border < tag.end() for border in borders)


@given(split_texts())
def test_only_what_may_be_the_beginning_of_a_tag_is_held_back(pieces: list[str]) -> None:
    filtered = TagFilter()
    came = passed = ""
    for piece in pieces:
        came += piece
        passed += filtered.feed(piece)
        held = came[len(passed) :]
        assert re.fullmatch(r"(\[[0-9]{0,4})?", held)


def events(*pieces: str | StreamEvent) -> list[StreamEvent]:
    return [TextChunk(content=p, step=1) if isinstance(p, str) else p for p in pieces]


def passed(filtered: TagFilter, given: Sequence[StreamEvent]) -> list[StreamEvent]:
    return [told for event in given for told in filtered.pass_on([event])]


def test_a_split_tag_comes_whole_and_other_text_at_once() -> None:
    told = passed(TagFilter(), events("As said ", "[", "1", "2", "] and a[x]"))
    assert told == events("As said ", "[12] and a[x]")


def test_what_is_held_back_comes_before_the_end_of_its_step() -> None:
    end = ModelCallEnd(step=1)
    assert passed(TagFilter(), events("see [1", end)) == events("see ", "[1", end)


def test_data_from_elsewhere_does_not_cut_a_tag() -> None:
    data = Data(data_type="progress")
    assert passed(TagFilter(), events("see [1", data, "]")) == events("see ", data, "[1]")


def test_only_known_numbers_are_changed() -> None:
    assert renumbered("a [1], b [2] and c[10] [x]", {1: 4, 10: 2}) == "a [4], b [2] and c[2] [x]"
