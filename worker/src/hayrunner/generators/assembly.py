"""One reply, put together from a provider's payloads: pure, no I/O, one instance per call.

Each payload becomes the Haystack chunks it should have been: one kind of content per chunk,
reasoning before text before tool calls, one closing chunk with a known finish reason, and at
the very end one empty chunk with the usage.
"""

from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec
from haystack.dataclasses import (
    ChatMessage,
    ComponentInfo,
    FinishReason,
    ReasoningContent,
    StreamingChunk,
    ToolCallDelta,
)

from hayrunner.errors import ProviderError
from hayrunner.generators.calls import CallAssembler
from hayrunner.generators.failures import stream_error
from hayrunner.generators.wire import Choice, Completion, Delta, decode_completion

__all__ = ["ReplyAssembler"]

_DONE = b"[DONE]"


class ReplyAssembler:
    """Takes payloads by `feed`, then `finish` once, then holds the reply.

    `done` turns true when the provider says that its stream has ended. `complete` is true once
    a finish reason came: what is lost after that is only the usage.
    """

    def __init__(self, component_info: ComponentInfo | None = None) -> None:
        self.done = False
        self.complete = False
        self._info = component_info
        self._model: str | None = None
        self._started_at: str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs: list[Any] = []
        self._calls = CallAssembler()
        self._refused = False
        self._finish: FinishReason | None = None
        self._usage: dict[str, Any] | None = None

    def feed(self, payload: bytes) -> list[StreamingChunk]:
        """Take in one payload. Raises `ProviderError` for an error event or what is no chunk."""
        if payload.startswith(_DONE):
            self.done = True
            return []
        choices = self._take(payload).choices
        return self._chunks(choices[0]) if choices else []

    def feed_text(self, payload: bytes) -> str | list[StreamingChunk]:
        """`feed`, but a payload that is text and nothing else comes back as that text: most of
        them are, and a chunk around each costs more than all else that is done with it."""
        if payload.startswith(_DONE):
            self.done = True
            return []
        choices = self._take(payload).choices
        if not choices:
            return []
        choice = choices[0]
        delta = choice.delta
        if delta is None or type(content := delta.content) is not str or not content:
            return self._chunks(choice)
        if self._refused or self._started_at is None or _has_more_than_text(choice, delta):
            return self._chunks(choice)
        self._text.append(content)
        return content

    def feed_whole(self, body: bytes) -> list[StreamingChunk]:
        """Take in the plain JSON answer of a server that does not stream."""
        choices = self._take(body).choices
        if not choices:
            raise ProviderError("the provider's answer holds no reply", retryable=False)
        self.done = True
        return self._chunks(choices[0])

    def finish(self) -> list[StreamingChunk]:
        """The stream is over. Raises `ProviderError` where it broke off before the reply's end."""
        if not (self.done or self.complete):
            raise ProviderError("the provider's stream ended in the middle of a reply")
        chunks = [] if self.complete else self._closing("stop")
        return [*chunks, *self.usage()]

    def usage(self) -> list[StreamingChunk]:
        """A chunk with the usage, if the provider has told it."""
        if self._usage is None:
            return []
        meta = {"model": self._model, "usage": self._usage}
        return [StreamingChunk("", meta, self._info)]

    def reply(self) -> ChatMessage:
        """The whole reply, its meta keyed like that of Haystack's own generators."""
        meta: dict[str, Any] = {
            "model": self._model,
            "index": 0,
            "finish_reason": self._finish,
            "completion_start_time": self._started_at,
            "usage": self._usage,
        }
        if self._refused:
            meta["refusal"] = True
        if self._logprobs:
            meta["logprobs"] = self._logprobs
        return ChatMessage.from_assistant(
            text="".join(self._text) or None,
            tool_calls=self._calls.tool_calls(),
            reasoning="".join(self._reasoning) or None,
            meta=meta,
        )

    def _take(self, payload: bytes) -> Completion:
        try:
            completion = decode_completion(payload)
        except msgspec.ValidationError as error:
            raise ProviderError(
                f"the provider sent a chunk of an unknown shape: {error}", retryable=False
            ) from None
        except (msgspec.DecodeError, RecursionError):
            raise ProviderError("the provider sent a chunk that is not JSON") from None
        if completion.error:
            raise stream_error(completion.error)
        if completion.model:
            self._model = completion.model
        if completion.usage:
            self._usage = completion.usage
        return completion

    def _chunks(self, choice: Choice) -> list[StreamingChunk]:
        if self._started_at is None:
            self._started_at = datetime.now(UTC).isoformat()
        delta = choice.delta
        if delta is None:
            delta = _as_delta(choice.message) if choice.message else Delta()
        chunks: list[StreamingChunk] = []
        if delta.reasoning_content or delta.reasoning:
            self._add_reasoning(chunks, delta)
        if delta.content:
            self._add_text(chunks, delta.content, choice.logprobs)
        if delta.refusal:
            self._refused = True
            self._add_text(chunks, delta.refusal, None)
        if delta.tool_calls or delta.function_call:
            self._add_calls(chunks, delta)
        if choice.finish_reason and not self.complete:
            chunks += self._closing(choice.finish_reason)
        return chunks

    def _add_reasoning(self, chunks: list[StreamingChunk], delta: Delta) -> None:
        """Servers that send both fields send the same in both."""
        text = delta.reasoning_content or delta.reasoning
        if isinstance(text, str):
            chunks.append(self._reasoning_chunk(text))

    def _add_text(
        self, chunks: list[StreamingChunk], content: str | list[Any], logprobs: Any
    ) -> None:
        if isinstance(content, list):
            for kind, text in _typed_parts(content):
                if kind == "reasoning":
                    chunks.append(self._reasoning_chunk(text))
                else:
                    self._add_text(chunks, text, None)
            return
        meta: dict[str, Any] = {"model": self._model}
        if self._refused:
            meta["refusal"] = True
        if logprobs:
            self._logprobs.append(logprobs)
            meta["logprobs"] = logprobs
        start = not self._text
        self._text.append(content)
        chunks.append(_text_chunk(content, meta, self._info, start))

    def _reasoning_chunk(self, text: str) -> StreamingChunk:
        start = not self._reasoning
        self._reasoning.append(text)
        return StreamingChunk(
            "",
            {"model": self._model},
            self._info,
            index=0,
            start=start,
            reasoning=ReasoningContent(text),
        )

    def _add_calls(self, chunks: list[StreamingChunk], delta: Delta) -> None:
        for part in delta.tool_calls or ():
            self._add_call(chunks, self._calls.add(part))
        if delta.function_call:
            self._add_call(chunks, self._calls.add_legacy(delta.function_call))

    def _add_call(self, chunks: list[StreamingChunk], delta: ToolCallDelta | None) -> None:
        if delta is not None:
            chunks.append(
                StreamingChunk(
                    "",
                    {"model": self._model},
                    self._info,
                    index=delta.index,
                    tool_calls=[delta],
                    start=delta.tool_name is not None,
                )
            )

    def _closing(self, sent_reason: str) -> list[StreamingChunk]:
        self.complete = True
        chunks: list[StreamingChunk] = []
        for delta in self._calls.close():
            self._add_call(chunks, delta)
        self._finish = _finish_reason(sent_reason, bool(self._calls), self._refused)
        meta = {"model": self._model, "finish_reason": sent_reason}
        chunks.append(StreamingChunk("", meta, self._info, finish_reason=self._finish))
        return chunks


_TEXT_FIELDS = dict(vars(StreamingChunk("", index=0)))


def _text_chunk(
    content: str, meta: dict[str, Any], info: ComponentInfo | None, start: bool
) -> StreamingChunk:
    """`StreamingChunk(content, meta, info, index=0, start=start)`, in a ninth of the time.

    Nearly every chunk is one of these, and half of what decoding one took was its constructor:
    Haystack watches every field that is set. `_TEXT_FIELDS` holds whatever else it sets.
    """
    chunk = StreamingChunk.__new__(StreamingChunk)
    fields = chunk.__dict__
    fields.update(_TEXT_FIELDS)
    fields["content"] = content
    fields["meta"] = meta
    fields["component_info"] = info
    fields["start"] = start
    return chunk


def _has_more_than_text(choice: Choice, delta: Delta) -> bool:
    return bool(
        delta.tool_calls
        or choice.finish_reason
        or delta.reasoning_content
        or delta.reasoning
        or delta.refusal
        or delta.function_call
        or choice.logprobs
    )


def _finish_reason(sent: str, has_calls: bool, refused: bool) -> FinishReason:
    """A reply cut short says so; otherwise what the reply holds decides, not what was sent."""
    if sent == "length" or sent == "content_filter":
        return sent
    if has_calls:
        return "tool_calls"
    return "content_filter" if refused else "stop"


def _as_delta(message: Delta) -> Delta:
    """A whole message as one delta: its calls stand apart by their place in the list."""
    for place, part in enumerate(message.tool_calls or ()):
        part.index = place
    return message


def _typed_parts(content: list[Any]) -> list[tuple[Literal["text", "reasoning"], str]]:
    """Content as typed parts: `{"type": "text", "text": …}`, and Mistral's
    `{"type": "thinking", "thinking": [{"type": "text", "text": …}]}`.
    """
    parts: list[tuple[Literal["text", "reasoning"], str]] = []
    for part in content:
        if not isinstance(part, dict):
            continue
        fields = cast("dict[str, Any]", part)
        thinking = fields.get("thinking")
        if isinstance(thinking, list):
            for _, text in _typed_parts(cast("list[Any]", thinking)):
                parts.append(("reasoning", text))
        elif isinstance(fields.get("text"), str) and fields["text"]:
            parts.append(("text", fields["text"]))
    return parts
