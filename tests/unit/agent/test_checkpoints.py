"""A run goes on from each of its checkpoints as if nothing had happened: every scenario here is
run once, and then once more from every checkpoint it left, in a session of another agent object."""

from dataclasses import replace

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.kept import (
    FORM,
    RAN,
    Case,
    OnceMore,
    Steps,
    attempt,
    build,
    built,
    framed,
    no_refs,
    told,
    with_ids,
)
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner_contracts.commands import Approve, Modify, Say
from hayrunner_contracts.events import RunResumed

CASES: dict[str, Case] = {
    "one tool": Case([call_turn(("look", {"query": "a"})), text_turn("done ", "now")]),
    "three steps": Case(
        [
            call_turn(("look", {"query": "a"}), text="first "),
            call_turn(("look", {"query": "b"}), text="then "),
            call_turn(("look", {"query": "c"})),
            text_turn("done"),
        ]
    ),
    "parallel tools": Case(
        [
            call_turn(*(("look", {"query": str(n)}) for n in range(4))),
            call_turn(("fail", {"query": "x"}), ("look", {"query": "y"})),
            text_turn("done"),
        ],
        options={"tool_concurrency": 4},
    ),
    "sources": Case(
        [
            call_turn(("search", {"query": "a"})),
            call_turn(("search", {"query": "b"}), ("search", {"query": "a"})),
            text_turn("see [1] and [3", "]"),
        ]
    ),
    "invalid calls": Case(
        [
            call_turn(("nothing", {}), ("look", {"query": "a"})),
            call_turn(("look", "{broken")),
            text_turn("done"),
        ]
    ),
    "a rejected reply": Case(
        [call_turn(("look", {"query": "a"})), text_turn("bad"), text_turn("good")],
        agent={"hooks": [OnceMore()]},
    ),
    "what was said": Case(
        [call_turn(("look", {"query": "a"})), call_turn(("look", {"query": "b"})), text_turn("ok")],
        commands=[Say(text="and quickly"), Say(text="please")],
    ),
    "an answer with a form": Case(
        [call_turn(("look", {"query": "a"})), text_turn("text"), text_turn('{"n": 3}')],
        options={"then_format": FORM},
    ),
    "a repaired answer": Case(
        [text_turn("no json"), text_turn('{"n": 3}')], fields={"response_format": FORM}
    ),
    "approvals": Case(
        [call_turn(("look", {"query": "a"}), ("fail", {"query": "b"})), text_turn("done")],
        agent={"approvals": ["look", "fail"]},
        commands=[
            Approve(tool_call_id="call_0_0", feedback="go on"),
            Modify(tool_call_id="call_0_1", tool_input={"query": "c"}),
        ],
    ),
    "the turn limit": Case(
        [call_turn(("look", {"query": "a"})), call_turn(("look", {"query": "b"})), text_turn("no")],
        options={"max_turns": 2},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["stream", "answer"])
async def test_a_run_goes_on_from_each_of_its_checkpoints_as_if_nothing_had_happened(
    provide: Provide, name: str, mode: str
) -> None:
    case = CASES[name]
    if mode == "answer":
        case = replace(case, fields={**case.fields, "mode": "answer", "tools": True})
    _, generator = await provide(with_ids(case.turns))
    RAN.clear()
    first = Steps(ran=RAN)
    outcome = await attempt(build(generator, case), case, first)
    whole, ran = built(framed(first.events)), list(RAN)
    assert first.kept or name == "a repaired answer"
    for kept in first.kept:
        del RAN[:]
        steps = Steps(found=kept.data, ran=RAN)
        again = await attempt(build(generator, case), case, steps)
        assert no_refs(told(again)) == no_refs(told(outcome))
        assert again.usage == outcome.usage
        # Tools of finished steps stay run; those of an interrupted one run under the same key.
        assert RAN == ran[kept.ran :]
        resumed = RunResumed(attempt=2, discard_after=kept.events + 1)
        events = [*first.events[: kept.events], resumed, *steps.events]
        assert no_refs(built(framed(events))) == no_refs(whole)
        # Its own checkpoints are those that the first attempt made from here on.
        from_here = first.kept[first.kept.index(kept) + 1 :]
        assert [k.phase for k in steps.kept] == [k.phase for k in from_here]
