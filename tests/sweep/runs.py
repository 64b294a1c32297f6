"""The runs of the sweep, by name."""

from tests.sweep import plain_runs, steered_runs
from tests.sweep.playing import PLAYS, play

__all__ = ["RUNS", "play"]

assert plain_runs
assert steered_runs

RUNS = PLAYS
