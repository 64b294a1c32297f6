"""One run as the checker sees it: what was planned, what is stored, what was written down."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.chaos.consumers import Seen
from tests.chaos.evidence import Evidence, StoredEvent
from tests.chaos.plan import PlannedRun

from hayrunner.serving.claims import ClaimRecord
from hayrunner_contracts.codec import decode_event, encode
from hayrunner_contracts.events import MessageStart, RunResumed, StreamEnd, UnknownEvent
from hayrunner_contracts.following import Event, followed_events
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.stream_rules import effective_events
from hayrunner_contracts.threads import ThreadMessages

__all__ = ["Case", "Violation", "bytes_of", "cases_of"]


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that does not hold, of which run (0: of the whole), and how it shows."""

    rule: str
    run: int
    what: str


def bytes_of(event: Event) -> bytes:
    """The bytes that stand for an event where two are compared."""
    return event.raw if isinstance(event, UnknownEvent) else encode(event)


class Case:
    """One run. `events` are what a reader of the stream sees, `effective` those of them that
    count. `behind` are the numbers of events that no reader sees, since something before them is
    missing."""

    def __init__(self, run: PlannedRun, stored: Iterable[StoredEvent]) -> None:
        self.run = run
        self.result: RunResult | None = None
        self.claim: ClaimRecord | None = None
        self.thread: list[ThreadMessages] = []
        self.seen: list[Seen] = []
        self.tools: list[dict[str, Any]] = []
        self.tools_done: set[str] = set()
        self.requests: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.stored_at: dict[int, float] = {}
        every = _up_to_the_end((one, decode_event(one.data)) for one in stored)
        self.all = [event for _, event in every]
        self.events = followed_events(self.all)
        self.effective = effective_events(self.events)
        last = self.events[-1].seq if self.events else 0
        self.behind = sorted({event.seq for _, event in every if event.seq > last})
        counting = {event.seq: bytes_of(event) for event in self.effective}
        for one, event in every:
            if counting.get(event.seq) == bytes_of(event):
                self.stored_at.setdefault(event.seq, one.stored_at)

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one type that count."""
        return [event for event in self.effective if isinstance(event, kind)]

    def ever(self, kind: type[Any]) -> list[Any]:
        """The events of one type that are stored, void ones too."""
        return [event for event in self.all if isinstance(event, kind)]

    @property
    def attempt_of_start(self) -> int:
        """The attempt that said the first event."""
        return next((event.attempt for event in self.of(MessageStart)), 1)

    @property
    def completed(self) -> bool:
        return self.result is not None and self.result.status == "completed"

    def violation(self, rule: str, what: str) -> Violation:
        return Violation(rule=rule, run=self.run.number, what=what)


def _up_to_the_end(
    stored: Iterable[tuple[StoredEvent, Event]],
) -> list[tuple[StoredEvent, Event]]:
    """Nobody reads on after the last event: what an old worker had in its socket when it was
    stopped may come then, and is nobody's. What a worker says that takes the run for its own is
    kept."""
    found: list[tuple[StoredEvent, Event]] = []
    ended = False
    for one, event in stored:
        ended = ended or isinstance(event, StreamEnd)
        if not ended or isinstance(event, StreamEnd | RunResumed):
            found.append((one, event))
    return found


def cases_of(evidence: Evidence) -> list[Case]:
    """Every accepted run."""
    tools = _by(evidence.workers, "tool", "run")
    done = _by(evidence.workers, "tool_done", "run")
    requests = _by(evidence.provider, "request", "run")
    sent = _by(evidence.provider, "sent", "run")
    seen: dict[int, list[Seen]] = defaultdict(list)
    for one in evidence.seen:
        seen[one.run].append(one)
    cases: list[Case] = []
    for run in evidence.plan.runs:
        if run.number not in evidence.accepted:
            continue
        case = Case(run, evidence.events.get(run.message_id, ()))
        case.result = evidence.results.get(run.message_id)
        case.claim = evidence.claims.get(run.message_id)
        case.thread = evidence.threads.get(run.thread_id or "", [])
        case.seen = seen[run.number]
        case.tools = tools[run.number]
        case.tools_done = {line["nonce"] for line in done[run.number]}
        case.requests = requests[run.number]
        case.sent = sent[run.number]
        cases.append(case)
    return cases


def _by(lines: list[dict[str, Any]], what: str, name: str) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line["what"] == what:
            found[line[name]].append(line)
    return found
