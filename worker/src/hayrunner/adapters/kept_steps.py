"""When a run's steps are kept, and how its loop goes on from one that was."""

import logging
from collections.abc import Callable, Sequence

from haystack.components.agents.state import State

from hayrunner.adapters import checkpoints
from hayrunner.adapters.cancellation import raise_if_cancelled
from hayrunner.adapters.checkpoints import AskedCall, Checkpoint, Found, NotKept
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.model_call import ModelReply
from hayrunner.adapters.outcome import Phase, RunOutcome, StepStore

__all__ = ["go_on_from", "keep_asked", "keep_called", "keep_end", "keep_settled", "take_found"]

logger = logging.getLogger(__name__)


def go_on_from(run: RunContext, steps: StepStore) -> bool:
    """Keep the run's steps in `steps` from now on, and make it what an earlier attempt left;
    whether there was one that can be gone on from."""
    run.steps = steps
    if steps.found is None:
        return False
    found = checkpoints.decode(steps.found)
    if found is None:
        logger.warning("run %s starts over: its checkpoint has another form", run.message_id)
        return False
    found.into_run(run)
    run.found = found
    return True


def take_found(run: RunContext, state: State) -> Found | None:
    """The checkpoint that the loop has to go on from, once; `state` is as it was then."""
    found, run.found = run.found, None
    if found is None or not run.in_loop:
        return None
    found.into_state(state)
    return found


async def keep_called(run: RunContext, state: State, answer: ModelReply) -> None:
    """The calls of a reply are known, and none has run."""
    run.called = None
    if _keeps(run):
        run.called = await _kept(run, lambda: checkpoints.called(run, state, answer))


async def keep_asked(run: RunContext, asked: Sequence[AskedCall]) -> bool:
    """People were asked about these calls of the step: whether that is kept."""
    if run.called is None:
        return False
    run.called.asked = list(asked)
    called = run.called
    return await _kept(run, lambda: called) is not None


async def keep_settled(run: RunContext, state: State, *, exited: bool = False) -> None:
    """All calls of the step have settled."""
    run.called = None
    if _keeps(run):
        await _kept(run, lambda: checkpoints.settled(run, state, exited=exited))


async def keep_end(run: RunContext, outcome: RunOutcome) -> None:
    """The run is over, and nothing of that is written yet."""
    if run.steps is not None:
        await _kept(run, lambda: checkpoints.ended(run, outcome))


def _keeps(run: RunContext) -> bool:
    return run.steps is not None and run.in_loop


async def _kept(run: RunContext, make: Callable[[], Checkpoint]) -> Checkpoint | None:
    assert run.steps is not None
    try:
        kept = make()
        data = kept.encode()
    except NotKept as error:
        # Once: from here on the run starts over when its worker dies, and is not parked.
        logger.warning("run %s: the key %s of its State cannot be kept", run.message_id, error.key)
        run.in_loop = False
        return None
    phase: Phase = kept.phase
    await run.steps.keep(data, phase=phase, step=run.normalizer.step)
    # Python 3.11's `wait_for` swallows a cancel that comes together with what it waits for.
    raise_if_cancelled()
    return kept
