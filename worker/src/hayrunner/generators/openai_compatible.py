"""The chat generator for any server that speaks OpenAI's chat completions."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import (
    AsyncStreamingCallbackT,
    ChatMessage,
    ComponentInfo,
    StreamingCallbackT,
    StreamingChunk,
)
from haystack.tools import (
    ToolsType,
    deserialize_tools_or_toolset_inplace,
    serialize_tools_or_toolset,
    warm_up_tools,
    warm_up_tools_async,
)
from haystack.utils import Secret, deserialize_callable, serialize_callable

from hayrunner.errors import ConfigurationError, ProviderError
from hayrunner.generators.assembly import ReplyAssembler
from hayrunner.generators.requests import flat_tools, merged_parameters, request_body
from hayrunner.generators.schemas import response_format_of
from hayrunner.generators.sse import EventTooLong, SseParser
from hayrunner.generators.transport import Answer, Limits, Transport

__all__ = ["DEFAULT_BASE_URL", "ON_TEXT", "OpenAICompatibleChatGenerator"]

ON_TEXT = "on_text"
"""A streaming callback that has this attribute, an async function of a string, is given pieces
of plain text by it, and chunks for everything else: a chunk is most of what a piece costs."""

DEFAULT_BASE_URL = "https://api.openai.com/v1"

_KEY_FROM_ENVIRONMENT = Secret.from_env_var("OPENAI_API_KEY", strict=False)


@component
class OpenAICompatibleChatGenerator:
    """Chat completions over aiohttp and msgspec, as a Haystack component.

    It always streams from the provider, with a callback or without, and hands on well-formed
    chunks and replies where providers are sloppy: see `calls` for tool calls, `assembly` for
    everything else. Tool calls whose arguments are no JSON object are kept, with the text in
    `ToolCall.extra["invalid_arguments"]`. A refusal is text with `meta["refusal"]`, its finish
    reason `content_filter`.

    One instance serves any number of calls at once. Connections belong to the event loop they
    were opened on: `close_async` on that loop closes them.
    """

    def __init__(
        self,
        *,
        model: str = "gpt-5-mini",
        api_key: Secret | None = _KEY_FROM_ENVIRONMENT,
        api_base_url: str | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        tools: ToolsType | None = None,
        tools_strict: bool = False,
        organization: str | None = None,
        extra_headers: dict[str, str] | None = None,
        connect_timeout_s: float | None = 10.0,
        first_byte_timeout_s: float | None = 120.0,
        idle_timeout_s: float | None = 60.0,
        total_timeout_s: float | None = 600.0,
        max_retries: int = 0,
    ) -> None:
        """`api_key` None or unset sends no authorization, as local servers like it;
        `api_base_url` None is OpenAI's own. Times are seconds, see `transport.Limits`.
        `max_retries` are for where nobody else tries again, such as a pipeline: an agent does,
        and the two multiply.
        """
        self.model = model
        self.api_key = api_key
        self.api_base_url = api_base_url
        self.generation_kwargs = generation_kwargs or {}
        self.streaming_callback = streaming_callback
        self.tools = tools
        self.tools_strict = tools_strict
        self.organization = organization
        self.extra_headers = extra_headers or {}
        self.limits = Limits(
            connect_timeout_s=connect_timeout_s,
            first_byte_timeout_s=first_byte_timeout_s,
            idle_timeout_s=idle_timeout_s,
            total_timeout_s=total_timeout_s,
            max_retries=max_retries,
        )
        self._transport = Transport(self.limits)
        self._warm = False
        flat_tools(tools)

    def warm_up(self) -> None:
        """Warm up the tools. Connections are opened by the first call."""
        if not self._warm:
            warm_up_tools(self.tools)
            self._warm = True

    async def warm_up_async(self) -> None:
        """Warm up the tools. Connections are opened by the first call."""
        if not self._warm:
            await warm_up_tools_async(self.tools)
            self._warm = True

    def close(self) -> None:
        """Nothing to do: connections can only be closed on their own loop, by `close_async`, and
        the synchronous `run` closes its own.
        """

    async def close_async(self) -> None:
        """Close the running loop's connections. The generator stays usable."""
        await self._transport.close_async()

    def to_dict(self) -> dict[str, Any]:
        """The component in Haystack's serialized form; a key from the environment by its name."""
        parameters = dict(self.generation_kwargs)
        if "response_format" in parameters:
            parameters["response_format"] = response_format_of(parameters["response_format"])
        callback = self.streaming_callback
        return default_to_dict(
            self,
            model=self.model,
            api_key=self.api_key,
            api_base_url=self.api_base_url,
            generation_kwargs=parameters,
            streaming_callback=serialize_callable(callback) if callback else None,
            tools=serialize_tools_or_toolset(self.tools),
            tools_strict=self.tools_strict,
            organization=self.organization,
            extra_headers=self.extra_headers,
            connect_timeout_s=self.limits.connect_timeout_s,
            first_byte_timeout_s=self.limits.first_byte_timeout_s,
            idle_timeout_s=self.limits.idle_timeout_s,
            total_timeout_s=self.limits.total_timeout_s,
            max_retries=self.limits.max_retries,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "OpenAICompatibleChatGenerator":
        """Undo `to_dict`."""
        parameters = dict(data.get("init_parameters", {}))
        deserialize_tools_or_toolset_inplace(parameters, key="tools")
        if parameters.get("streaming_callback"):
            parameters["streaming_callback"] = deserialize_callable(
                parameters["streaming_callback"]
            )
        return default_from_dict(cls, {**data, "init_parameters": parameters})

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
        tools_strict: bool | None = None,
    ) -> dict[str, Any]:
        """`run_async` on an event loop of its own, for Haystack's protocol and for scripts: every
        call opens a connection. Raises `ConfigurationError` where a loop is running already.
        """
        if _loop_is_running():
            raise ConfigurationError("an event loop is running here: await run_async instead")

        async def run_and_close() -> dict[str, Any]:
            try:
                return await self.run_async(
                    messages,
                    streaming_callback,
                    generation_kwargs,
                    tools=tools,
                    tools_strict=tools_strict,
                )
            finally:
                await self.close_async()

        return asyncio.run(run_and_close())

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
        tools_strict: bool | None = None,
    ) -> dict[str, Any]:
        """Call the model once: `{"replies": [message]}`, no reply where there are no messages.

        `generation_kwargs` are merged per key over those of the constructor, None removes a key;
        `tools` and `tools_strict` replace the constructor's. An async `streaming_callback` is
        awaited, a sync one is called on the loop; what it raises, a cancellation too, comes out
        unchanged after the connection was closed.

        Raises `ProviderError` for everything that goes wrong at the provider, and
        `UnsupportedOption` or `ConfigurationError` for a call that cannot be made.
        """
        await self.warm_up_async()
        if isinstance(messages, str):
            messages = [ChatMessage.from_user(messages)]
        if not messages:
            return {"replies": []}
        parameters = merged_parameters(self.generation_kwargs, generation_kwargs)
        headers = self._headers(parameters.pop("extra_headers", None))
        body = request_body(
            model=self.model,
            messages=messages,
            parameters=parameters,
            tools=flat_tools(self.tools if tools is None else tools),
            tools_strict=self.tools_strict if tools_strict is None else tools_strict,
        )
        url = (self.api_base_url or DEFAULT_BASE_URL).rstrip("/") + "/chat/completions"
        assembler = ReplyAssembler(ComponentInfo.from_component(self))
        callback = streaming_callback or self.streaming_callback
        consumer = _Consumer(_emitter(callback), getattr(callback, ON_TEXT, None))
        async with self._transport.stream(url, headers, msgspec.json.encode(body)) as answer:
            await _receive(answer, assembler, consumer)
        return {"replies": [assembler.reply()]}

    def _headers(self, extra: dict[str, str] | None) -> dict[str, str]:
        headers = {
            "Accept": "text/event-stream",
            # A compressing proxy holds chunks back until its block is full.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        key = self.api_key.resolve_value() if self.api_key else None
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if self.organization:
            headers["OpenAI-Organization"] = self.organization
        return {**headers, **self.extra_headers, **(extra or {})}


_Emit = Callable[[Iterable[StreamingChunk]], Awaitable[None]]


@dataclass(frozen=True)
class _Consumer:
    """Where chunks go, and where pieces of plain text go instead, if the callback says so."""

    emit: _Emit
    on_text: Callable[[str], Awaitable[None]] | None


def _emitter(callback: StreamingCallbackT | None) -> _Emit:
    """What hands chunks to the callback, awaiting it where it returns an awaitable."""
    if inspect.iscoroutinefunction(callback):
        # Asked once: asking every answer whether it is awaitable costs as much as the rest.
        awaited = cast("AsyncStreamingCallbackT", callback)

        async def emit_async(chunks: Iterable[StreamingChunk]) -> None:
            for chunk in chunks:
                await awaited(chunk)

        return emit_async

    async def emit(chunks: Iterable[StreamingChunk]) -> None:
        if callback is None:
            return
        for chunk in chunks:
            waiting = callback(chunk)
            if waiting is not None and inspect.isawaitable(waiting):
                await waiting

    return emit


async def _receive(answer: Answer, assembler: ReplyAssembler, consumer: _Consumer) -> None:
    """Read an answer to its end, handing on chunks as they come.

    Some servers answer a request for a stream with one JSON object. Its first byte tells, a
    content type may be wrong: no event stream begins with a brace.
    """
    try:
        if answer.first.lstrip()[:1] == b"{":
            await consumer.emit(assembler.feed_whole(await _whole_body(answer)))
        else:
            await _receive_events(answer, assembler, consumer)
        last = assembler.finish()
    except ProviderError:
        # A reply that broke off has its price, too, where the server counts as it goes.
        await consumer.emit(assembler.usage())
        raise
    await consumer.emit(last)


async def _receive_events(answer: Answer, assembler: ReplyAssembler, consumer: _Consumer) -> None:
    emit, on_text = consumer.emit, consumer.on_text
    feed = assembler.feed if on_text is None else assembler.feed_text
    parser = SseParser()
    data = answer.first
    while data:
        for payload in _parsed(parser, data):
            taken = feed(payload)
            if on_text is not None and type(taken) is str:
                await on_text(taken)
            elif taken:
                await emit(cast("list[StreamingChunk]", taken))
        if assembler.done:
            await answer.drain()
            return
        try:
            data = await answer.read()
        except ProviderError:
            # A reply that has its finish reason is whole: only its usage was lost.
            if not assembler.complete:
                raise
            data = b""
    for payload in parser.close():
        await emit(assembler.feed(payload))


def _parsed(parser: SseParser, data: bytes) -> list[bytes]:
    try:
        return parser.feed(data)
    except EventTooLong as error:
        raise ProviderError(f"the provider's stream: {error}", retryable=False) from None


async def _whole_body(answer: Answer) -> bytes:
    parts = [answer.first]
    while data := await answer.read():
        parts.append(data)
    return b"".join(parts)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
