"""Rules about tools: what ran, how often, under which key, and what the model was told of it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
from tests.chaos.cases import Case, Violation
from tests.chaos.provider import digest

from hayrunner_contracts.events import ToolApprovalRequest, ToolInputComplete, ToolOutput

__all__ = ["check_approvals", "check_outputs", "check_repeats", "check_told"]

_Place = tuple[int, int]


def _executions(case: Case) -> dict[_Place, list[dict[str, Any]]]:
    """Every execution, by the call it was planned as: step and index in it."""
    found: dict[_Place, list[dict[str, Any]]] = defaultdict(list)
    for line in case.tools:
        found[line["step"], line["index"]].append(line)
    return found


def check_repeats(case: Case) -> Iterator[Violation]:
    """A tool runs again only while its step is not finished, and then under the same key."""
    attempts = case.claim.attempt if case.claim else 1
    outputs = {event.tool_call_id: event.seq for event in case.of(ToolOutput)}
    for (step, index), lines in _executions(case).items():
        where = f"step {step}, call {index}"
        keys = {line["key"] for line in lines}
        if len(keys) > 1:
            yield case.violation("tool_key", f"{where}: {sorted(keys)}")
        if len(lines) > attempts:
            yield case.violation("tool_times", f"{where}: {len(lines)} in {attempts} attempts")
        finished = _finished_at(case, step)
        for line in lines:
            stored = case.stored_at.get(outputs.get(line["call_id"], 0))
            if line["t"] > min(finished, stored or finished):
                yield case.violation("tool_repeated", f"{where}: by {line['worker']}")


def _finished_at(case: Case, step: int) -> float:
    """When the model was first asked for more, having been told what this step's tools said."""
    later = (line["t"] for line in case.requests if line["step"] > step)
    return min(later, default=float("inf"))


def check_outputs(case: Case) -> Iterator[Violation]:
    """What the stream says a tool gave back, a tool gave back."""
    for event in case.of(ToolOutput):
        if event.is_error:
            continue
        nonce = _nonce(event.tool_output)
        if nonce not in case.tools_done:
            yield case.violation("output", f"{event.tool_call_id}: nothing like it was executed")


def _nonce(output: Any) -> str | None:
    try:
        return msgspec.json.decode(_text(output))["nonce"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None


def _text(output: Any) -> str:
    if isinstance(output, str):
        return output
    return "".join(part.get("text", "") for part in output)


def check_approvals(case: Case) -> Iterator[Violation]:
    """A call is asked about once, whatever attempts the run took; what was denied does not run."""
    asked: dict[_Place, set[str]] = defaultdict(set)
    for event in case.ever(ToolApprovalRequest):
        asked[event.tool_input["step"], event.tool_input["index"]].add(event.tool_call_id)
    for (step, index), ids in asked.items():
        if len(ids) > 1:
            yield case.violation("asked_again", f"step {step}, call {index}: {len(ids)} ids")
    for step, index in _executions(case):
        if case.run.steps[step - 1].calls[index].decision == "deny":
            yield case.violation("denied_ran", f"step {step}, call {index}")


def check_told(case: Case) -> Iterator[Violation]:
    """Whenever the model was asked for a step, it was told exactly the outputs that count."""
    if case.run.mode != "stream" or not case.completed:
        return
    steps = {
        event.tool_call_id: event.tool_input["step"]
        for event in case.of(ToolInputComplete)
        if isinstance(event.tool_input, dict)
    }
    # A call that broke off in the middle is told to nobody.
    outputs = [
        (steps[event.tool_call_id], digest(_text(event.tool_output)))
        for event in case.of(ToolOutput)
        if event.tool_call_id in steps
    ]
    for line in case.requests:
        expected = [name for step, name in outputs if step < line["step"]]
        if line["results"] != expected:
            what = f"step {line['step']}: told {len(line['results'])}, stream {len(expected)}"
            yield case.violation("told", what)
