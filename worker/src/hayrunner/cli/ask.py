"""`hayrunner ask`: one run, watched in the terminal, or its answer alone."""

import asyncio
from typing import Annotated

import typer

from hayrunner.cli.exits import ExitCode, run
from hayrunner.cli.interrupts import OnInterrupt
from hayrunner.cli.options import AsJson, Namespace, NatsUrl

__all__ = ["ask"]


def ask(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    prompt: Annotated[
        str | None, typer.Argument(help="What to ask; `-` or nothing reads standard input.")
    ] = None,
    answer: Annotated[bool, typer.Option("--answer", help="Only the answer, no events.")] = False,
    tools: Annotated[bool, typer.Option("--tools", help="With --answer: run the tools.")] = False,
    direct: Annotated[
        bool, typer.Option("--direct/--durable", help="Ask a worker directly; nothing is queued.")
    ] = False,
    thread: Annotated[str | None, typer.Option("--thread", help="Conversation to go on with.")] = (
        None
    ),
    user: Annotated[str | None, typer.Option("--user", help="Who asks, for the agent.")] = None,
    preamble: Annotated[str | None, typer.Option("--preamble", help="System prompt.")] = None,
    max_turns: Annotated[int | None, typer.Option("--max-turns", help="Model calls.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature")] = None,
    tool_choice: Annotated[
        str | None, typer.Option("--tool-choice", help="auto, required, none, or a tool's name.")
    ] = None,
    tool_concurrency: Annotated[
        int | None, typer.Option("--tool-concurrency", help="Tools at once.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=JSON", help="Any other option; repeatable."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds for the whole run.")
    ] = None,
    on_interrupt: Annotated[
        OnInterrupt, typer.Option("--on-interrupt", help="What Ctrl-C does to the run.")
    ] = OnInterrupt.ASK,
    approve_all: Annotated[
        bool, typer.Option("--approve-all", help="Approve every tool call that needs it.")
    ] = False,
    deny_all: Annotated[
        bool, typer.Option("--deny-all", help="Deny every tool call that needs approval.")
    ] = False,
    nats: NatsUrl = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Ask an agent and watch it work.

    --json: one event per line, or the result. Ctrl-C asks whether to cancel the run; without a
    terminal it only ends the watching. Tool calls that need approval are asked about on the
    terminal; without one they wait, and how to decide on them is printed.
    """
    given = {
        "thread_id": thread,
        "user": user,
        "preamble": preamble,
        "max_turns": max_turns,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "tool_choice": tool_choice,
        "tool_concurrency": tool_concurrency,
    }

    async def work() -> ExitCode:
        from hayrunner.cli.approving import Answer
        from hayrunner.cli.asker import GRACE_S, Asker
        from hayrunner.cli.asking import Question, read_prompt
        from hayrunner.cli.connecting import connect
        from hayrunner.settings import load_settings
        from hayrunner_contracts.errors import ClientTimeout

        question = Question.of(
            agent,
            read_prompt(prompt),
            mode="answer" if answer else "stream",
            tools=tools,
            timeout_s=timeout,
            given=given,
            options=option or [],
        )
        settings = load_settings(nats_url=nats, namespace=namespace)
        async with await connect(settings) as client:
            asker = Asker(
                client,
                question,
                direct=direct,
                as_json=as_json,
                approvals=Answer.of(approve_all=approve_all, deny_all=deny_all),
            )
            limit = None if timeout is None else timeout + GRACE_S
            try:
                async with asyncio.timeout(limit):
                    return await (asker.answer() if answer else asker.stream(on_interrupt))
            except TimeoutError:
                raise ClientTimeout(
                    f"the run has not ended within {limit:g} s; it is {question.message_id}"
                ) from None

    run(work(), as_json=as_json)
