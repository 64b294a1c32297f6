"""Model calls as figures: how long, how soon, how it ended, what it cost."""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hayrunner.adapters.context import RunContext
from hayrunner.errors import HayrunnerError, wire_code
from hayrunner.telemetry.model_meter import CallLabels, current_meter
from hayrunner.telemetry.providers import provider_of

__all__ = ["count_tokens", "metered"]

logger = logging.getLogger(__name__)

Generate = Callable[[RunContext, Any, dict[str, Any]], Awaitable[dict[str, Any]]]


def metered(generate: Generate) -> Generate:
    """`generate`, each call of which is told to the current meter, however it ends."""

    @functools.wraps(generate)
    async def counted(run: RunContext, generator: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        meter = current_meter.get()
        run.first_chunk_at, started = None, time.perf_counter()
        error_code: str | None = None
        try:
            return await generate(run, generator, inputs)
        except BaseException as error:
            error_code = _code(error)
            raise
        finally:
            duration = time.perf_counter() - started
            told = error_code or "done"
            logger.debug("model call %s: %s, %.3f s", run.model_calls, told, duration)
            if meter is not None:
                meter.model_called(
                    _labels(run, generator, inputs),
                    duration_s=duration,
                    first_chunk_s=_since(started, run.first_chunk_at),
                    error_code=error_code,
                )

    return counted


def count_tokens(run: RunContext, generator: Any, inputs: dict[str, Any]) -> None:
    """Tell the current meter what the step that was just closed cost, where that is known."""
    meter, usage = current_meter.get(), run.normalizer.usage
    if meter is not None and usage is not None:
        meter.tokens_used(
            _labels(run, generator, inputs),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
        )


def _labels(run: RunContext, generator: Any, inputs: dict[str, Any]) -> CallLabels:
    return CallLabels(
        agent=run.agent,
        provider=provider_of(type(generator)),
        model=_configured_model(generator, inputs),
    )


def _configured_model(generator: Any, inputs: dict[str, Any]) -> str | None:
    """The generator's own model, None where a request or a hook asked for another."""
    configured: Any = getattr(generator, "model", None)
    asked: Any = configured
    for given in (getattr(generator, "generation_kwargs", None), inputs.get("generation_kwargs")):
        asked = (given or {}).get("model", asked)
    return configured if isinstance(configured, str) and asked == configured else None


def _code(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    return wire_code(error) if isinstance(error, HayrunnerError) else "internal"


def _since(started: float, then: float | None) -> float | None:
    return None if then is None else then - started
