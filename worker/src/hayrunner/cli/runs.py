"""`hayrunner runs`: what is queued, running, waiting and done, and what can be said to a run."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hayrunner.cli.clients import with_client
from hayrunner.cli.exits import ExitCode
from hayrunner.cli.options import AsJson, Namespace, NatsUrl
from hayrunner.errors import ConfigurationError

if TYPE_CHECKING:
    from hayrunner.cli.run_commands import Decision, Outcome
    from hayrunner_contracts.client import RunClient
    from hayrunner_contracts.commands import RunCommand

__all__ = ["runs"]

runs = typer.Typer(
    name="runs",
    help="Runs: list, show, tail, cancel; decide on their tool calls.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's message id.")]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="The tool call's id.")]
Feedback = Annotated[str | None, typer.Option("--feedback", help="What the model is told.")]
Wait = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to look for what became of it; 0: send it.")
]


@runs.command("list")
def list_runs(
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="queued, running, waiting, done, …; repeatable."),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 20,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """List runs: queued ones first, then the last changed ones."""

    async def work(client: "RunClient") -> ExitCode:
        from hayrunner.cli.run_records import RunRecords, statuses_of
        from hayrunner.cli.run_views import print_list

        wanted = statuses_of(status)
        found = await RunRecords(client).recent(statuses=wanted, agent=agent, limit=limit)
        print_list(found, as_json=as_json)
        return ExitCode.DONE

    with_client(work, nats, namespace, as_json)


@runs.command()
def show(
    run_id: RunId, nats: NatsUrl = None, namespace: Namespace = None, as_json: AsJson = False
) -> None:
    """Show a run: its status, what it waits for, how it ended."""

    async def work(client: "RunClient") -> ExitCode:
        from hayrunner.cli.run_records import RunRecords
        from hayrunner.cli.run_views import print_run

        print_run(await RunRecords(client).find(run_id), as_json=as_json)
        return ExitCode.DONE

    with_client(work, nats, namespace, as_json)


@runs.command()
def tail(
    run_id: RunId,
    after: Annotated[int, typer.Option("--after", min=0, help="From this seq on.")] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds without an event; 0: no limit.")
    ] = 0,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's events: those that are stored, then the others as they come, to its end."""

    async def work(client: "RunClient") -> ExitCode:
        from hayrunner.cli.run_tail import tail_run

        return await tail_run(client, run_id, after=after, timeout_s=timeout, as_json=as_json)

    with_client(work, nats, namespace, as_json)


@runs.command()
def cancel(
    run_id: RunId,
    reason: Annotated[
        str, typer.Option("--reason", help="Why.")
    ] = "cancelled from the command line",
    wait: Wait = 10,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """End a run, and wait until it has ended."""

    async def work(client: "RunClient") -> ExitCode:
        from hayrunner.cli import run_commands
        from hayrunner_contracts.commands import Cancel

        checked(Cancel(reason=reason))
        outcome = await run_commands.cancel(client, run_id, reason, wait_s=wait)
        return _tell("cancel", run_id, outcome, as_json)

    with_client(work, nats, namespace, as_json)


@runs.command()
def approve(
    run_id: RunId,
    call_id: CallId,
    feedback: Feedback = None,
    arguments: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="Other arguments to run it with.")
    ] = None,
    wait: Wait = 10,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Let a tool call that waits for approval run."""

    def decision() -> "Decision":
        from hayrunner_contracts.commands import Approve, Modify

        if arguments is None:
            return Approve(tool_call_id=call_id, feedback=feedback)
        try:
            changed = msgspec.json.decode(arguments, type=dict[str, Any])
        except msgspec.DecodeError:
            raise ConfigurationError("--input takes a JSON object") from None
        return Modify(tool_call_id=call_id, tool_input=changed, feedback=feedback)

    _decide(run_id, decision, wait, nats, namespace, as_json)


@runs.command()
def deny(
    run_id: RunId,
    call_id: CallId,
    feedback: Feedback = None,
    wait: Wait = 10,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Do not let a tool call run; the model goes on without it."""

    def decision() -> "Decision":
        from hayrunner_contracts.commands import Deny

        return Deny(tool_call_id=call_id, feedback=feedback)

    _decide(run_id, decision, wait, nats, namespace, as_json)


@runs.command()
def say(
    run_id: RunId,
    text: Annotated[str, typer.Argument(help="The message.")],
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Send a further message, which the run takes in before its next model call."""

    async def work(client: "RunClient") -> ExitCode:
        from hayrunner.cli.run_commands import Outcome, Verdict
        from hayrunner_contracts.commands import Say

        await client.send_command(run_id, checked(Say(text=text)))
        return _tell("say", run_id, Outcome(Verdict.STORED), as_json)

    with_client(work, nats, namespace, as_json)


def checked(command: "RunCommand") -> Any:
    """The command, held against the worker's rules: there it would only be logged."""
    from hayrunner_contracts.codec import decode_command, encode

    return decode_command(encode(command))


def _decide(
    run_id: str,
    decision: "Callable[[], Decision]",
    wait: float,
    nats: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    async def work(client: "RunClient") -> ExitCode:
        from hayrunner.cli import run_commands

        wanted = checked(decision())
        outcome = await run_commands.decide(client, run_id, wanted, wait_s=wait)
        return _tell(type(wanted).__struct_config__.tag, run_id, outcome, as_json)

    with_client(work, nats, namespace, as_json)


def _tell(command: str, run_id: str, outcome: "Outcome", as_json: bool) -> ExitCode:
    from hayrunner.cli.rendering import safe_text
    from hayrunner.cli.run_views import write_json

    if as_json:
        told = {"sent": command, "message_id": run_id, "outcome": outcome.verdict.value}
        write_json(told if outcome.reason is None else told | {"reason": outcome.reason})
    else:
        reason = f": {outcome.reason}" if outcome.reason else ""
        print(safe_text(f"{command} {outcome.verdict.value}{reason}"))
    return outcome.exit_code
