"""What two texts have in common."""

from hypothesis import example, given
from hypothesis import strategies as st

from hayrunner.serving.steps import common_beginning


@given(st.text(), st.text(), st.text())
@example("", "é", "è")  # their first bytes are the same
def test_a_text_is_its_common_beginning_and_a_text(begin: str, one: str, other: str) -> None:
    first, second = (begin + one).encode(), (begin + other).encode()
    head = common_beginning(first, second)
    assert len(begin.encode()) <= head
    assert (first[:head] + second[head:].decode().encode()) == second
