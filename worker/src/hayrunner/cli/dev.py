"""`hayrunner dev`: a worker on an embedded server, started again when a file changes."""

from typing import Annotated

import typer

from hayrunner.cli.exits import ExitCode, run
from hayrunner.cli.options import AsJson, Concurrency, Host, Namespace, Port, Target

__all__ = ["dev"]


def dev(
    target: Target,
    nats_port: Annotated[
        int, typer.Option("--nats-port", metavar="N", help="Taken if it is free; 0: any.")
    ] = 4222,
    namespace: Namespace = None,
    concurrency: Concurrency = None,
    host: Host = None,
    port: Port = 0,
    as_json: AsJson = False,
) -> None:
    """Serve agents with an embedded nats-server, and reload them when they change."""
    flags = {
        "--namespace": namespace,
        "--concurrency": concurrency,
        "--host": host,
        "--port": port,
    }

    async def work() -> ExitCode:
        from hayrunner.cli.reloading import develop

        arguments = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
        if as_json:
            arguments.append("--json")
        return await develop(target, nats_port=nats_port, arguments=arguments, as_json=as_json)

    run(work(), as_json=as_json)
