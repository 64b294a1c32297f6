"""From a generator's chunks to stream events: pure, one per run.

Chunks are not to be trusted with structure. `index` restarts with every model call and is shared
by text, calls and results; ids may be missing, empty, repeated or the same for several calls;
`start` and `finish_reason` mark nothing reliably. So open calls are keyed by (step, delta index),
a different id at an index is a new call, ids are made unique within the run, and what chunks
leave open is closed from the reply they belong to.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall, ToolCallDelta

from hayrunner.adapters.answer_tool import AnswerTool
from hayrunner.adapters.call_records import (
    INVALID_ARGUMENTS,
    CallRecord,
    is_another,
    parse_arguments,
    take_match,
)
from hayrunner.errors import ProviderError
from hayrunner.generators.failures import stream_error
from hayrunner.token_counts import merged_usage, usage_from, usage_of_ollama
from hayrunner_contracts.events import (
    ModelCallEnd,
    ReasoningChunk,
    StreamEvent,
    TextChunk,
    ToolCallStart,
    ToolInputChunk,
    ToolInputComplete,
    ToolOutput,
    Usage,
)

__all__ = ["INVALID_ARGUMENTS", "CallRecord", "ChunkNormalizer", "parse_arguments"]


class ChunkNormalizer:
    """Turns the chunks and replies of one run into its events. `usage` is that of the step that
    was closed last."""

    def __init__(self, used_ids: set[str] | None = None) -> None:
        self.step = 0
        self.open = False
        self.refused = False
        self.failure: ProviderError | None = None
        self._pieces: list[str] = []
        self._reasoning_pieces: list[str] = []
        self._usage: Mapping[str, Any] | None = None
        self._model: str | None = None
        self._finish_reason: str | None = None
        self.usage: Usage | None = None
        self._at_index: dict[int, CallRecord] = {}
        self._by_id: dict[tuple[int, str], CallRecord] = {}
        self._calls: list[CallRecord] = []
        # Shared with the run that this one is a part of: ids are unique in the whole of it.
        self.used_ids: set[str] = set() if used_ids is None else used_ids
        self._answer_tool: AnswerTool | None = None
        self._held: list[str] = []

    def begin_step(
        self, used_ids: Iterator[str] | None = None, answer_tool: AnswerTool | None = None
    ) -> None:
        """A model call begins. `used_ids` are ids of the history that may not come again. A call
        of `answer_tool` is the model's answer and not shown as a call."""
        self.step += 1
        self.open = True
        self.refused, self.failure, self.usage = False, None, None
        self._pieces, self._reasoning_pieces = [], []
        self._usage = self._model = self._finish_reason = None
        self._at_index, self._by_id, self._calls = {}, {}, []
        self._answer_tool, self._held = answer_tool, []
        if used_ids is not None:
            self.used_ids.update(used_ids)

    def go_on(self, step: int, used_ids: Iterable[str], calls: list[CallRecord]) -> None:
        """What an earlier attempt at the run had come to."""
        self.step, self._calls = step, calls
        self.used_ids.update(used_ids)

    @property
    def calls(self) -> list[CallRecord]:
        """The calls of the current step, in call order."""
        return self._calls

    @property
    def finished(self) -> bool:
        """Whether the provider said that the current model call is complete."""
        return self._finish_reason is not None

    @property
    def partial_text(self) -> str:
        """The text of the current step so far."""
        return "".join(self._pieces)

    @property
    def answered(self) -> bool:
        """Whether the model has begun to answer the current call, or it is known what it cost."""
        return self.shown or bool(self._held or self._calls or self._usage)

    @property
    def shown(self) -> bool:
        """Whether consumers have seen anything of the current call."""
        called = any(call.announced for call in self._calls)
        return called or bool(self._pieces or self._reasoning_pieces)

    @property
    def told_usage(self) -> Usage | None:
        """What the current call has cost, as far as its provider has said."""
        return usage_from(self._usage) if self._usage else None

    def break_off(self, why: str) -> list[StreamEvent]:
        """End the current model call, which failed and is made again, without a reply."""
        self.open = False
        end = ModelCallEnd(
            model=self._model, finish_reason="error", usage=self.told_usage, step=self.step
        )
        events = [*self.close_open_calls(why), end]
        self._pieces, self._reasoning_pieces, self._held, self._calls = [], [], [], []
        return events

    def feed(self, chunk: StreamingChunk) -> list[StreamEvent]:
        """The events of one chunk, usually one or none."""
        if chunk.content:
            self._note(chunk)
            return [*self._text(chunk.content)]
        if chunk.tool_calls:
            self._note(chunk)
            # Ollama's calls come whole, several of them at one index.
            whole = "done_reason" in chunk.meta
            return [event for delta in chunk.tool_calls for event in self._delta(delta, whole)]
        if chunk.reasoning is not None:
            text = chunk.reasoning.reasoning_text
            if not text:
                return []
            self._reasoning_pieces.append(text)
            return [ReasoningChunk(content=text, step=self.step)]
        self._note(chunk)
        return self._special(chunk.meta)

    def add_text(self, text: str) -> TextChunk | None:
        """The event of a piece of text that came without a chunk; None where it is held back."""
        events = self._text(text)
        return events[0] if events else None

    def take_back(self, event: StreamEvent) -> None:
        """Forget the text of the last event fed: a hook refused it, and nobody is to see it."""
        if isinstance(event, TextChunk) and self._pieces:
            self._pieces.pop()
        elif isinstance(event, ReasoningChunk) and self._reasoning_pieces:
            self._reasoning_pieces.pop()

    def _note(self, chunk: StreamingChunk) -> None:
        meta = chunk.meta
        if not meta:
            return
        if chunk.finish_reason:
            self._finish_reason = chunk.finish_reason
        if usage := meta.get("usage"):
            self._usage = merged_usage(self._usage, usage)
        elif isinstance(message := meta.get("message"), Mapping):
            # Anthropic: the first event has the input's count, the last one the output's.
            self._usage = message.get("usage") or self._usage
            self._model = message.get("model") or self._model
        elif meta.get("done_reason"):
            self._note_ollama(meta)
        elif response := meta.get("response"):
            # The Responses API: usage is inside the closing event.
            self._usage = response.get("usage") or self._usage
            self._model = response.get("model") or self._model
        if model := meta.get("model"):
            self._model = model

    def _note_ollama(self, meta: Mapping[str, Any]) -> None:
        """Ollama's last chunk: of its reasons, Haystack knows only `stop`."""
        if meta["done_reason"] in ("stop", "length"):
            self._finish_reason = meta["done_reason"]
        self._usage = usage_of_ollama(meta) or self._usage

    def _text(self, text: str) -> list[TextChunk]:
        if self._answer_tool is not None and not any(call.announced for call in self._calls):
            # What a model says beside its answer is no part of it: wait for which it is.
            self._held.append(text)
            return []
        self._pieces.append(text)
        return [TextChunk(content=text, step=self.step)]

    def _release(self) -> Iterator[StreamEvent]:
        """The text that was held back: the step turned out not to be an answer by tool."""
        if self._held:
            text = "".join(self._held)
            self._held = []
            self._pieces.append(text)
            yield TextChunk(content=text, step=self.step)

    def _special(self, meta: Mapping[str, Any]) -> list[StreamEvent]:
        """Events of the Responses API that Haystack passes on as empty chunks."""
        kind = meta.get("type")
        if kind == "response.refusal.delta" and meta.get("delta"):
            self.refused = True
            text = str(meta["delta"])
            self._pieces.append(text)
            return [TextChunk(content=text, step=self.step)]
        if kind in ("response.failed", "error"):
            told: Any = meta.get("response") or {}
            self.failure = stream_error(told.get("error") if told else meta)
        return []

    def _delta(self, delta: ToolCallDelta, whole: bool) -> Iterator[StreamEvent]:
        call = self._at_index.get(delta.index)
        if call is None or whole or is_another(call, delta):
            # Calls that share an index may alternate, where each delta has its id.
            known = self._by_id.get((delta.index, delta.id)) if delta.id else None
            call = known or self._open(delta.id or "", delta.index)
            self._at_index[delta.index] = call
        if delta.tool_name and not call.tool_name:
            call.tool_name = delta.tool_name
        if call.tool_name and not call.announced and not self._is_answer(call.tool_name):
            yield from self._release()
            yield self._announce(call)
            if call.pieces:
                yield self._input(call, call.arguments_text)
        if delta.arguments:
            call.pieces.append(delta.arguments)
            if call.announced:
                yield self._input(call, delta.arguments)

    def _open(self, provider_id: str, index: int) -> CallRecord:
        call = CallRecord(id=self.unique_id(provider_id), provider_id=provider_id)
        self._at_index[index] = call
        self._by_id[index, provider_id] = call
        self._calls.append(call)
        return call

    def unique_id(self, wanted: str) -> str:
        """An id for a call that no other call of the run has: the wanted one, if it is free."""
        chosen = wanted if wanted and wanted not in self.used_ids else f"call_{uuid.uuid4().hex}"
        self.used_ids.add(chosen)
        return chosen

    def _is_answer(self, tool_name: str) -> bool:
        return self._answer_tool is not None and tool_name == self._answer_tool.name

    def _announce(self, call: CallRecord) -> ToolCallStart:
        call.announced = True
        return ToolCallStart(tool_call_id=call.id, tool_name=call.tool_name, step=self.step)

    def _input(self, call: CallRecord, text: str) -> ToolInputChunk:
        return ToolInputChunk(tool_call_id=call.id, input_chunk=text, step=self.step)

    def close_step(self, reply: ChatMessage | None) -> tuple[ChatMessage, list[StreamEvent]]:
        """The reply as it is to stand in history, and the events that its chunks left open.

        Raises `ProviderError` where a chunk said that the model call failed.
        """
        if self.failure is not None:
            # The step stays open: what there was of the message is the run's partial answer.
            raise self.failure
        self.open = False
        events: list[StreamEvent] = []
        text = reply.text if reply is not None else None
        calls = self._reconcile(reply.tool_calls if reply is not None else [])
        calls, answer = self._take_answer(calls)
        if answer is not None and not calls:
            self._pieces, self._held = [], []
            text = answer
        events.extend(self._release())
        if text and not self._pieces:
            self._pieces.append(text)
            events.append(TextChunk(content=text, step=self.step))
        for record, call in zip(self._calls, calls, strict=True):
            events.extend(self._complete(record, call))
        meta = dict(reply.meta) if reply is not None else {}
        events.append(self._model_call_end(meta, bool(calls), answer is not None))
        message = ChatMessage.from_assistant(
            text=self.partial_text or None,
            tool_calls=calls,
            reasoning=self._reasoning_of(reply),
            name=reply.name if reply is not None else None,
            meta=meta,
        )
        return message, events

    def _take_answer(self, calls: list[ToolCall]) -> tuple[list[ToolCall], str | None]:
        """The calls that are calls, and the answer that was given by one, as JSON. An answer
        beside other calls cannot know what comes of them: it is left out, and asked for again."""
        tool = self._answer_tool
        if tool is None:
            return calls, None
        pairs = list(zip(self._calls, calls, strict=True))
        given = [(record, call) for record, call in pairs if call.tool_name == tool.name]
        kept = [(record, call) for record, call in pairs if call.tool_name != tool.name]
        self._calls = [record for record, _ in kept]
        if not given:
            return calls, None
        record, call = given[0]
        written = record.arguments_text.strip() or (call.extra or {}).get(INVALID_ARGUMENTS)
        text = str(written) if written else msgspec.json.encode(call.arguments).decode()
        return [call for _, call in kept], tool.answer_of(text)

    def _reasoning_of(self, reply: ChatMessage | None) -> Any:
        if reply is not None and reply.reasoning is not None:
            return reply.reasoning
        return "".join(self._reasoning_pieces) or None

    def _complete(self, record: CallRecord, call: ToolCall) -> Iterator[StreamEvent]:
        if not record.announced:
            record.tool_name = call.tool_name
            yield self._announce(record)
        record.completed = True
        raw = (call.extra or {}).get(INVALID_ARGUMENTS)
        if record.arguments_text.strip() == "null":
            raw = record.arguments_text  # run without arguments, shown as it was written
        yield ToolInputComplete(
            tool_call_id=record.id,
            tool_name=call.tool_name,
            tool_input=call.arguments if raw is None else raw,
            step=self.step,
        )

    def _model_call_end(
        self, meta: dict[str, Any], has_calls: bool, has_answer: bool
    ) -> ModelCallEnd:
        usage = meta.get("usage") or self._usage
        reason = meta.get("finish_reason") or self._finish_reason
        if self.refused:
            reason = "content_filter"
        if has_calls and reason in (None, "stop"):
            # Some servers, and the Responses API, end a turn of tool calls with an ordinary stop.
            reason = "tool_calls"
        elif has_answer and not has_calls and reason == "tool_calls":
            reason = "stop"
        meta["finish_reason"] = reason or "stop"
        if usage and not meta.get("usage"):
            meta["usage"] = usage
        self.usage = usage_from(usage) if usage else None
        model = meta.get("model") or self._model
        return ModelCallEnd(
            model=str(model) if model else None,
            finish_reason=str(meta["finish_reason"]),
            usage=self.usage,
            step=self.step,
        )

    def _reconcile(self, reply_calls: list[ToolCall]) -> list[ToolCall]:
        """One `ToolCall` per record, in call order.

        A generator may have dropped a call whose arguments it could not parse, joined calls that
        share an index, or given none an id. The chunks are the ground truth where there are any;
        the reply's own objects are kept where they match, for the provider's `extra`.
        """
        if not self._calls:
            return [self._adopted(call) for call in reply_calls]
        left = list(reply_calls)
        ids = {record.provider_id for record in self._calls}
        calls: list[ToolCall] = []
        for record in self._calls:
            arguments, raw = parse_arguments(record.arguments_text)
            match = take_match(left, record, arguments if record.pieces else None, ids)
            if match is not None:
                calls.append(
                    ToolCall(
                        tool_name=match.tool_name,
                        arguments=match.arguments,
                        id=record.id,
                        extra=match.extra,
                    )
                )
            else:
                extra = None if raw is None else {INVALID_ARGUMENTS: raw}
                calls.append(
                    ToolCall(
                        tool_name=record.tool_name, arguments=arguments, id=record.id, extra=extra
                    )
                )
        return calls

    def _adopted(self, call: ToolCall) -> ToolCall:
        """A call that no chunk spoke of, with an id of this run."""
        record = self._open(call.id or "", len(self._calls))
        record.tool_name = call.tool_name
        return ToolCall(
            tool_name=call.tool_name, arguments=call.arguments, id=record.id, extra=call.extra
        )

    def close_open_calls(self, why: str) -> list[StreamEvent]:
        """An error output for every call of this step that has none: the run ends early."""
        events: list[StreamEvent] = []
        for call in self._calls:
            if call.answered or not call.announced:
                continue
            call.answered = True
            events.append(
                ToolOutput(tool_call_id=call.id, tool_output=why, is_error=True, step=self.step)
            )
        return events
