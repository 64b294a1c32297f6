"""`hayrunner init`: streams and consumers, created or updated."""

import sys
from typing import Annotated

import msgspec
import typer

from hayrunner.cli.exits import ExitCode, run
from hayrunner.cli.options import AsJson, Namespace, NatsUrl

__all__ = ["init"]

_CONNECT_TIMEOUT_S = 5.0  # an init job may come up a moment before the server


def init(
    target: Annotated[str | None, typer.Argument(help="Make consumers for its agents.")] = None,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="NAME", help="An agent; repeatable.")
    ] = None,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Create or update streams and consumers.

    Can be run any number of times; refuses what would lose data.
    """

    async def work() -> ExitCode:
        from hayrunner.cli.connecting import connect
        from hayrunner.cli.provisioned import Inventory
        from hayrunner.serving.provisioning import provision
        from hayrunner.settings import load_settings
        from hayrunner.telemetry.logs import set_up_logs

        settings = load_settings(nats_url=nats, namespace=namespace)
        set_up_logs(form=settings.log_format, level="WARNING")
        names = [*(agent or []), *(_names(target) if target is not None else [])]
        async with await connect(settings, timeout_s=_CONNECT_TIMEOUT_S) as client:
            jetstream = client.connection.jetstream()
            inventory = Inventory(jetstream, settings, names)
            before = await inventory.take()
            await provision(jetstream, settings, names)
            changes = inventory.changes(before, await inventory.take())
        if as_json:
            sys.stdout.write(msgspec.json.encode(changes).decode() + "\n")
            return ExitCode.DONE
        for name, change in changes.items():
            print(f"{change:<10} {name}")
        return ExitCode.DONE

    run(work(), as_json=as_json)


def _names(target: str) -> list[str]:
    from hayrunner.loading import load_agents

    return load_agents(target).names()
