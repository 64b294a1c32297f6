"""A run's events on the terminal, whoever started it."""

import asyncio
from contextlib import aclosing

from hayrunner.cli.asker import Ending, write_wire
from hayrunner.cli.exits import ExitCode, say
from hayrunner.cli.rendering import RunView, make_console
from hayrunner.cli.run_records import FINAL, RunRecords
from hayrunner_contracts.client import RunClient

__all__ = ["tail_run"]

_NO_LIMIT_S = 10 * 365 * 86_400.0


async def tail_run(
    client: RunClient, run_id: str, *, after: int, timeout_s: float, as_json: bool
) -> ExitCode:
    """Show the events after `after`, stored and then live, to the run's end; leaves with the code
    of the run, as far as it was seen. `ConfigurationError` where there is no such run,
    `ClientTimeout` after `timeout_s` seconds without an event (0: never), `EventsLost` where some
    are no longer stored."""
    found = await RunRecords(client).find(run_id)
    view, ending = RunView(make_console()), Ending()
    seen = False
    reading = client.attach_wire(run_id, after, timeout=timeout_s or _NO_LIMIT_S)
    try:
        async with aclosing(reading):
            async for event, data in reading:
                seen = True
                ending.note(event)
                if as_json:
                    write_wire(data)
                else:
                    view.show(event)
    except asyncio.CancelledError:
        say("no longer watching; the run goes on", as_json=as_json)
        raise
    if not seen and found.record.status in FINAL:
        say(f"the run has ended: {found.record.status}; nothing after {after}", as_json=as_json)
    return ending.exit_code
