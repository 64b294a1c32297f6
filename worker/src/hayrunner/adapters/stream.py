"""The Stream adapter: a conversation in, stream events out, without any bus."""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from haystack import Pipeline
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool, Toolset

from hayrunner.adapters.body import RunBody, loop_body
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import as_chat_messages
from hayrunner.adapters.loop import LoopAgent, loop_agent
from hayrunner.adapters.pipelines import PipelineAdapter, only_agent
from hayrunner.adapters.run import Messages
from hayrunner.adapters.session import LoopSession
from hayrunner.adapters.settings import RunSettings
from hayrunner.adapters.structured import ResponseFormat
from hayrunner.adapters.writer import StreamWriter
from hayrunner.errors import ConfigurationError
from hayrunner.storage.base import BaseStorageAdapter
from hayrunner_contracts.events import MessageStart, StreamEnd, StreamEvent

__all__ = ["Stream"]

# Events a consumer in the same process may be behind before the run waits for it.
_AHEAD = 256


class Stream:
    """Streams a Haystack Agent or pipeline.

    `generator` names the pipeline's component whose chunks are the answer, where it is not the
    last one that streams. With `store` and a `storage`, the thread is loaded before the run and
    the run's messages are appended after it.
    """

    def __init__(
        self,
        pipeline: Any,
        generator: str | None = None,
        store: bool = True,
        storage: BaseStorageAdapter | None = None,
        *,
        tools: Sequence[Tool | Toolset] | Toolset | None = None,
        system_prompt: str | None = None,
    ) -> None:
        self.storage = storage if store else None
        self.system_prompt = system_prompt
        self._tools = tools
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

    async def stream(
        self,
        messages: Messages,
        *,
        settings: RunSettings | None = None,
        message_id: str | None = None,
        agent_name: str = "agent",
        thread_id: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Every event of the run, numbered from 1: `message_start` first, `stream_end` last.

        Failures are events, not exceptions. Closing the iterator ends the run.
        """
        sink = _QueueSink()
        run = RunContext(
            message_id=message_id or str(uuid.uuid4()),
            settings=settings or RunSettings(),
            sink=sink,
        )
        asked = as_chat_messages(messages)
        history: list[ChatMessage] = []
        if (writer := self.writer(run.message_id, asked)) is not None:
            history = as_chat_messages(await writer.load())
        session = LoopSession(run, self.body([*history, *asked]), writer=writer)
        task = asyncio.ensure_future(session.run())
        task.add_done_callback(lambda _: sink.close())
        seq = 1
        try:
            yield MessageStart(
                seq=seq, message_id=run.message_id, agent=agent_name, thread_id=thread_id
            )
            async for event in sink:
                seq += 1
                msgspec.structs.force_setattr(event, "seq", seq)
                yield event
            await task
            yield StreamEnd(seq=seq + 1)
        finally:
            task.cancel()
            await asyncio.wait([task])

    def writer(self, message_id: str, asked: Sequence[ChatMessage]) -> StreamWriter | None:
        """What stores the run, where there is a storage."""
        return None if self.storage is None else StreamWriter(self.storage, message_id, asked)

    def body(
        self,
        messages: Sequence[ChatMessage],
        *,
        response_format: ResponseFormat | None = None,
    ) -> RunBody:
        """The run body for a session. `messages` is the whole conversation."""
        if self._pipeline is not None:
            if response_format is not None:
                raise ConfigurationError("response_format: a pipeline decides its own output")
            return self._pipeline.body(messages)
        assert self._loop is not None  # the constructor sets one of the two
        conversation = list(messages)
        if self.system_prompt is not None:
            conversation.insert(0, ChatMessage.from_system(self.system_prompt))
        return loop_body(
            self._loop, conversation, tools=self._tools, response_format=response_format
        )


class _QueueSink:
    """Hands events from the run's task to the iterating one. The run waits when it is full."""

    def __init__(self) -> None:
        self._events: deque[StreamEvent] = deque()
        self._closed = False
        self._ready = asyncio.Event()
        self._room = asyncio.Event()

    async def emit(self, event: StreamEvent) -> None:
        while len(self._events) >= _AHEAD:
            self._room.clear()
            await self._room.wait()
        self._events.append(event)
        self._ready.set()

    def close(self) -> None:
        self._closed = True
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        while True:
            while self._events:
                yield self._events.popleft()
                self._room.set()
            if self._closed:
                return
            self._ready.clear()
            await self._ready.wait()
