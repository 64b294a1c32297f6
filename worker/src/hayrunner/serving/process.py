"""A worker as a process: event loop, logs, signals."""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Generator

from hayrunner.serving.app import Worker
from hayrunner.serving.served import AgentRegistry
from hayrunner.settings import Settings
from hayrunner.telemetry.logs import set_up_logs

__all__ = ["measured", "run_worker", "traced"]


def run_worker(settings: Settings, registry: AgentRegistry) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once.

    Raises what `Worker.serve` raises.
    """
    set_up_logs(
        form=settings.log_format, level=settings.log_level, trusted=settings.trusted_loggers
    )
    with traced(settings), measured(settings):
        _spare_the_collector()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve_until_signalled(Worker(settings, registry)))


def measured(settings: Settings) -> contextlib.AbstractContextManager[None]:
    """Metrics go to a collector while this goes on, where they are configured to."""
    if settings.metrics is None:
        return contextlib.nullcontext()
    from hayrunner.telemetry.otel_setup import exported_metrics

    return exported_metrics(settings)


@contextlib.contextmanager
def traced(settings: Settings) -> Generator[None]:
    """Traces while this goes on, where they are configured. What is left of them is sent at the
    end, within a few seconds."""
    from hayrunner.telemetry.otel_setup import content_policy, set_up_export

    export = set_up_export(settings)
    if export is None:
        yield
        return
    from hayrunner.telemetry.tracer import start_tracing, stop_tracing

    start_tracing(export.provider, content_policy(settings))
    try:
        yield
    finally:
        stop_tracing()
        export.end()


def _spare_the_collector() -> None:
    """Take what was imported out of the garbage collector's sight, and let it look at little at a
    time.

    Haystack and what it imports live as long as the process: a full collection over them, with
    a few hundred runs beside them, took 130 ms in which no stream moved. What is looked at grows
    with the runs that are going on, about 100 objects each: 10,000 take 10 ms. A run that is over
    leaves nothing to be found; before that was so, one look in 600 runs took 250 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 5, 20)


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
