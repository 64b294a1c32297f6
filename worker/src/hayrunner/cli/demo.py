"""`hayrunner demo`: everything once, in one process, and gone afterwards."""

from hayrunner.cli.exits import ExitCode, run
from hayrunner.cli.options import AsJson

__all__ = ["demo"]


def demo(as_json: AsJson = False) -> None:
    """See one streamed run, and what to try next."""

    async def work() -> ExitCode:
        from hayrunner.cli.show import show_demo
        from hayrunner.telemetry.logs import set_up_logs

        set_up_logs(level="ERROR")
        return await show_demo(as_json=as_json)

    run(work(), as_json=as_json)
