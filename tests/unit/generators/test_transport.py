"""Timeouts, retries and connections, against a real server."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from haystack.dataclasses import StreamingChunk

from hayrunner.errors import ProviderError
from hayrunner.generators import OpenAICompatibleChatGenerator
from hayrunner.testing.provider import Element, ScriptedProvider
from hayrunner_contracts.testing import eventually

Serve = Callable[..., Awaitable[tuple[ScriptedProvider, OpenAICompatibleChatGenerator]]]


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


HELLO = [text("Hello"), text("", "stop")]
IGNORED: Callable[[StreamingChunk], None] = lambda chunk: None  # noqa: E731


def in_order() -> Callable[[dict[str, Any]], int]:
    """Serve a scenario's turns one after the other, whatever the requests hold."""
    numbers = count()
    return lambda body: next(numbers)


async def reply_of(generator: OpenAICompatibleChatGenerator) -> str | None:
    return (await generator.run_async("hi"))["replies"][0].text


async def failure_of(generator: OpenAICompatibleChatGenerator) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await generator.run_async("hi")
    return caught.value


@pytest.fixture
async def silent_port() -> AsyncIterator[int]:
    """A port that accepts connections and says nothing, a TLS hello neither."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def test_a_connection_that_is_not_made_in_time_is_the_connect_timeout(
    silent_port: int,
) -> None:
    generator = OpenAICompatibleChatGenerator(
        api_base_url=f"https://127.0.0.1:{silent_port}", connect_timeout_s=0.05, max_retries=0
    )
    error = await failure_of(generator)
    await generator.close_async()
    assert "connect timeout of 0.05 s" in str(error)
    assert error.retryable


async def test_an_answer_that_never_begins_is_the_first_byte_timeout(silent_port: int) -> None:
    generator = OpenAICompatibleChatGenerator(
        api_base_url=f"http://127.0.0.1:{silent_port}", first_byte_timeout_s=0.05
    )
    error = await failure_of(generator)
    await generator.close_async()
    assert "first byte timeout of 0.05 s" in str(error)
    assert error.retryable


async def test_a_body_that_never_begins_is_the_first_byte_timeout_and_not_tried_again(
    serve: Serve,
) -> None:
    provider, generator = await serve([[{"$hang": True}]], first_byte_timeout_s=0.05)
    assert "first byte" in str(await failure_of(generator))
    assert len(provider.requests) == 1
    await eventually(lambda: len(provider.disconnects) == 1, 1)


async def test_silence_between_bytes_is_the_idle_timeout(serve: Serve) -> None:
    provider, generator = await serve([[text("Hel"), {"$hang": True}]], idle_timeout_s=0.05)
    began = time.monotonic()
    error = await failure_of(generator)
    assert "idle timeout of 0.05 s" in str(error)
    assert error.retryable
    assert 0.05 <= time.monotonic() - began < 0.5
    await eventually(lambda: len(provider.disconnects) == 1, 1)


async def test_bytes_that_keep_coming_are_not_idle(serve: Serve) -> None:
    keep_alive: list[Element] = [b": ping\n\n", {"$sleep": 0.03}]
    _, generator = await serve([[*keep_alive * 4, *HELLO]], idle_timeout_s=0.06)
    assert await reply_of(generator) == "Hello"


async def test_a_callback_that_takes_its_time_is_not_idle(serve: Serve) -> None:
    _, generator = await serve([HELLO], idle_timeout_s=0.05)
    slow = asyncio.Event()

    async def callback(chunk: StreamingChunk) -> None:
        asyncio.get_running_loop().call_later(0.12, slow.set)
        await slow.wait()

    result = await generator.run_async("hi", callback)
    assert result["replies"][0].text == "Hello"


async def test_a_reply_that_drags_on_is_the_total_timeout(serve: Serve) -> None:
    def forever() -> Iterator[Element]:
        while True:
            yield text("x")
            yield {"$sleep": 0.01}

    provider, generator = await serve(lambda body: forever(), total_timeout_s=0.1)
    error = await failure_of(generator)
    assert "total timeout of 0.1 s" in str(error)
    assert error.retryable
    await eventually(lambda: len(provider.disconnects) == 1, 1)


async def test_waiting_for_another_try_counts_into_the_total(serve: Serve) -> None:
    busy = {"$status": 503, "headers": {"Retry-After": "30"}}
    _, generator = await serve([[busy]], total_timeout_s=0.1)
    assert "total timeout" in str(await failure_of(generator))


async def test_a_timeout_error_of_the_callback_stays_one(serve: Serve) -> None:
    _, generator = await serve([HELLO])

    async def callback(chunk: StreamingChunk) -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await generator.run_async("hi", callback)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
async def test_a_passing_failure_is_tried_again(serve: Serve, status: int) -> None:
    failing = [{"$status": status}]
    provider, generator = await serve([failing, failing, HELLO], turn_of=in_order())
    assert await reply_of(generator) == "Hello"
    assert len(provider.requests) == 3


@pytest.mark.usefixtures("short_waits")
async def test_tries_are_counted(serve: Serve) -> None:
    provider, generator = await serve([[{"$status": 429, "headers": {"Retry-After": "0"}}]])
    error = await failure_of(generator)
    assert len(provider.requests) == 3
    assert (error.code, error.status, error.retryable) == ("provider_rate_limited", 429, True)
    assert error.retry_after_s == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_failure_that_will_not_pass_is_raised_at_once(serve: Serve, status: int) -> None:
    provider, generator = await serve([[{"$status": status, "body": {"error": {"code": "no"}}}]])
    error = await failure_of(generator)
    assert len(provider.requests) == 1
    assert (error.status, error.retryable) == (status, False)
    assert str(error) == f"the provider answered {status} (no)"


@pytest.mark.usefixtures("short_waits")
async def test_retry_after_is_waited_for(serve: Serve) -> None:
    busy = [{"$status": 503, "headers": {"Retry-After": "0.08"}}]
    provider, generator = await serve([busy, HELLO], turn_of=in_order())
    await reply_of(generator)
    first, second = provider.requests
    assert 0.08 <= second.received_at - first.received_at < 1


async def test_too_long_a_retry_after_is_reported_and_not_waited_for(serve: Serve) -> None:
    provider, generator = await serve([[{"$status": 429, "headers": {"Retry-After": "3600"}}]])
    error = await failure_of(generator)
    assert len(provider.requests) == 1
    assert (error.retryable, error.retry_after_s) == (True, 3600)


@pytest.mark.usefixtures("short_waits")
async def test_a_connection_lost_before_the_first_byte_is_tried_again(serve: Serve) -> None:
    provider, generator = await serve([[{"$abort": True}], HELLO], turn_of=in_order())
    assert await reply_of(generator) == "Hello"
    assert len(provider.requests) == 2


@pytest.mark.usefixtures("short_waits")
async def test_a_connection_lost_after_the_first_byte_is_not(serve: Serve) -> None:
    provider, generator = await serve([[text("Hel"), {"$sleep": 0.02}, {"$abort": True}]])
    error = await failure_of(generator)
    assert len(provider.requests) == 1
    assert error.retryable


@pytest.mark.usefixtures("short_waits")
async def test_a_server_that_is_not_there_is_tried_again_then_reported() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    generator = OpenAICompatibleChatGenerator(api_base_url=f"http://127.0.0.1:{port}/v1")
    error = await failure_of(generator)
    await generator.close_async()
    assert str(error) == "the provider could not be reached"
    assert isinstance(error.__cause__, OSError)


@pytest.mark.parametrize("url", ["localhost/v1", "ftp://x/v1", "http://"])
async def test_a_base_url_that_is_none_is_said_so(url: str) -> None:
    generator = OpenAICompatibleChatGenerator(api_base_url=url)
    error = await failure_of(generator)
    await generator.close_async()
    assert "api_base_url" in str(error)
    assert not error.retryable


async def test_a_cancelled_call_closes_its_connection_within_100_ms(serve: Serve) -> None:
    provider, generator = await serve([[text("Hel"), {"$hang": True}]])
    streaming = asyncio.Event()

    async def callback(chunk: StreamingChunk) -> None:
        streaming.set()

    task = asyncio.create_task(generator.run_async("hi", callback))
    await streaming.wait()
    cancelled_at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: len(provider.disconnects) == 1, 1)
    assert provider.disconnects[0] - cancelled_at < 0.1


async def test_a_call_cancelled_before_its_answer_closes_its_connection(serve: Serve) -> None:
    provider, generator = await serve([[{"$hang": True}]])
    task = asyncio.create_task(generator.run_async("hi"))
    await eventually(lambda: len(provider.requests) == 1, 1)
    cancelled_at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: len(provider.disconnects) == 1, 1)
    assert provider.disconnects[0] - cancelled_at < 0.1


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_what_a_callback_raises_comes_out_and_the_connection_closes(
    serve: Serve, error: type[BaseException]
) -> None:
    provider, generator = await serve([[text("Hel"), {"$hang": True}]])

    async def callback(chunk: StreamingChunk) -> None:
        raise error

    with pytest.raises(error):
        await generator.run_async("hi", callback)
    raised_at = time.monotonic()
    await eventually(lambda: len(provider.disconnects) == 1, 1)
    assert provider.disconnects[0] - raised_at < 0.1


async def test_one_connection_serves_calls_that_follow_one_another(serve: Serve) -> None:
    provider, generator = await serve([HELLO])
    for _ in range(5):
        await reply_of(generator)
    assert len({request.peer for request in provider.requests}) == 1


async def test_calls_at_once_do_not_mix(serve: Serve) -> None:
    def echo(body: dict[str, Any]) -> Iterator[Element]:
        for character in body["messages"][0]["content"]:
            yield text(character)
            yield {"$sleep": 0.001}
        yield text("", "stop")

    _, generator = await serve(echo)
    prompts = [f"prompt {number}" for number in range(50)]
    results = await asyncio.gather(*(generator.run_async(prompt) for prompt in prompts))
    assert [result["replies"][0].text for result in results] == prompts


async def test_closing_closes_every_connection_and_a_later_call_opens_one(serve: Serve) -> None:
    provider, generator = await serve([HELLO])
    await reply_of(generator)
    assert provider.open_connections == 1
    await generator.close_async()
    await eventually(lambda: provider.open_connections == 0, 1)
    assert await reply_of(generator) == "Hello"


async def test_a_body_of_megabytes_is_sent(serve: Serve) -> None:
    provider, generator = await serve([HELLO])
    prompt = "é" * 2_000_000
    await generator.run_async(prompt)
    assert provider.requests[0].body["messages"][0]["content"] == prompt
    assert "Content-Length" in provider.requests[0].headers


async def test_an_event_without_an_end_is_an_error(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hayrunner.generators.sse.SseParser.__init__.__defaults__", (1000,))
    _, generator = await serve([[b"data: " + b"x" * 5000, {"$hang": True}]])
    error = await failure_of(generator)
    assert "longer than 1000 bytes" in str(error)
    assert not error.retryable


async def test_a_server_that_leaves_the_stream_open_after_its_end_holds_nobody_up(
    serve: Serve,
) -> None:
    provider, generator = await serve([[*HELLO, b"data: [DONE]\n\n", {"$hang": True}]])
    began = time.monotonic()
    assert await reply_of(generator) == "Hello"
    assert time.monotonic() - began < 0.5
    await eventually(lambda: len(provider.disconnects) == 1, 1)


async def test_a_break_after_the_finish_reason_loses_only_the_usage(serve: Serve) -> None:
    _, generator = await serve([[*HELLO, {"$sleep": 0.02}, {"$abort": True}]])
    assert await reply_of(generator) == "Hello"


async def test_a_clean_end_in_the_middle_of_a_reply_is_an_error(serve: Serve) -> None:
    _, generator = await serve([[text("Hel"), {"$close": True}]])
    assert (await failure_of(generator)).retryable
