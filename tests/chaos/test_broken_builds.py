"""The checker bites: a worker without one of its safeties is caught, by the rule that it breaks.

The same plans with whole workers are in test_scenarios.py.
"""

from tests.chaos.harness import play
from tests.chaos.scenarios import interrupted_tools, long_runs, lost_events, stale_worker


async def test_a_worker_without_fencing_is_caught_by_what_it_says_after_the_end() -> None:
    verdict = await play(stale_worker(11), broken="fencing", patience_s=5)
    assert verdict.rules & {"after_end", "two_ends"}, verdict.violations


async def test_a_worker_without_heartbeat_is_caught_by_redeliveries() -> None:
    verdict = await play(long_runs(12, times=3.0), broken="heartbeat", patience_s=5)
    assert "redelivered" in verdict.rules, verdict.violations


async def test_a_worker_without_verification_is_caught_by_gaps() -> None:
    verdict = await play(lost_events(13), broken="verification", patience_s=5)
    assert "gap" in verdict.rules, verdict.violations


async def test_a_worker_without_checkpoints_is_caught_by_repeated_tools() -> None:
    verdict = await play(interrupted_tools(14), broken="checkpoints", patience_s=5)
    assert {"tool_key", "tool_repeated"} <= verdict.rules, verdict.violations
