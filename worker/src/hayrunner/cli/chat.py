"""`hayrunner chat`: a conversation in the terminal, kept in a thread."""

from typing import Annotated

import typer

from hayrunner.cli.exits import ExitCode, run
from hayrunner.cli.interrupts import OnInterrupt
from hayrunner.cli.options import AsJson, Namespace, NatsUrl

__all__ = ["chat"]


def chat(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    thread: Annotated[
        str | None, typer.Option("--thread", help="Conversation to go on with; a new one if not.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Who asks, for the agent.")] = None,
    direct: Annotated[
        bool, typer.Option("--direct/--durable", help="Ask a worker directly; nothing is queued.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=JSON", help="A run option; repeatable."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds for each answer.")
    ] = None,
    approve_all: Annotated[
        bool, typer.Option("--approve-all", help="Let every call that asks run.")
    ] = False,
    deny_all: Annotated[bool, typer.Option("--deny-all", help="Let none run.")] = False,
    on_interrupt: Annotated[
        OnInterrupt, typer.Option("--on-interrupt", help="What Ctrl-C does to a run.")
    ] = OnInterrupt.ASK,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Talk with an agent; it remembers what was said.

    Each line is a message. /exit ends, /thread says which thread it is, /help says this. --json:
    the events, one per line.
    """

    async def work() -> ExitCode:
        from hayrunner.cli.approving import Answer
        from hayrunner.cli.chatting import Chat
        from hayrunner.cli.connecting import connect
        from hayrunner.settings import load_settings
        from hayrunner_contracts.message_ids import new_message_id
        from hayrunner_contracts.subjects import token

        settings = load_settings(nats_url=nats, namespace=namespace)
        thread_id = new_message_id() if thread is None else token("thread_id", thread)
        given = {"thread_id": thread_id, "user": user}
        async with await connect(settings) as client:
            conversation = Chat(
                client,
                agent,
                given,
                options=option or [],
                timeout_s=timeout,
                direct=direct,
                as_json=as_json,
                on_interrupt=on_interrupt,
                approvals=Answer.of(approve_all=approve_all, deny_all=deny_all),
            )
            return await conversation.talk()

    run(work(), as_json=as_json)
