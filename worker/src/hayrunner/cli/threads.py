"""`hayrunner threads …`: conversations, looked at and changed without a worker."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from hayrunner.cli.clients import with_client
from hayrunner.cli.exits import ExitCode
from hayrunner.cli.options import AsJson, Namespace, NatsUrl

if TYPE_CHECKING:
    from hayrunner_contracts.client import RunClient
    from hayrunner_contracts.thread_client import ThreadClient

__all__ = ["threads"]

threads = typer.Typer(
    name="threads", help="Conversations: list, show, rate, delete, restore.", no_args_is_help=True
)

Thread = Annotated[str, typer.Argument(help="The thread's id.")]


@threads.command("list")
def list_threads(
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted ones too.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """List threads, the last changed one first."""

    async def work(threads: "ThreadClient") -> None:
        from hayrunner.cli.thread_views import print_list

        found = await threads.list(include_deleted=deleted, limit=limit)
        print_list(found, as_json=as_json)

    _with_threads(work, nats, namespace, as_json)


@threads.command()
def show(
    thread: Thread, nats: NatsUrl = None, namespace: Namespace = None, as_json: AsJson = False
) -> None:
    """Show a thread: who said what, and what was thought of it."""

    async def work(threads: "ThreadClient") -> None:
        from hayrunner.cli.thread_views import print_thread

        print_thread(await threads.get(thread), as_json=as_json)

    _with_threads(work, nats, namespace, as_json)


@threads.command()
def rate(
    thread: Thread,
    message_id: Annotated[str, typer.Argument(help="The run whose answer is rated.")],
    rating: Annotated[str, typer.Argument(help="up, down, a number, or none to take it back.")],
    comment: Annotated[str | None, typer.Option("--comment", help="Why.")] = None,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Rate what a run said."""

    async def work(threads: "ThreadClient") -> None:
        from hayrunner.cli.thread_views import parse_rating, print_change

        given = parse_rating(rating)
        await threads.rate(thread, message_id, given, comment=comment)
        print_change(thread, "rated", as_json=as_json)

    _with_threads(work, nats, namespace, as_json)


@threads.command()
def delete(
    thread: Thread, nats: NatsUrl = None, namespace: Namespace = None, as_json: AsJson = False
) -> None:
    """Hide a thread and refuse its runs; `restore` undoes it."""

    async def work(threads: "ThreadClient") -> None:
        from hayrunner.cli.thread_views import print_change

        await threads.delete(thread)
        print_change(thread, "deleted", as_json=as_json)

    _with_threads(work, nats, namespace, as_json)


@threads.command()
def restore(
    thread: Thread, nats: NatsUrl = None, namespace: Namespace = None, as_json: AsJson = False
) -> None:
    """Bring a deleted thread back."""

    async def work(threads: "ThreadClient") -> None:
        from hayrunner.cli.thread_views import print_change

        await threads.restore(thread)
        print_change(thread, "restored", as_json=as_json)

    _with_threads(work, nats, namespace, as_json)


def _with_threads(
    work: Callable[["ThreadClient"], Awaitable[None]],
    nats: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    async def with_threads(client: "RunClient") -> ExitCode:
        await work(client.threads)
        return ExitCode.DONE

    with_client(with_threads, nats, namespace, as_json)
