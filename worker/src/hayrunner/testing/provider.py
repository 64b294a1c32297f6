"""A scripted model provider on loopback, over real HTTP: chat completions, the Responses API,
Anthropic's Messages API and Ollama's chat API.

A *scenario* is a list of turns, a turn is what one model call answers: the JSON chunks of the
stream in order, with directives between them:

- `{"$sleep": s}` waits `s` seconds; `{"$at": s}` waits until `s` seconds after the turn began,
  which keeps a fixed rate without drift;
- `{"$abort": true}` resets the connection; `{"$close": true}` ends the body without its `[DONE]`;
- `{"$hang": true}` keeps the connection open until the client leaves;
- `{"$status": 429, "headers": {…}, "body": {…}}`, first of a turn, answers with an HTTP error;
- `{"$json": {…}}`, first of a turn, answers with that plain JSON body, streaming asked for or not;
- `bytes` are written as they are.

A turn is iterated lazily, sync or async, so that a generator can make chunks as they are sent.
`Tries` is a turn that answers the same request in another way each time.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import msgspec
from aiohttp import web

from hayrunner.testing.formats import (
    ChatFormat,
    Element,
    Format,
    MessagesFormat,
    OllamaFormat,
    ResponsesFormat,
)

__all__ = [
    "Element",
    "RecordedRequest",
    "Scenario",
    "ScriptedProvider",
    "Tries",
    "Turn",
    "load_scenarios",
]


class Tries:
    """What a request is answered with the first time, the second, and so on; the last of `turns`
    from then on. Requests are the same where their bodies are."""

    def __init__(self, *turns: "Turn") -> None:
        self._turns = turns
        self._seen: Counter[bytes] = Counter()

    def next(self, body: dict[str, Any]) -> "Turn":
        """The turn for one more request with this body."""
        key = msgspec.json.encode(body, order="sorted")
        number, self._seen[key] = self._seen[key], self._seen[key] + 1
        return self._turns[min(number, len(self._turns) - 1)]


Turn: TypeAlias = Iterable[Element] | AsyncIterable[Element] | Tries
Scenario: TypeAlias = Sequence[Turn] | Callable[[dict[str, Any]], Turn]


def load_scenarios(path: str | Path) -> dict[str, list[list[dict[str, Any]]]]:
    """Read a scenario file: name to turns."""
    return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, list[list[dict[str, Any]]]])


@dataclass(kw_only=True, eq=False)
class RecordedRequest:
    """One request as it arrived, and what became of its answer. Times are `time.monotonic()`;
    `path` has the query, too.

    `emitted` holds the time each chunk was handed to the socket, `disconnected_at` the moment
    the client was seen to leave before its answer ended, `finished_at` a complete answer.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    peer: str
    received_at: float = field(default_factory=time.monotonic)
    emitted: list[float] = field(default_factory=list[float])
    disconnected_at: float | None = None
    finished_at: float | None = None


class ScriptedProvider:
    """A model's server that answers from a scenario.

    ```python
    async with ScriptedProvider(load_scenarios(path)["text"]) as provider:
        generator = OpenAICompatibleChatGenerator(model="m", api_base_url=provider.base_url)
    ```

    Which turn is served depends on the request alone, so that concurrent and repeated runs do
    not disturb one another: the number of assistant messages in it, or of batches of tool outputs
    for the Responses API; the last turn where there are more. `turn_of` replaces
    that rule; a scenario that is itself a callable gets the request's body and gives the turn.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        turn_of: Callable[[dict[str, Any]], int] | None = None,
        port: int = 0,
    ) -> None:
        self.scenario = scenario
        self.requests: list[RecordedRequest] = []
        self._turn_of = turn_of
        self._port = port
        self._runner: web.AppRunner | None = None
        self._leaving = False

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:{port}/v1`, to be given as a client's base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def root_url(self) -> str:
        """`http://127.0.0.1:{port}`, for clients that add the version themselves."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def disconnects(self) -> list[float]:
        """When clients were seen to leave before their answer had ended."""
        times = (request.disconnected_at for request in self.requests)
        return [seen for seen in times if seen is not None]

    @property
    def open_connections(self) -> int:
        """TCP connections that are open now, idle ones included."""
        server = self._runner.server if self._runner else None
        return len(server.connections) if server else 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/responses", self._responses)
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_post("/api/chat", self._ollama)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leaving = True
        if self._runner:
            await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        record = await self._record(request)
        turn = self._turn(record.body, _assistant_messages)
        return await self._answer(request, record, turn, ChatFormat())

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        record = await self._record(request)
        turn = self._turn(record.body, _tool_output_batches)
        return await self._answer(request, record, turn, ResponsesFormat())

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        record = await self._record(request)
        turn = self._turn(record.body, _assistant_messages)
        return await self._answer(request, record, turn, MessagesFormat())

    async def _ollama(self, request: web.Request) -> web.StreamResponse:
        record = await self._record(request)
        turn = self._turn(record.body, _assistant_messages)
        return await self._answer(request, record, turn, OllamaFormat())

    async def _record(self, request: web.Request) -> RecordedRequest:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        record = RecordedRequest(
            path=request.path_qs,
            headers=dict(request.headers),
            body=msgspec.json.decode(await request.read(), type=dict[str, Any]),
            peer=repr(peer),
        )
        self.requests.append(record)
        return record

    def _turn(self, body: dict[str, Any], count: Callable[[dict[str, Any]], int]) -> Turn:
        if callable(self.scenario):
            turn = self.scenario(body)
        else:
            number = (self._turn_of or count)(body)
            turn = self.scenario[min(number, len(self.scenario) - 1)]
        while isinstance(turn, Tries):
            turn = turn.next(body)
        return turn

    async def _answer(
        self, request: web.Request, record: RecordedRequest, turn: Turn, form: Format
    ) -> web.StreamResponse:
        elements = _lazily(turn)
        first = await anext(elements, {"$close": True})
        try:
            if not isinstance(first, bytes) and ("$status" in first or "$json" in first):
                return _plain(first)
            if not record.body.get("stream"):
                chunks = [first] + [element async for element in elements]
                return web.json_response(body=msgspec.json.encode(form.whole(chunks)))
            return await self._stream(request, record, _after(first, elements), form)
        except (asyncio.CancelledError, ConnectionResetError):
            # The client left, or the server is going down: only the first is worth recording.
            if not self._leaving:
                record.disconnected_at = time.monotonic()
            raise

    async def _stream(
        self,
        request: web.Request,
        record: RecordedRequest,
        elements: AsyncIterator[Element],
        form: Format,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": form.content_type})
        began = time.monotonic()
        await response.prepare(request)
        async for element in elements:
            if isinstance(element, bytes):
                await response.write(element)
            elif await _obey(element, request, began):
                record.finished_at = time.monotonic()
                return response
            elif not any(key.startswith("$") for key in element):
                await response.write(form.frame(element))
                record.emitted.append(time.monotonic())
        if form.end:
            await response.write(form.end)
        record.finished_at = time.monotonic()
        return response


async def _obey(element: Mapping[str, Any], request: web.Request, began: float) -> bool:
    """Carry out a directive. True where the answer ends with it."""
    if "$sleep" in element:
        await asyncio.sleep(element["$sleep"])
    elif "$at" in element:
        await asyncio.sleep(max(0.0, began + element["$at"] - time.monotonic()))
    elif "$hang" in element:
        await asyncio.Event().wait()
    elif "$abort" in element and request.transport is not None:
        # What was written may still be in the socket's buffer: let it leave before the reset.
        await asyncio.sleep(0.01)
        request.transport.abort()
    return "$abort" in element or "$close" in element


def _plain(first: Mapping[str, Any]) -> web.Response:
    return web.Response(
        status=first.get("$status", 200),
        headers=first.get("headers"),
        content_type="application/json",
        body=msgspec.json.encode(first.get("$json", first.get("body", {}))),
    )


async def _lazily(turn: Turn) -> AsyncIterator[Element]:
    assert not isinstance(turn, Tries)  # `_turn` has chosen
    if isinstance(turn, AsyncIterable):
        async for element in turn:
            yield element
    else:
        for element in turn:
            yield element


async def _after(first: Element, rest: AsyncIterator[Element]) -> AsyncIterator[Element]:
    yield first
    async for element in rest:
        yield element


def _assistant_messages(body: dict[str, Any]) -> int:
    return sum(message.get("role") == "assistant" for message in body.get("messages", ()))


def _tool_output_batches(body: dict[str, Any]) -> int:
    """Consecutive tool outputs answer one model call together: count the groups."""
    items = body.get("input")
    if not isinstance(items, list):
        return 0
    typed = cast("list[dict[str, Any]]", items)
    outputs = [item.get("type") == "function_call_output" for item in typed]
    return sum(now and not before for before, now in zip([False, *outputs], outputs, strict=False))
