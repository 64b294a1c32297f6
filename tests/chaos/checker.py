"""The checker: whether everything that is promised of every accepted run holds.

Pure, over what is there afterwards. Each rule has a name, and a failure says the run and how it
shows. `CATEGORIES` sorts the rules into what they are about.
"""

from collections.abc import Callable, Iterator

import msgspec
from tests.chaos.cases import Case, Violation, bytes_of, cases_of
from tests.chaos.consumers import Seen
from tests.chaos.evidence import Evidence
from tests.chaos.texts import check_answer, check_text, check_thread
from tests.chaos.tools import check_approvals, check_outputs, check_repeats, check_told

from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.events import MessageEnd, MessageStart, RunResumed, StreamEnd
from hayrunner_contracts.stream_rules import check_stream, effective_events

__all__ = ["CATEGORIES", "Violation", "check"]

CATEGORIES: dict[str, tuple[str, ...]] = {
    "lost": ("no_result", "no_end", "open_claim", "still_queued", "not_accepted"),
    "doubled": ("two_results", "two_ends", "after_end", "thread_doubled"),
    "gaps": ("gap",),
    "repeated tools": ("tool_repeated", "tool_key", "tool_times", "denied_ran", "asked_again"),
    "text differences": ("text", "answer", "thread", "told"),
    "other": (
        "stream",
        "status",
        "unplanned_end",
        "output",
        "consumer",
        "dead_letter",
        "redelivered",
        "attempts",
        "worker_exit",
    ),
}
"""Every rule, by what it is about."""


def check(evidence: Evidence) -> list[Violation]:
    """Everything that is wrong; nothing where all is well."""
    found: list[Violation] = []
    for case in cases_of(evidence):
        for rule in _RULES:
            found += rule(case)
    return [*found, *_check_all(evidence)]


def check_ends(case: Case) -> Iterator[Violation]:
    """One result, one last event, one closed claim, and all three say the same."""
    result, claim = case.result, case.claim
    ends = case.ever(StreamEnd)
    if len(ends) > 1:
        yield case.violation("two_ends", f"at {[event.seq for event in ends]}")
    if ends and case.all[-1] is not ends[-1]:
        yield case.violation("after_end", f"{case.all[-1]}")
    if not ends:
        yield case.violation("no_end", f"{len(case.events)} events")
    if result is None:
        yield case.violation("no_result", f"claim: {claim}")
        return
    if claim is None or claim.status not in ("completed", "failed", "cancelled"):
        yield case.violation("open_claim", f"{claim}")
    elif claim.status != result.status:
        yield case.violation("status", f"claim {claim.status}, result {result.status}")
    late = max((event.seq for event in case.ever(RunResumed)), default=0)
    if len(ends) == 1 and result.last_seq != ends[0].seq and not result.last_seq <= late:
        yield case.violation("status", f"last_seq {result.last_seq}, end at {ends[0].seq}")


def check_numbers(case: Case) -> Iterator[Violation]:
    """A reader gets through to the last one."""
    numbers = [event.seq for event in case.events]
    if case.behind:
        yield case.violation("gap", f"after {numbers[-1:]} comes {case.behind[:5]}")


def check_frame(case: Case) -> Iterator[Violation]:
    """What every stream keeps to."""
    for problem in check_stream(case.events) if case.events else ():
        yield case.violation("stream", problem)


def check_status(case: Case) -> Iterator[Violation]:
    """The stream ends as the result says, and as the plan lets it."""
    result, run = case.result, case.run
    if result is None:
        return
    reasons = [event.finish_reason for event in case.of(MessageEnd)]
    if reasons and (result.finish_reason not in reasons):
        yield case.violation("status", f"stream {reasons}, result {result.finish_reason}")
    if result.status == "cancelled" and run.cancel_after_s is None:
        yield case.violation("unplanned_end", "cancelled, and nobody did")
    if result.status == "failed":
        code = result.error.code if result.error else None
        if code not in run.may_fail:
            yield case.violation("unplanned_end", f"failed with {code}")


def check_consumers(case: Case) -> Iterator[Violation]:
    """Whoever watched saw what is stored, in order, each event once. Where something broke, it
    may have seen more: events that died with a server, and that a `run_resumed` made void."""
    stored = [bytes_of(event) for event in case.events]
    for seen in case.seen:
        if seen.kind == "result":
            continue
        whole = seen.kind != "vanishing"
        if seen.error is not None:
            yield case.violation("consumer", f"{seen.kind}: {seen.error}")
        elif whole and not seen.whole:
            yield case.violation("consumer", f"{seen.kind}: it did not come to the end")
        elif seen.events != (stored if whole else stored[: len(seen.events)]) and not (
            _saw_only_void_ones_more(case, seen, whole)
        ):
            yield case.violation("consumer", f"{seen.kind}: {_difference(seen.events, stored)}")


def _saw_only_void_ones_more(case: Case, seen: Seen, whole: bool) -> bool:
    """Whether what was seen says the same as what is stored, to whoever goes by the rules."""
    if case.claim is None or case.claim.attempt == 1:
        return False
    told = effective_events(decode_event(data) for data in seen.events)
    if told and isinstance(told[0], MessageStart):
        # One that a lonely server passed on and did not store is another attempt's.
        told[0] = msgspec.structs.replace(told[0], attempt=case.attempt_of_start)
    if whole:
        return told == case.effective
    # It left before it was told that what it saw last is void.
    counting = {event.seq: event for event in case.effective}
    last = max((event.seq for event in case.events if isinstance(event, RunResumed)), default=0)
    return all(event.seq <= last or counting.get(event.seq) == event for event in told)


def _difference(seen: list[bytes], stored: list[bytes]) -> str:
    for position, event in enumerate(seen):
        if position >= len(stored):
            return f"{len(seen) - len(stored)} more than stored"
        if event != stored[position]:
            return f"event {position + 1} differs: {event[:120]!r} is {stored[position][:120]!r}"
    return "nothing"


def _check_all(evidence: Evidence) -> Iterator[Violation]:
    """What no single run shows."""
    plan = evidence.plan
    for run in plan.runs:
        if run.number not in evidence.accepted:
            yield Violation(rule="not_accepted", run=run.number, what="never acknowledged")
    doubled = evidence.results_written - len(evidence.results)
    if doubled:
        yield Violation(rule="two_results", run=0, what=f"{doubled} more than runs")
    if evidence.queued or evidence.unacked:
        left = f"{evidence.queued} on the queue, {evidence.unacked} not acked"
        yield Violation(rule="still_queued", run=0, what=left)
    if len(evidence.dead) != plan.dead_letters:
        yield Violation(rule="dead_letter", run=0, what=f"{evidence.dead}")
    for name, code in evidence.exit_codes.items():
        if code != 0:
            yield Violation(rule="worker_exit", run=0, what=f"{name} ended with {code}")
    if plan.calm:
        yield from _check_calm(evidence)
    if plan.uncounted:
        yield from _check_uncounted(evidence)


def _check_calm(evidence: Evidence) -> Iterator[Violation]:
    """Where nothing breaks, nothing is delivered twice."""
    numbers = {run.message_id: run.number for run in evidence.plan.runs}
    for line in evidence.workers:
        if line["what"] == "delivery" and line["times"] > 1:
            run = numbers.get(line["message_id"], 0)
            what = f"delivered {line['times']} times, to {line['worker']}"
            yield Violation(rule="redelivered", run=run, what=what)


def _check_uncounted(evidence: Evidence) -> Iterator[Violation]:
    """Where workers leave as they should, no attempt is counted."""
    for run in evidence.plan.runs:
        result = evidence.results.get(run.message_id)
        if result is not None and result.attempts > 1:
            yield Violation(rule="attempts", run=run.number, what=f"{result.attempts} counted")


_RULES: tuple[Callable[[Case], Iterator[Violation]], ...] = (
    check_ends,
    check_numbers,
    check_frame,
    check_status,
    check_text,
    check_answer,
    check_thread,
    check_repeats,
    check_outputs,
    check_approvals,
    check_told,
    check_consumers,
)
