"""`hayrunner dead`: requests that were given up on, looked at, run again, thrown away."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from hayrunner.cli.clients import with_client
from hayrunner.cli.exits import ExitCode
from hayrunner.cli.options import AsJson, Namespace, NatsUrl
from hayrunner.errors import ConfigurationError

if TYPE_CHECKING:
    from hayrunner_contracts.client import RunClient
    from hayrunner_contracts.dead_letters import DeadLetters

__all__ = ["dead"]

dead = typer.Typer(
    name="dead",
    help="Requests given up on: list, show, retry, drop.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Numbers = Annotated[
    list[int] | None, typer.Argument(metavar="NUMBER…", help="As `list` shows them.")
]
OfAgent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent's.")]
All = Annotated[bool, typer.Option("--all", help="All of them, or all of --agent's.")]


@dead.command("list")
def list_letters(
    agent: OfAgent = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first."""

    async def work(letters: "DeadLetters") -> ExitCode:
        from collections import deque

        from hayrunner.cli.dead_views import print_list
        from hayrunner_contracts.dead_letters import DeadLetter

        newest: deque[DeadLetter] = deque(maxlen=limit)
        async for letter in letters.list(agent):
            newest.append(letter)
        print_list(list(reversed(newest)), as_json=as_json)
        return ExitCode.DONE

    _with_letters(work, nats, namespace, as_json)


@dead.command()
def show(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `list` shows it.")],
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter: why it is there, its headers, its body."""

    async def work(letters: "DeadLetters") -> ExitCode:
        from hayrunner.cli.dead_views import print_letter

        print_letter(await letters.get(number), as_json=as_json)
        return ExitCode.DONE

    _with_letters(work, nats, namespace, as_json)


@dead.command()
def retry(
    numbers: Numbers = None,
    everything: All = False,
    agent: OfAgent = None,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Queue requests again, each as a new run, whose message id is printed."""

    async def work(letters: "DeadLetters") -> ExitCode:
        from hayrunner.cli.dead_views import print_retry

        for number in await _chosen(letters, numbers, everything, agent):
            print_retry(number, await letters.retry(number), as_json=as_json)
        return ExitCode.DONE

    _with_letters(work, nats, namespace, as_json)


@dead.command()
def drop(
    numbers: Numbers = None,
    everything: All = False,
    agent: OfAgent = None,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Remove dead letters for good."""

    async def work(letters: "DeadLetters") -> ExitCode:
        from hayrunner.cli.dead_views import print_drop

        for number in await _chosen(letters, numbers, everything, agent):
            await letters.drop(number)
            print_drop(number, as_json=as_json)
        return ExitCode.DONE

    _with_letters(work, nats, namespace, as_json)


async def _chosen(
    letters: "DeadLetters", numbers: list[int] | None, everything: bool, agent: str | None
) -> list[int]:
    if everything and not numbers:
        # Those that are there now: what dies meanwhile is left for the next time.
        return [letter.number async for letter in letters.list(agent)]
    if not numbers or everything or agent is not None:
        raise ConfigurationError(
            "name dead letters by their numbers (`hayrunner dead list`), or say --all, with "
            "--agent NAME for one agent's"
        )
    return numbers


def _with_letters(
    work: Callable[["DeadLetters"], Awaitable[ExitCode]],
    nats: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    async def with_letters(client: "RunClient") -> ExitCode:
        from hayrunner_contracts.dead_letters import NoDeadLetter, NotWhole

        try:
            return await work(client.dead_letters)
        except NoDeadLetter as error:
            raise ConfigurationError(f"{error}: see `hayrunner dead list`") from None
        except NotWhole as error:
            raise ConfigurationError(f"{error}: send the request anew") from None

    with_client(with_letters, nats, namespace, as_json)
