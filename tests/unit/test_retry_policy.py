"""How often a failed model call is made again, and after which waits."""

import random
from typing import Any

import pytest

from hayrunner.errors import ConfigurationError
from hayrunner.retry_policy import RetryPolicy, retry_policy


def waits(policy: RetryPolicy, tries: int) -> list[float | None]:
    return [policy.wait_s(failed) for failed in range(1, tries + 1)]


def test_the_wait_doubles_up_to_the_longest_and_ends_with_the_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    policy = RetryPolicy(retries=8)
    assert waits(policy, 9) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0, None]


def test_up_to_half_of_a_wait_is_taken_off_at_random() -> None:
    found = {RetryPolicy().wait_s(1) for _ in range(50)}
    assert len(found) > 1
    assert all(wait is not None and 0.25 <= wait <= 0.5 for wait in found)


def test_retry_after_is_never_undercut_and_never_shortens_the_wait() -> None:
    policy = RetryPolicy(retries=1000, first_wait_s=10)
    for _ in range(50):
        longer, shorter = policy.wait_s(1, 30.0), policy.wait_s(1, 0.0)
        assert longer is not None
        assert 30 <= longer <= 33
        assert shorter is not None
        assert shorter >= 5


def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for() -> None:
    assert RetryPolicy().wait_s(1, 60.0) is not None
    assert RetryPolicy().wait_s(1, 60.1) is None
    assert RetryPolicy(longest_retry_after_s=3600).wait_s(1, 60.1) is not None


def test_no_retries_and_very_many_are_both_possible() -> None:
    assert waits(RetryPolicy(retries=0), 1) == [None]
    wait = RetryPolicy(retries=10_000).wait_s(5_000)
    assert wait is not None
    assert wait <= 20


def test_a_number_stands_for_a_policy() -> None:
    assert retry_policy(3) == RetryPolicy(retries=3)
    assert retry_policy(RetryPolicy(retries=1)) == RetryPolicy(retries=1)


@pytest.mark.parametrize("wanted", [True, 1.5, "2", None, -1])
def test_what_is_no_policy_is_refused(wanted: Any) -> None:
    with pytest.raises(ConfigurationError):
        retry_policy(wanted)


@pytest.mark.parametrize("name", ["first_wait_s", "longest_wait_s", "longest_retry_after_s"])
def test_a_negative_wait_is_refused(name: str) -> None:
    settings: dict[str, Any] = {name: -0.1}
    with pytest.raises(ConfigurationError, match=name):
        RetryPolicy(**settings)
