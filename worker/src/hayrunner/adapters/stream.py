"""The Stream adapter: a conversation in, stream events out, without any bus."""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from haystack import Pipeline
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool, Toolset

from hayrunner.adapters.body import RunBody, loop_body
from hayrunner.adapters.citations import CitationRegistry, RunCitations
from hayrunner.adapters.conclusion import concluding
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import as_chat_messages
from hayrunner.adapters.loop import LoopAgent, loop_agent
from hayrunner.adapters.outcome import EventSink
from hayrunner.adapters.pipelines import PipelineAdapter, only_agent
from hayrunner.adapters.run import Messages
from hayrunner.adapters.session import LoopSession
from hayrunner.adapters.settings import RunSettings
from hayrunner.adapters.structured import ResponseFormat
from hayrunner.adapters.suggestions import Suggesting, SuggestionGenerator, bound, suggested
from hayrunner.adapters.writer import StreamWriter
from hayrunner.errors import ConfigurationError
from hayrunner.storage.base import BaseStorageAdapter
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.events import MessageStart, StreamEnd, StreamEvent

__all__ = ["Stream"]

# Events a consumer in the same process may be behind before the run waits for it.
_AHEAD = 256


class Stream:
    """Streams a Haystack Agent or pipeline.

    `generator` names the pipeline's component whose chunks are the answer, where it is not the
    last one that streams. With `store` and a `storage`, the thread is loaded before the run, its
    last `max_history` messages if that is given, and the run's messages are appended after it.
    Sources are numbered in `citation_registry`; in one of each run's own, if it is not given.
    `suggestion_generator` is asked for follow-up questions after an answer. Limits are the
    Haystack Agent's own, unless `stream` is given settings.
    """

    def __init__(
        self,
        pipeline: Any,
        generator: str | None = None,
        store: bool = True,
        storage: BaseStorageAdapter | None = None,
        citation_registry: CitationRegistry | None = None,
        suggestion_generator: Suggesting | None = None,
        *,
        tools: Sequence[Tool | Toolset] | Toolset | None = None,
        system_prompt: str | None = None,
        max_history: int | None = None,
    ) -> None:
        self.max_history = max_history
        self.storage = storage if store else None
        self.system_prompt = system_prompt
        self._tools = tools
        self._citations = citation_registry
        self._loop: LoopAgent | None = None
        self._pipeline: PipelineAdapter | None = None
        if (agent := only_agent(pipeline)) is not None:
            self._loop = loop_agent(agent)
        elif isinstance(pipeline, Pipeline):
            self._pipeline = PipelineAdapter(pipeline, generator)
        else:
            raise ConfigurationError(
                "Stream takes a Haystack Agent or Pipeline, "
                f"this is {type(pipeline).__module__}.{type(pipeline).__qualname__}"
            )
        self._suggestions = self._bound(suggestion_generator)

    def _bound(self, suggesting: Suggesting | None) -> SuggestionGenerator | None:
        if suggesting is None:
            return None
        own = None if self._loop is None else self._loop.chat_generator
        return bound(suggesting, own)

    async def stream(
        self,
        messages: Messages,
        *,
        new_run: Callable[[EventSink], RunContext] | None = None,
        response_format: ResponseFormat | None = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Every event of the run, numbered from 1: `message_start` first, `stream_end` last.

        Failures are events, not exceptions. Closing the iterator cancels the run: its provider
        connection is closed, and what there is of the message is stored. `new_run` makes the
        run's context; one with the agent's own settings, if it is not given. With
        `response_format` the text is the JSON that satisfies it.
        """
        sink = _QueueSink()
        run = (new_run or self._new_run)(sink)
        asked = as_chat_messages(messages)
        writer = None
        if self.storage is not None and run.settings.memory:
            writer = StreamWriter(self.storage, run.message_id, asked)

        async def body(run: RunContext) -> Any:
            history = [] if writer is None else await writer.load(self.max_history)
            conversation = [*as_chat_messages(history), *asked]
            return await self.body(conversation, response_format=response_format)(run)

        session = LoopSession(run, body, writer=writer)
        task = asyncio.ensure_future(session.run())
        task.add_done_callback(lambda _: sink.close())
        seq = 1
        try:
            yield MessageStart(
                seq=seq, message_id=run.message_id, agent=run.agent, thread_id=run.thread_id
            )
            async for event in sink:
                seq += 1
                msgspec.structs.force_setattr(event, "seq", seq)
                yield event
            await task
            yield StreamEnd(seq=seq + 1)
        finally:
            sink.close()
            session.stop("cancelled", "the consumer closed the stream")
            await asyncio.wait([task])

    def _new_run(self, sink: EventSink) -> RunContext:
        settings = RunSettings()
        if self._loop is not None:
            settings = RunSettings(
                max_turns=self._loop.own_max_turns,
                tool_concurrency=self._loop.tool_concurrency_limit,
            )
        return RunContext(message_id=str(uuid.uuid4()), settings=settings, sink=sink)

    def body(
        self,
        messages: Sequence[ChatMessage],
        *,
        response_format: ResponseFormat | None = None,
    ) -> RunBody:
        """The run body for a session. `messages` is the whole conversation. The run of a
        subagent ends with a text even where its loop is cut short."""
        if self._pipeline is not None:
            if response_format is not None:
                field = "options.then_format" if response_format.after_tools else "response_format"
                raise InvalidRequest("a pipeline decides its own output", field=field)
            return self._equipped(self._pipeline.body(messages), messages)
        assert self._loop is not None  # the constructor sets one of the two
        conversation = list(messages)
        if self.system_prompt is not None:
            conversation.insert(0, ChatMessage.from_system(self.system_prompt))
        body = loop_body(
            self._loop, conversation, tools=self._tools, response_format=response_format
        )
        ending = concluding(body, self._loop, conversation)
        return self._equipped(body, messages, ending)

    def _equipped(
        self, body: RunBody, messages: Sequence[ChatMessage], ending: RunBody | None = None
    ) -> RunBody:
        """`body` with what this adapter gives a run; `ending` in its place for a subagent's."""

        async def equipped(run: RunContext) -> Any:
            # A subagent here shares its parent's sources.
            if self._citations is not None and run.parent is None:
                run.citations = RunCitations(self._citations, run.citations.formatter)
            if run.is_subagent:
                return await (ending or body)(run)
            if self._suggestions is not None:
                run.suggest = partial(suggested, self._suggestions, messages)
            return await body(run)

        return equipped


class _QueueSink:
    """Hands events from the run's task to the iterating one. The run waits while it is full.
    Once it is closed, by the run's end or the consumer's, further events are dropped."""

    def __init__(self) -> None:
        self._events: deque[StreamEvent] = deque()
        self._closed = False
        self._ready = asyncio.Event()
        self._room = asyncio.Event()

    async def emit(self, event: StreamEvent) -> None:
        if self._closed:
            return
        self._events.append(event)
        self._ready.set()
        while len(self._events) > _AHEAD and not self._closed:
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        self._closed = True
        self._ready.set()
        self._room.set()

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        while True:
            while self._events:
                yield self._events.popleft()
                self._room.set()
            if self._closed:
                return
            self._ready.clear()
            await self._ready.wait()
