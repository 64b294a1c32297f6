"""A model call that failed is made again: where that may help, after a wait, as a new step.

What consumers saw of the failed try is voided right before the next one: calls that were being
written get an error output, and a `data` event says that the step's text does not count. Until
then it is the run's partial answer, so that a run that ends while it waits keeps it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hayrunner.adapters.cancellation import raise_if_cancelled
from hayrunner.adapters.context import REPLY_REJECTED, RunContext
from hayrunner.errors import ProviderError
from hayrunner_contracts.events import Data, StreamEvent

__all__ = ["with_retries"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_sleep = asyncio.sleep
_BROKEN_OFF = "This call was not run: the model's server failed before the reply was whole."


async def with_retries(
    run: RunContext, call: Callable[[], Awaitable[_T]], may_go_on: Callable[[], bool]
) -> _T:
    """The outcome of `call`, a model call of this run, made again as the run's policy has it.

    Raises the last `ProviderError` where no further try is to be made: it would not help, all
    were used, the wait would end past the run's deadline, or `may_go_on` says no.
    """
    failed = 0
    while True:
        try:
            return await call()
        except ProviderError as error:
            failure = error
        failed += 1
        if (usage := run.normalizer.told_usage) is not None:
            run.spend(usage)
        wait = _wait_s(run, failure, failed)
        if wait is None or not may_go_on():
            raise failure
        logger.info(
            "run %s: model call failed (%s), next try in %.1f s",
            run.message_id,
            failure.code,
            wait,
        )
        await _sleep(wait)
        raise_if_cancelled()
        # Another part of the run may have spent the budget meanwhile.
        if not may_go_on():
            raise failure
        await _void(run)


def _wait_s(run: RunContext, failure: ProviderError, failed: int) -> float | None:
    """None where there is to be no other try."""
    if not failure.retryable:
        return None
    wait = run.settings.retries.wait_s(failed, failure.retry_after_s)
    if wait is None or run.deadline is None:
        return wait
    return wait if time.time() + wait < run.deadline else None


async def _void(run: RunContext) -> None:
    """Take the failed try back. One that the model did not begin to answer was no model call, and
    no step."""
    normalizer = run.normalizer
    if not normalizer.answered:
        run.model_calls -= 1
        normalizer.step -= 1
        return
    shown, step = normalizer.shown, normalizer.step
    events: list[StreamEvent] = normalizer.break_off(_BROKEN_OFF)
    if shown:
        events.append(Data(data_type=REPLY_REJECTED, data={"step": step}))
    await run.emit(events)
