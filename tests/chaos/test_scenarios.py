"""Guarantees that have a plan of their own, with whole workers."""

from tests.chaos.harness import Verdict, play
from tests.chaos.report import summary, told
from tests.chaos.scenarios import (
    interrupted_tools,
    long_runs,
    lost_events,
    rolling,
    short_mix,
    stale_worker,
)


def assert_clean(verdict: Verdict) -> None:
    assert not verdict.violations, "\n".join(
        [
            summary(verdict.evidence, verdict.violations),
            told(verdict.violations),
            f"everything is in {verdict.folder}",
        ]
    )


async def test_nothing_is_lost_or_doubled_whatever_breaks() -> None:
    assert_clean(await play(short_mix(20261)))


async def test_runs_ten_times_as_long_as_ack_wait_are_delivered_once() -> None:
    assert_clean(await play(long_runs(12)))


async def test_a_worker_that_wakes_up_late_says_nothing_more() -> None:
    assert_clean(await play(stale_worker(11)))


async def test_events_that_the_stream_missed_are_stored_before_the_end() -> None:
    assert_clean(await play(lost_events(13)))


async def test_tools_of_finished_steps_are_not_run_again_when_a_worker_is_killed() -> None:
    assert_clean(await play(interrupted_tools(14)))


async def test_a_rolling_restart_fails_no_run_and_counts_no_attempt() -> None:
    assert_clean(await play(rolling(15, rate=12.0, for_s=9.0)))
