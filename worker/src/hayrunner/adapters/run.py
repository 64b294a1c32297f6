"""The Run adapter: one reply, without tools and without a stream."""

import copy
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, overload

from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage, ChatRole
from pydantic import BaseModel

from hayrunner.adapters.body import RunBody, loop_body
from hayrunner.adapters.context import RunContext, current_run
from hayrunner.adapters.convert import as_chat_messages
from hayrunner.adapters.loop import LoopAgent, loop_agent
from hayrunner.adapters.settings import RunSettings
from hayrunner.adapters.structured import ResponseFormat
from hayrunner_contracts import messages as wire

__all__ = ["Run"]

Model = TypeVar("Model", bound=BaseModel)
Messages = str | ChatMessage | wire.ChatMessage | Iterable[ChatMessage | wire.ChatMessage]


class Run:
    """Asks a generator once and returns its reply.

    `model` replaces the generator's own, `instructions` stand where `run` is given no
    `system_prompt`. The generator is shared, never changed. `loop` is an agent loop over the same
    generator, whose hooks then apply.
    """

    def __init__(
        self,
        generator: Any,
        model: str | None = None,
        instructions: str | None = None,
        *,
        loop: LoopAgent | None = None,
    ) -> None:
        if model is not None and getattr(generator, "model", None) != model:
            generator = copy.copy(generator)
            generator.model = model
            loop = None
        self.generator = generator
        self.instructions = instructions
        self._loop = loop or loop_agent(HaystackAgent(chat_generator=generator))

    @overload
    async def run(
        self,
        messages: Messages,
        system_prompt: str | None = None,
        response_format: None = None,
    ) -> str | None: ...

    @overload
    async def run(
        self,
        messages: Messages,
        system_prompt: str | None = None,
        *,
        response_format: type[Model],
    ) -> Model: ...

    @overload
    async def run(
        self,
        messages: Messages,
        system_prompt: str | None = None,
        *,
        response_format: Mapping[str, Any],
    ) -> Any: ...

    async def run(
        self,
        messages: Messages,
        system_prompt: str | None = None,
        response_format: type[BaseModel] | Mapping[str, Any] | None = None,
    ) -> Any:
        """The reply's text; with a Pydantic model an instance of it, with a JSON Schema the value.

        Only user and assistant messages are sent, after the system prompt, and of the latter their
        text: tool calls without their results would be refused. Raises
        `StructuredOutputError` where the reply is wrong after one repair turn, `ProviderError`
        where the model could not be used.
        """
        wanted = None if response_format is None else ResponseFormat(response_format)
        run = RunContext(message_id=str(uuid.uuid4()), settings=RunSettings())
        body = self.body(messages, system_prompt=system_prompt, response_format=wanted)
        token = current_run.set(run)
        try:
            answer = await body(run)
        finally:
            current_run.reset(token)
        return answer if wanted is None else wanted.instance(answer)

    def body(
        self,
        messages: Messages,
        *,
        system_prompt: str | None = None,
        response_format: ResponseFormat | None = None,
    ) -> RunBody:
        """The same as a run body, for a session."""
        prompt = system_prompt if system_prompt is not None else self.instructions
        kept = [kept for message in as_chat_messages(messages) if (kept := _sendable(message))]
        if prompt is not None:
            kept.insert(0, ChatMessage.from_system(prompt))
        return loop_body(self._loop, kept, tools=(), response_format=response_format)


def _sendable(message: ChatMessage) -> ChatMessage | None:
    if message.is_from(ChatRole.USER):
        return message
    if not message.is_from(ChatRole.ASSISTANT) or not message.text:
        return None
    if not message.tool_calls:
        return message
    return ChatMessage.from_assistant(message.text, name=message.name, meta=message.meta)
