"""Every gate has a sentinel that bites: with the gate taken away the sweep fails, and says in which
channel."""

import pytest
from tests.sweep.gates import GATES
from tests.sweep.sweeps import sweep


@pytest.mark.parametrize("name", GATES)
async def test_without_a_gate_the_sweep_fails_in_its_channel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = GATES[name]
    gate.remove(monkeypatch)
    swept = await sweep(monkeypatch, gate.runs, gate.options, policy=gate.policy, kinds=gate.kinds)
    leaked = swept.leaks(keeps=gate.keeps)
    assert {hit.found.what for hit in leaked if hit.channel == gate.channel} >= gate.bites


async def test_with_all_gates_the_same_runs_leak_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {name for gate in GATES.values() for name in gate.runs}
    swept = await sweep(monkeypatch, sorted(runs))
    assert swept.leaks(keeps=False) == []
