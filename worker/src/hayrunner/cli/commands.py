"""The commands, and nothing else: each is said where it is done."""

from importlib.metadata import version

import typer

from hayrunner.cli.ask import ask
from hayrunner.cli.chat import chat
from hayrunner.cli.check import check
from hayrunner.cli.dead import dead
from hayrunner.cli.demo import demo
from hayrunner.cli.dev import dev
from hayrunner.cli.exits import show_tracebacks
from hayrunner.cli.init import init
from hayrunner.cli.runs import runs
from hayrunner.cli.schema import schema
from hayrunner.cli.serve import serve
from hayrunner.cli.threads import threads

__all__ = ["app"]

app = typer.Typer(
    name="hayrunner",
    help="Runs Haystack agents and pipelines as workers on NATS.",
    epilog="Settings: HAYRUNNER_NATS_URL, HAYRUNNER_NAMESPACE, …; see docs/cli.md.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("hayrunner"))
        raise typer.Exit


@app.callback()
def root(
    show_version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(False, "--debug", envvar="HAYRUNNER_DEBUG", help="Show tracebacks."),
) -> None:
    """Runs Haystack agents and pipelines as workers on NATS."""
    show_tracebacks(debug)


for command in (demo, serve, dev, init, check, ask, chat, schema):
    app.command()(command)
app.add_typer(threads)
app.add_typer(runs)
app.add_typer(dead)
