"""`hayrunner check`: would it work, and if not, what is to be done?"""

import sys
from typing import Annotated

import msgspec
import typer

from hayrunner.cli.exits import ExitCode, run
from hayrunner.cli.options import AsJson, Namespace, NatsUrl

__all__ = ["check"]


def check(
    target: Annotated[str | None, typer.Argument(help="Load its agents and check them.")] = None,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong, if anything.

    Looks at settings, connection, JetStream, permissions, streams, agents and their models.
    """

    async def work() -> ExitCode:
        from hayrunner.cli.checks import examine
        from hayrunner.settings import load_settings
        from hayrunner.telemetry.logs import set_up_logs

        settings = load_settings(nats_url=nats, namespace=namespace)
        set_up_logs(form=settings.log_format, level="ERROR")
        report = await examine(settings, target)
        if as_json:
            sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        else:
            from hayrunner.cli.checks import print_report

            print_report(report)
        return report.exit_code

    run(work(), as_json=as_json)
