"""Runs whose spans are caught by the SDK's own exporter in memory."""

from collections.abc import Iterator

import pytest
from tests.unit.agent.conftest import provide
from tests.unit.telemetry.traces import Traces

from hayrunner.telemetry.tracer import stop_tracing

__all__ = ["provide"]


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Tracing, on until the test ends; `traces.start(policy)` with another policy."""
    caught = Traces()
    caught.start()
    yield caught
    stop_tracing()
    caught.close()
