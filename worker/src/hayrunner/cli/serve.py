"""`hayrunner serve`: a worker."""

import signal

from hayrunner.cli.exits import finish
from hayrunner.cli.options import (
    AsJson,
    Concurrency,
    Host,
    Namespace,
    NatsUrl,
    NoProvision,
    Port,
    Target,
)

__all__ = ["serve"]


def serve(
    target: Target,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    concurrency: Concurrency = None,
    host: Host = None,
    port: Port = None,
    no_provision: NoProvision = False,
    as_json: AsJson = False,
) -> None:
    """Serve agents.

    SIGTERM or Ctrl-C lets running runs end, a second one does not. --json: logs as JSON.
    """

    def work() -> None:
        from hayrunner.settings import load_settings

        settings = load_settings(
            nats_url=nats,
            namespace=namespace,
            concurrency=concurrency,
            host=host,
            port=port,
            provision=False if no_provision else None,
            log_format="json" if as_json else None,
        )
        from hayrunner.loading import load_agents
        from hayrunner.serving.process import run_worker
        from hayrunner.telemetry.logs import set_up_logs

        # Until the worker has its own handler: as process 1 of a container, this one would ignore
        # SIGTERM while it loads.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # Before the agents are imported: they may log, and so may Haystack.
        set_up_logs(
            form=settings.log_format, level=settings.log_level, trusted=settings.trusted_loggers
        )
        run_worker(settings, load_agents(target))

    finish(work, as_json=as_json)
