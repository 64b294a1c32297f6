"""Real failures in real libraries, each with a secret of its own, at DEBUG of every logger.

`python talkative.py json|console|unguarded`. The test beside it reads what this prints. Unguarded,
the standard library shows what there would be to see.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import logging
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import nats
import nats.aio.msg
import openai
import pydantic
import structlog
from aiohttp import web
from faststream.nats import NatsBroker
from haystack import Pipeline, component
from haystack.components.agents import Agent
from haystack.components.builders import PromptBuilder
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import create_tool_from_function

from hayrunner.embedded import EmbeddedServer
from hayrunner.telemetry.logs import set_up_logs

Scenario = Callable[[str], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def secret_of(name: str) -> str:
    return f"Secret-{name.replace('_', '-')}-Text"


# --- Haystack


@component
class _Model:
    """Calls the tool once, then stops."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._calls = 0

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        self._calls += 1
        if self._calls == 1:
            call = ToolCall(tool_name="lookup", arguments=self._arguments, id="c1")
            return {"replies": [ChatMessage.from_assistant(tool_calls=[call])]}
        return {"replies": [ChatMessage.from_assistant("done")]}


@scenario
async def haystack_tool_failure(secret: str) -> None:
    def lookup(word: str) -> str:
        """Looks a word up."""
        raise ValueError(f"no such word: {word}")

    agent = Agent(
        chat_generator=_Model({"word": secret}), tools=[create_tool_from_function(lookup)]
    )
    await agent.run_async(messages=[ChatMessage.from_user(secret)])


@scenario
async def haystack_pipeline_inputs(secret: str) -> None:
    logging.getLogger("haystack.tracing").setLevel(logging.DEBUG)
    from haystack import tracing
    from haystack.tracing.logging_tracer import LoggingTracer

    tracing.tracer.is_content_tracing_enabled = True
    tracing.enable_tracing(LoggingTracer())
    try:
        pipeline = Pipeline()
        pipeline.add_component("prompt", PromptBuilder("Say {{ it }}", required_variables=["it"]))
        pipeline.run({"prompt": {"it": secret}})
    finally:
        tracing.disable_tracing()
        tracing.tracer.is_content_tracing_enabled = False


# --- HTTP


async def _serve(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


@scenario
async def openai_bad_request(secret: str) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": secret}}, status=400)

    runner, port = await _serve(refuse)
    client = openai.AsyncOpenAI(
        api_key=secret, base_url=f"http://127.0.0.1:{port}/v1", max_retries=0
    )
    with contextlib.suppress(openai.BadRequestError):
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": secret}]
        )
    await client.close()
    await runner.cleanup()


@scenario
async def httpx_connection_error(secret: str) -> None:
    async with httpx.AsyncClient() as client:
        try:
            await client.get(f"http://127.0.0.1:1/?key={secret}")
        except httpx.ConnectError as error:
            logging.getLogger("httpx").error("cannot reach %s", error.request.url, exc_info=error)


@scenario
async def aiohttp_server_error(secret: str) -> None:
    async def fail(request: web.Request) -> web.StreamResponse:
        raise RuntimeError(secret)

    runner, port = await _serve(fail)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/{secret}") as answer:
            await answer.read()
    await runner.cleanup()


# --- NATS


@scenario
async def nats_refused_with_a_password(secret: str) -> None:
    with contextlib.suppress(Exception):
        await nats.connect(
            f"nats://user:{secret}@127.0.0.1:1", max_reconnect_attempts=1, reconnect_time_wait=0.05
        )
    logger = logging.getLogger("nats.aio.client")
    try:
        raise ConnectionRefusedError(f"nats://user:{secret}@127.0.0.1:1")
    except ConnectionRefusedError as error:
        logger.error("nats: encountered error", exc_info=error)


@scenario
async def nats_callback_error(secret: str) -> None:
    failed = asyncio.Event()

    async def fail(message: nats.aio.msg.Msg) -> None:
        try:
            raise RuntimeError(f"{message.subject} {message.data!r}")
        finally:
            asyncio.get_running_loop().call_later(0.05, failed.set)

    async with EmbeddedServer() as server:
        nc = await nats.connect(server.url)
        await nc.subscribe("things.*", cb=fail)
        await nc.publish(f"things.{secret}", secret.encode())
        await failed.wait()
        await nc.close()


@scenario
async def faststream_handler_failure(secret: str) -> None:
    failed = asyncio.Event()
    async with EmbeddedServer() as server:
        broker = NatsBroker(server.url)

        @broker.subscriber("things")
        async def fail(body: str) -> None:
            try:
                raise RuntimeError(body)
            finally:
                asyncio.get_running_loop().call_later(0.05, failed.set)

        await broker.start()
        await broker.publish(secret, "things")
        await failed.wait()
        await broker.stop()


# --- Python


@scenario
async def task_never_retrieved(secret: str) -> None:
    async def fail() -> None:
        raise RuntimeError(secret)

    task = asyncio.create_task(fail(), name=f"task {secret}")
    await asyncio.wait([task])
    del task
    gc.collect()


@scenario
async def callback_error(secret: str) -> None:
    def fail() -> None:
        raise RuntimeError(secret)

    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@scenario
async def future_callback_error(secret: str) -> None:
    future: concurrent.futures.Future[str] = concurrent.futures.Future()

    def fail(done: object) -> None:
        raise RuntimeError(secret)

    future.add_done_callback(fail)
    future.set_result(secret)


@scenario
async def thread_error(secret: str) -> None:
    def fail() -> None:
        raise RuntimeError(secret)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


@scenario
async def finalizer_error(secret: str) -> None:
    class Bad:
        def __del__(self) -> None:
            raise RuntimeError(secret)

    Bad()
    gc.collect()


@scenario
async def warning_with_a_value(secret: str) -> None:
    warnings.warn(f"strange: {secret}", stacklevel=1)


@scenario
async def pydantic_warning(secret: str) -> None:
    class Number(pydantic.BaseModel):
        value: int

    Number.model_construct(value=secret).model_dump_json()  # pyright: ignore[reportArgumentType]


@scenario
async def pydantic_error(secret: str) -> None:
    class Number(pydantic.BaseModel):
        value: int

    try:
        Number.model_validate({"value": secret})
    except pydantic.ValidationError as error:
        logging.getLogger("a.validator").exception("invalid: %s", error)


# --- what any library may do


@scenario
async def chained_exception(secret: str) -> None:
    try:
        try:
            raise ValueError(secret)
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        logging.getLogger("a.library").exception("it failed")


@scenario
async def formatted_message(secret: str) -> None:
    logging.getLogger("a.library").error(f"it failed: {secret}")


@scenario
async def argument(secret: str) -> None:
    logging.getLogger("a.library").error("it failed: %s", secret)


@scenario
async def mapping_argument(secret: str) -> None:
    logging.getLogger("a.library").error("it failed: %(what)s", {"what": secret})


@scenario
async def exception_as_message(secret: str) -> None:
    logging.getLogger("a.library").error(ValueError(secret))


@scenario
async def broken_format(secret: str) -> None:
    logging.getLogger("a.library").error("%d things", secret)


@scenario
async def broken_own_format(secret: str) -> None:
    logging.getLogger("hayrunner.somewhere").error("%d things", secret)


@scenario
async def broken_format_in_a_handler_of_a_library(secret: str) -> None:
    logger = logging.getLogger("hayrunner.with.a.handler")
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.error("%d things", secret)


@scenario
async def structlog_of_others(secret: str) -> None:
    structlog.contextvars.bind_contextvars(user=secret)
    structlog.get_logger("a.library").error(f"it failed: {secret}", value=secret)
    try:
        raise ValueError(secret)
    except ValueError:
        structlog.get_logger("a.library").exception("it failed")
    structlog.contextvars.clear_contextvars()


@scenario
async def handler_of_a_library(secret: str) -> None:
    logger = logging.getLogger("a.library.with.a.handler")
    logger.addHandler(logging.StreamHandler(sys.stdout))
    try:
        raise ValueError(secret)
    except ValueError:
        logger.exception("it failed: %s", secret)


@scenario
async def extra_fields(secret: str) -> None:
    logger = logging.getLogger("a.library.with.a.format")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(levelname)s %(prompt)s"))
    logger.addHandler(handler)
    logger.error("it failed", extra={"prompt": secret})


@scenario
async def unhandled_in_the_process(secret: str) -> None:
    try:
        raise ValueError(secret)
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)


def everything_at_debug() -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).setLevel(logging.DEBUG)


async def play() -> None:
    asyncio.get_running_loop().set_debug(True)
    for name, run in SCENARIOS.items():
        everything_at_debug()
        print(json.dumps({"scenario": name}), file=sys.stderr, flush=True)
        await run(secret_of(name))


if __name__ == "__main__":
    if sys.argv[1] == "unguarded":
        logging.basicConfig(level=logging.DEBUG)
    else:
        set_up_logs(form="json" if sys.argv[1] == "json" else "console", level="DEBUG")
    warnings.simplefilter("always")
    asyncio.run(play())
