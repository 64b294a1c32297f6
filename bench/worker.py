"""This project's worker as `hayrunner serve` runs it, with the benchmark's agent.

Takes the generator, the provider's and the NATS server's address, and a port for its health.
"""

import sys

from agents import bench_agent
from hayrunner.registry import Registry
from hayrunner.serving.process import run_worker
from hayrunner.settings import load_settings

_CONCURRENCY = 1024
"""More slots than any load has streams: what is measured is not the queue."""


def _main(generator: str, provider: str, nats: str, port: str) -> None:
    registry = Registry()
    registry.add("bench", bench_agent("own" if generator == "own" else "haystack", provider))
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
