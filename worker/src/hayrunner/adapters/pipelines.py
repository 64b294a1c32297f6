"""Pipelines as agents: where the conversation goes in, where chunks and the answer come out."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from haystack import Pipeline
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage, StreamingChunk

from hayrunner.adapters.body import RunBody
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import to_wire_parts
from hayrunner.adapters.model_call import chunk_callback
from hayrunner.adapters.normalize import ChunkNormalizer, usage_from
from hayrunner.adapters.provider_failures import provider_failure
from hayrunner.errors import ConfigurationError, HayrunnerError
from hayrunner_contracts.events import (
    ModelCallEnd,
    StreamEvent,
    TextChunk,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
)

__all__ = ["PipelineAdapter", "only_agent"]

_CALLBACK = "streaming_callback"


def only_agent(pipeline: Any) -> HaystackAgent | None:
    """The Haystack Agent that `pipeline` is, or that is all it holds."""
    if isinstance(pipeline, HaystackAgent):
        return pipeline
    if isinstance(pipeline, Pipeline):
        components = [data["instance"] for _, data in pipeline.graph.nodes(data=True)]
        if len(components) == 1 and isinstance(components[0], HaystackAgent):
            return components[0]
    return None


class PipelineAdapter:
    """Runs a pipeline for a conversation.

    Messages go to every open mandatory input that takes a list of chat messages, the last user
    text to every open mandatory text input. Optional inputs get nothing: a prompt builder's
    `template` is one, and what a requester wrote is never a template. Raises `ConfigurationError`
    for a pipeline with another mandatory input. `streams` names the component whose chunks are
    the answer; the last one that can stream, if it is not given.
    """

    def __init__(self, pipeline: Pipeline, streams: str | None = None) -> None:
        self._pipeline = pipeline
        self._message_inputs: list[tuple[str, str]] = []
        self._text_inputs: list[tuple[str, str]] = []
        self._find_inputs()
        self._streams = streams or self._find_streaming()
        if streams is not None and streams not in pipeline.graph.nodes:
            raise ConfigurationError(f"the pipeline has no component named {streams}")

    def _find_inputs(self) -> None:
        for component, sockets in self._pipeline.inputs().items():
            needed = {n: socket["type"] for n, socket in sockets.items() if socket["is_mandatory"]}
            for name, annotation in needed.items():
                if _takes_messages(annotation):
                    self._message_inputs.append((component, name))
                elif annotation is str or [annotation] == list(needed.values()) == [Any]:
                    # A prompt builder's variables take anything: one is the question, of two
                    # nobody knows which.
                    self._text_inputs.append((component, name))
                else:
                    raise ConfigurationError(
                        f"the pipeline's input {component}.{name} is mandatory, and neither a "
                        "list of chat messages nor a text: give it a default or connect it"
                    )
        if not self._message_inputs and not self._text_inputs:
            raise ConfigurationError(
                "the pipeline has no open input that takes chat messages or a text"
            )

    def _find_streaming(self) -> str | None:
        found: str | None = None
        for name, data in self._pipeline.graph.nodes(data=True):
            instance = data["instance"]
            if _CALLBACK in inspect.signature(instance.run).parameters:
                found = name
        return found

    def body(self, messages: Sequence[ChatMessage]) -> RunBody:
        """A run body that runs the pipeline; its answer is the text that comes out last."""

        async def body(run: RunContext) -> Any:
            normalizer = _PipelineNormalizer()
            run.normalizer = normalizer
            normalizer.begin_step()
            data = self._data(messages)
            if self._streams is not None:
                component = self._pipeline.get_component(self._streams)
                data.setdefault(self._streams, {})[_CALLBACK] = chunk_callback(run, component)
            result = await self._run(data)
            found = _messages_in(result)
            asked = {id(message) for message in messages}
            new = [m for m in found if id(m) not in asked][-_new_count(found, messages) :]
            text = new[-1].text if new else _text_in(result)
            await run.emit(normalizer.finish(new, text))
            run.new_messages.extend(new or [ChatMessage.from_assistant(text or "")])
            run.model_calls = normalizer.step
            run.usage = normalizer.total_usage(new)
            run.finish_reason = new[-1].meta.get("finish_reason", "stop") if new else "stop"
            return text

        return body

    async def _run(self, data: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._pipeline.run_async(data)
        except Exception as error:
            # Policy: a provider's failure is one in a pipeline, too; anything else is not ours.
            if (failure := provider_failure(error)) is not None and not _is_ours(error):
                raise failure from error
            raise

    def _data(self, messages: Sequence[ChatMessage]) -> dict[str, dict[str, Any]]:
        data: dict[str, dict[str, Any]] = {}
        for component, name in self._message_inputs:
            data.setdefault(component, {})[name] = list(messages)
        text = next((m.text for m in reversed(messages) if m.role == "user" and m.text), "")
        for component, name in self._text_inputs:
            data.setdefault(component, {})[name] = text
        return data


def _is_ours(error: BaseException | None) -> bool:
    """Whether an exception is one of this package's, that says already what failed."""
    while error is not None:
        if isinstance(error, HayrunnerError):
            return True
        error = error.__cause__
    return False


def _takes_messages(annotation: Any) -> bool:
    if get_origin(annotation) is list:
        return ChatMessage in get_args(annotation)
    return any(_takes_messages(option) for option in get_args(annotation))


def _new_count(found: Sequence[ChatMessage], asked: Sequence[ChatMessage]) -> int:
    """How many of the messages that came out are new: an Agent gives back the whole history,
    a generator its replies only."""
    if len(found) > len(asked) and _same(found[: len(asked)], asked):
        return len(found) - len(asked)
    last_user = max((i for i, m in enumerate(found) if m.role == "user"), default=-1)
    return max(len(found) - last_user - 1, 0) or len(found)


def _same(left: Sequence[ChatMessage], right: Sequence[ChatMessage]) -> bool:
    return all(a.role == b.role and a.text == b.text for a, b in zip(left, right, strict=True))


def _messages_in(result: Mapping[str, Mapping[str, Any]]) -> list[ChatMessage]:
    for output in reversed(list(result.values())):
        for key in ("messages", "replies"):
            value = output.get(key)
            if isinstance(value, list) and value and isinstance(value[0], ChatMessage):
                return value
        if isinstance(last := output.get("last_message"), ChatMessage):
            return [last]
    return []


def _text_in(result: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The text of the last output that is one: replies, answers, or a plain string."""
    for output in reversed(list(result.values())):
        for value in output.values():
            first = value[0] if isinstance(value, list) and value else value
            text = first if isinstance(first, str) else getattr(first, "data", None)
            if isinstance(text, str):
                return text
    return None


class _PipelineNormalizer(ChunkNormalizer):
    """An Agent inside a pipeline shows its steps only through its chunks: results arrive as
    chunks, and what comes after them belongs to the next step."""

    def __init__(self) -> None:
        super().__init__()
        self._after_results = False
        self._streamed = False

    def feed(self, chunk: StreamingChunk) -> list[StreamEvent]:
        if chunk.tool_call_result is not None:
            self._after_results = True
            return self._result(chunk.tool_call_result)
        if self._after_results and (chunk.content or chunk.tool_calls or chunk.reasoning):
            events = self._end_step(None)
            self._after_results = False
            self.begin_step()
            return [*events, *super().feed(chunk)]
        if chunk.content:
            self._streamed = True
        return super().feed(chunk)

    def _result(self, result: Any) -> list[StreamEvent]:
        origin = result.origin
        events: list[StreamEvent] = []
        for call in self.calls:
            if call.answered:
                continue
            if not call.completed:
                events.extend(self._complete(call, origin) if _is(call, origin) else ())
            if _is(call, origin):
                call.answered = True
                events += _executed(call.id, result, self.step)
                break
        return events

    def _end_step(self, last: ChatMessage | None) -> list[StreamEvent]:
        _, events = self.close_step(last)
        # Calls that were answered have their input already.
        answered = {call.id for call in self.calls if call.answered}
        return [
            event
            for event in events
            if not (isinstance(event, ToolInputComplete) and event.tool_call_id in answered)
        ]

    def finish(self, new: Sequence[ChatMessage], text: str | None) -> list[StreamEvent]:
        """What the chunks did not show: results of calls that were never streamed, the text of
        a pipeline that does not stream."""
        events = self._end_step(None)
        end = [event for event in events if isinstance(event, ModelCallEnd)]
        rest = [event for event in events if not isinstance(event, ModelCallEnd)]
        for message in new:
            for result in message.tool_call_results:
                for call in self.calls:
                    if not call.answered and _is(call, result.origin):
                        call.answered = True
                        rest.append(_output(call.id, result, self.step))
                        break
        if text and not self._streamed:
            rest.append(TextChunk(content=text, step=self.step))
        return [*rest, *self.close_open_calls("This call has no result."), *end]

    @staticmethod
    def total_usage(new: Sequence[ChatMessage]) -> Any:
        """The sum over the messages that came out."""
        total = usage_from({})
        for message in new:
            if isinstance(usage := message.meta.get("usage"), Mapping):
                total = total + usage_from(usage)
        return total


def _is(call: Any, origin: Any) -> bool:
    if origin.id and origin.id in (call.id, call.provider_id):
        return True
    return not origin.id and call.tool_name == origin.tool_name


def _output(call_id: str, result: Any, step: int) -> ToolOutput:
    return ToolOutput(
        tool_call_id=call_id,
        tool_output=to_wire_parts(result.result),
        is_error=result.error,
        step=step,
    )


def _executed(call_id: str, result: Any, step: int) -> list[StreamEvent]:
    committed = ToolExecutionCommitted(
        tool_call_id=call_id,
        tool_name=result.origin.tool_name,
        tool_input=result.origin.arguments,
        step=step,
    )
    return [committed, _output(call_id, result, step)]
