"""What `hayrunner demo` shows."""

import asyncio
import inspect
from typing import Any

from rich.console import Console

from hayrunner.cli.asker import Ending, write_event
from hayrunner.cli.exits import ExitCode
from hayrunner.cli.rendering import RunView, make_console
from hayrunner.demo import MODEL_NAME, Shop
from hayrunner.embedded import EmbeddedServer
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.serving.process import measured, traced
from hayrunner.settings import Settings, load_settings
from hayrunner.telemetry.bus import request_tracing
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import ClientTimeout

__all__ = ["embedded_settings", "show_demo"]

_PROMPT = "Where is order 1042, and when does it arrive?"
_LIMIT_S = 120.0

_NEXT = """
What happened: a request was queued on NATS, a worker took it, ran the agent's loop of model calls
and tools, and published every event on a subject of that one message. The text above is those
events, read by a client. Any number of workers share the work; any number of clients may watch.

Try next. An agent of your own, in agents.py:

    from hayrunner import Agent

    def add(a: int, b: int) -> int:
        \"\"\"Add two numbers.\"\"\"
        return a + b

    class Adder(Agent):
        name = "adder"
        model = "gpt-5-mini"
        tools = (add,)

    export OPENAI_API_KEY=...       # and OPENAI_BASE_URL for a server that is not OpenAI's
    hayrunner dev agents.py         # embedded nats-server, reload on change
    hayrunner ask adder "What is 2 + 3?"
"""


async def show_demo(*, as_json: bool) -> ExitCode:
    """Serve the demo agent on a server of its own, and print one run of it."""
    console = make_console()
    try:
        # A limit, so that a provider that never answers cannot hold the demo up.
        async with asyncio.timeout(_LIMIT_S):
            code = await _show(console, as_json=as_json)
    except TimeoutError:
        raise ClientTimeout(f"the demo has not ended within {_LIMIT_S:g} s") from None
    if not as_json and code is ExitCode.DONE:
        console.print(_NEXT, end="")
    return code


async def _show(console: Console, *, as_json: bool) -> ExitCode:
    async with EmbeddedServer() as server:
        settings = embedded_settings(server.url, storage="memory", port=-1)
        shop = Shop()
        with traced(settings), measured(settings):
            async with Worker(settings, Registry([shop])):
                if not as_json:
                    _print_opening(console, settings, shop)
                return await _show_run(settings, console, as_json=as_json)


def embedded_settings(url: str, **overrides: Any) -> Settings:
    """Settings for an embedded server, which has no users and no TLS, whatever the environment
    says of another one."""
    settings = load_settings(nats_url=url, **overrides)
    of_another = [name for name in Settings.model_fields if name.startswith("nats_")]
    of_another.remove("nats_url")
    return settings.model_copy(update=dict.fromkeys(of_another))


def _print_opening(console: Console, settings: Settings, shop: Shop) -> None:
    model = shop.llm.model if settings.openai_api_key is not None else None
    if model is None:
        label = "offline demo generator: no model is called, usage counts words"
    else:
        where = f" at {settings.openai_base_url}" if settings.openai_base_url else ""
        label = f"model {model}{where}"
    tools = ", ".join(tool.__name__ for tool in shop.tools if inspect.isfunction(tool))
    for name, value in (
        ("server", f"{settings.nats_url} (temporary)"),
        ("agent", f"{shop.name}, with the tools {tools}"),
        ("model", f"{MODEL_NAME}, the {label}" if model is None else label),
        ("prompt", _PROMPT),
    ):
        console.print(f"{name:<8}{value}")
    console.print()


async def _show_run(settings: Settings, console: Console, *, as_json: bool) -> ExitCode:
    show = write_event if as_json else RunView(console).show
    ending = Ending()
    connecting = RunClient.connect(settings.nats_url, settings.namespace, tracing=request_tracing())
    async with await connecting as client:
        async for event in client.stream(Shop.name, _PROMPT):
            show(event)
            ending.note(event)
    return ending.exit_code
