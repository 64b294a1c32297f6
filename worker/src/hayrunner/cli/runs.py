"""`hayrunner runs`: what can be said to a run, wherever it is."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hayrunner.cli.exits import ExitCode, run
from hayrunner.cli.options import AsJson, Namespace, NatsUrl
from hayrunner.errors import ConfigurationError

if TYPE_CHECKING:
    from hayrunner_contracts.commands import RunCommand

__all__ = ["runs"]

runs = typer.Typer(
    name="runs", help="Say something to a run.", no_args_is_help=True, rich_markup_mode=None
)

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's message id.")]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="The tool call's id.")]
Feedback = Annotated[str | None, typer.Option("--feedback", help="What the model is told.")]


@runs.command()
def approve(
    run_id: RunId,
    call_id: CallId,
    feedback: Feedback = None,
    arguments: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="Other arguments to run it with.")
    ] = None,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Let a tool call that waits for approval run."""

    def command() -> "RunCommand":
        from hayrunner_contracts.commands import Approve, Modify

        if arguments is None:
            return Approve(tool_call_id=call_id, feedback=feedback)
        try:
            changed = msgspec.json.decode(arguments, type=dict[str, Any])
        except msgspec.DecodeError:
            raise ConfigurationError("--input takes a JSON object") from None
        return Modify(tool_call_id=call_id, tool_input=changed, feedback=feedback)

    run(_send(run_id, command, nats, namespace, as_json), as_json=as_json)


@runs.command()
def deny(
    run_id: RunId,
    call_id: CallId,
    feedback: Feedback = None,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Do not let a tool call run; the model goes on without it."""

    def command() -> "RunCommand":
        from hayrunner_contracts.commands import Deny

        return Deny(tool_call_id=call_id, feedback=feedback)

    run(_send(run_id, command, nats, namespace, as_json), as_json=as_json)


@runs.command()
def say(
    run_id: RunId,
    text: Annotated[str, typer.Argument(help="The message.")],
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Send a further message, which the run takes in before its next model call."""

    def command() -> "RunCommand":
        from hayrunner_contracts.commands import Say

        return Say(text=text)

    run(_send(run_id, command, nats, namespace, as_json), as_json=as_json)


@runs.command()
def cancel(
    run_id: RunId,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """End a run."""

    def command() -> "RunCommand":
        from hayrunner_contracts.commands import Cancel

        return Cancel(reason="cancelled from the command line")

    run(_send(run_id, command, nats, namespace, as_json), as_json=as_json)


async def _send(
    run_id: str, command: Any, nats: str | None, namespace: str | None, as_json: bool
) -> ExitCode:
    """Store a command for the run; what became of it is among the run's events."""
    from hayrunner.cli.connecting import connect
    from hayrunner.settings import load_settings
    from hayrunner_contracts.codec import decode_command, encode

    # Held against the worker's rules here: there it would only be logged.
    wanted = decode_command(encode(command()))
    kind = type(wanted).__struct_config__.tag
    settings = load_settings(nats_url=nats, namespace=namespace)
    async with await connect(settings) as client:
        await client.send_command(run_id, wanted)
    if as_json:
        sys.stdout.write(msgspec.json.encode({"sent": kind, "message_id": run_id}).decode() + "\n")
    else:
        print(f"{kind}: sent")
    return ExitCode.DONE
