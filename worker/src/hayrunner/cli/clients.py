"""Commands that need a client and nothing else."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hayrunner.cli.exits import ExitCode, run

if TYPE_CHECKING:
    from hayrunner_contracts.client import RunClient

__all__ = ["with_client"]


def with_client(
    work: "Callable[[RunClient], Awaitable[ExitCode]]",
    nats: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Do `work` with a connected client, and leave with its code."""

    async def connected() -> ExitCode:
        from hayrunner.cli.connecting import connect
        from hayrunner.settings import load_settings

        settings = load_settings(nats_url=nats, namespace=namespace)
        async with await connect(settings) as client:
            return await work(client)

    run(connected(), as_json=as_json)
