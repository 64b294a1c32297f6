"""A worker as a process: event loop, logs, signals."""

import asyncio
import contextlib
import signal
import sys

from hayrunner.serving.app import Worker
from hayrunner.serving.served import AgentRegistry
from hayrunner.settings import Settings
from hayrunner.telemetry.logs import set_up_logs

__all__ = ["run_worker"]


def run_worker(settings: Settings, registry: AgentRegistry) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once.

    Raises what `Worker.serve` raises.
    """
    set_up_logs(form=settings.log_format, level=settings.log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve_until_signalled(Worker(settings, registry)))


async def serve_until_signalled(worker: Worker) -> None:
    """`worker.serve()` with signal handlers, which are there before anything else: a process
    that is PID 1 ignores SIGTERM without them."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Windows' loops have none, and a loop outside the main thread cannot have them.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, worker.stop)
    await worker.serve()


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop where there is one: it saves more than half of the CPU of publishing."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.Loop
