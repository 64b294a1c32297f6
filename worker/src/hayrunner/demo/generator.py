"""A chat generator that calls no model, for demos, examples and tests."""

import asyncio
import inspect
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from haystack import component, default_to_dict
from haystack.dataclasses import (
    ChatMessage,
    ComponentInfo,
    StreamingCallbackT,
    StreamingChunk,
    ToolCall,
    ToolCallDelta,
)
from haystack.tools import ToolsType
from haystack.utils import Secret

from hayrunner.demo.planning import PlannedCall, answer, opening, plan
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner.generators.requests import flat_tools
from hayrunner.settings import load_settings

__all__ = ["DEFAULT_MODEL", "MODEL_NAME", "OfflineChatGenerator", "demo_llm"]

MODEL_NAME = "offline-demo"
"""What the generator gives as its model: nobody shall take it for one."""

DEFAULT_MODEL = "gpt-5-mini"

_PIECE = 7  # characters of arguments per chunk


def demo_llm(model: str | None = None) -> Any:
    """The provider where `OPENAI_API_KEY` is set, else the offline generator.

    `OPENAI_BASE_URL` says which server, `HAYRUNNER_MODEL` which model; `model` stands where that
    is not set.
    """
    settings = load_settings()
    if settings.openai_api_key is None:
        return OfflineChatGenerator()
    return OpenAICompatibleChatGenerator(
        model=settings.model or model or DEFAULT_MODEL,
        api_key=Secret.from_env_var("OPENAI_API_KEY"),
        api_base_url=settings.openai_base_url,
    )


@component
class OfflineChatGenerator:
    """Streams word by word, calls tools with arguments in pieces, and answers from their results;
    how it decides is said in `planning`.

    `delay_s` is the pause after each chunk in seconds. Usage counts words, not tokens. Of
    `generation_kwargs` only `max_tokens` means something (words); there is no structured output.
    """

    def __init__(
        self, *, delay_s: float = 0.025, generation_kwargs: dict[str, Any] | None = None
    ) -> None:
        self.delay_s = delay_s
        self.generation_kwargs = generation_kwargs or {}

    def to_dict(self) -> dict[str, Any]:
        """The component in Haystack's serialized form."""
        return default_to_dict(self, delay_s=self.delay_s, generation_kwargs=self.generation_kwargs)

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
    ) -> dict[str, Any]:
        """`run_async` on an event loop of its own, for scripts."""
        return asyncio.run(
            self.run_async(messages, streaming_callback, generation_kwargs, tools=tools)
        )

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage],
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
    ) -> dict[str, Any]:
        """One "model call": the next tool calls of the plan, or the answer."""
        offered = flat_tools(tools)
        calls = plan(messages, offered)
        text = opening(messages) if calls else answer(messages, offered)
        words = re.findall(r"\S+\s*", text)
        limit = {**self.generation_kwargs, **(generation_kwargs or {})}.get("max_tokens")
        kept = words if limit is None or calls else words[:limit]
        reply = _reply(kept, calls, messages, is_cut=len(kept) < len(words))
        if streaming_callback is not None:
            for chunk in _chunks(kept, reply, ComponentInfo.from_component(self)):
                waiting = streaming_callback(chunk)
                if inspect.isawaitable(waiting):
                    await waiting
                await asyncio.sleep(self.delay_s)
        return {"replies": [reply]}


def _reply(
    words: list[str],
    calls: Sequence[PlannedCall],
    messages: Sequence[ChatMessage],
    *,
    is_cut: bool,
) -> ChatMessage:
    prompt = sum(len(_words(message)) for message in messages)
    written = len(words) + sum(1 + len(call.arguments) for call in calls)
    reason = "tool_calls" if calls else "length" if is_cut else "stop"
    return ChatMessage.from_assistant(
        "".join(words).rstrip() or None,
        tool_calls=[
            ToolCall(
                tool_name=call.tool_name,
                arguments=call.arguments,
                id=f"call_{uuid.uuid4().hex[:12]}",
            )
            for call in calls
        ],
        meta={
            "model": MODEL_NAME,
            "finish_reason": reason,
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": written,
                "total_tokens": prompt + written,
            },
        },
    )


def _words(message: ChatMessage) -> list[str]:
    texts = [*message.texts, *(str(result.result) for result in message.tool_call_results)]
    return " ".join(texts).split()


def _chunks(words: list[str], reply: ChatMessage, info: ComponentInfo) -> Iterator[StreamingChunk]:
    text = list(words)
    if text:
        # The reply's text has no space at its end, so its chunks have none either.
        text[-1] = text[-1].rstrip()
    for number, word in enumerate(text):
        yield StreamingChunk(content=word, index=0, start=number == 0, component_info=info)
    for index, call in enumerate(reply.tool_calls):
        for delta in _deltas(index, call):
            yield StreamingChunk(
                content="",
                index=index,
                start=delta.tool_name is not None,
                tool_calls=[delta],
                component_info=info,
            )
    yield StreamingChunk(
        content="",
        finish_reason=reply.meta["finish_reason"],
        component_info=info,
        meta={"model": reply.meta["model"], "usage": reply.meta["usage"]},
    )


def _deltas(index: int, call: ToolCall) -> Iterator[ToolCallDelta]:
    yield ToolCallDelta(index=index, tool_name=call.tool_name, id=call.id)
    arguments = msgspec.json.encode(call.arguments).decode()
    for start in range(0, len(arguments), _PIECE):
        yield ToolCallDelta(index=index, arguments=arguments[start : start + _PIECE])
