"""Where model calls are counted. The agent half tells whoever is set for the current context, and
nobody where a run has no worker."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

__all__ = ["CallLabels", "ModelMeter", "counting", "current_meter"]


@dataclass(frozen=True, kw_only=True)
class CallLabels:
    """Whose call it was. `model` is one that the agent's configuration names, None for another."""

    agent: str
    provider: str
    model: str | None


class ModelMeter(Protocol):
    """Counts model calls."""

    def model_called(
        self,
        call: CallLabels,
        *,
        duration_s: float,
        first_chunk_s: float | None,
        error_code: str | None,
    ) -> None:
        """A call is over, also one that failed or was abandoned: each try is one."""
        ...

    def tokens_used(self, call: CallLabels, *, input_tokens: int, output_tokens: int) -> None:
        """What a provider said that a call cost."""
        ...


current_meter: ContextVar[ModelMeter | None] = ContextVar("hayrunner_model_meter", default=None)


@contextmanager
def counting(meter: ModelMeter) -> Generator[None]:
    """Model calls in this block, and in tasks that start in it, are told to `meter`."""
    token = current_meter.set(meter)
    try:
        yield
    finally:
        current_meter.reset(token)
