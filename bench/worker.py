"""This project's worker in a process of its own, as `hayrunner serve` runs it.

Takes the generator, the provider's and the NATS server's address; prints a line when it takes
requests, ends on SIGTERM.
"""

import asyncio
import logging
import signal
import sys

import uvloop

from agents import bench_agent
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.settings import load_settings

_CONCURRENCY = 1024
"""More slots than any load has streams: what is measured is not the queue."""


async def _main(generator: str, provider: str, nats: str) -> None:
    registry = Registry()
    registry.add("bench", bench_agent("own" if generator == "own" else "haystack", provider))
    settings = load_settings(
        nats_url=nats, namespace="bench", concurrency=_CONCURRENCY, port=-1, drain_timeout_s=0
    )
    worker = Worker(settings, registry)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    async with worker:
        print("ready", flush=True)
        await worker.main_loop()


if __name__ == "__main__":
    # Nothing per run: neither contender writes its log while it is measured.
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(_main(*sys.argv[1:4]))
