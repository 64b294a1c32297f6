"""This project's worker as `hayrunner serve` runs it, with the benchmark's agent.

Takes the generator, the provider's and the NATS server's address, and a port for its health. With
`BENCH_KEEPS=nothing` in its environment it keeps no step, as `checkpoints.py` wants it.
"""

import os
import sys
from typing import Any

from agents import bench_agent
from hayrunner.registry import Registry
from hayrunner.serving.process import run_worker
from hayrunner.settings import load_settings

_CONCURRENCY = 1024
"""More slots than any load has streams: what is measured is not the queue."""


def _keep_nothing() -> None:
    """No run keeps its steps from here on, nor makes what would be kept."""
    from hayrunner.adapters import kept_steps

    async def not_kept(*_: Any, **__: Any) -> None:
        return None

    # By name: everything goes through this one function.
    setattr(kept_steps, "_kept", not_kept)  # noqa: B010


def _main(generator: str, provider: str, nats: str, port: str) -> None:
    registry = Registry()
    registry.add("bench", bench_agent("own" if generator == "own" else "haystack", provider))
    if os.environ.get("BENCH_KEEPS") == "nothing":
        _keep_nothing()
    settings = load_settings(
        nats_url=nats,
        namespace="bench",
        concurrency=_CONCURRENCY,
        port=int(port),
        drain_timeout_s=0,
        # Neither contender writes a line per run.
        log_level="WARNING",
    )
    run_worker(settings, registry)


if __name__ == "__main__":
    _main(*sys.argv[1:5])
