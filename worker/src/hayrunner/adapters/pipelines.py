"""Pipelines as agents: where the conversation goes in, where chunks and the answer come out."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from haystack import Pipeline
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall, ToolCallResult
from haystack.tools import flatten_tools_or_toolsets

from hayrunner.adapters.body import RunBody
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import to_wire_parts
from hayrunner.adapters.model_call import chunk_callback, stoppable
from hayrunner.adapters.normalize import CallRecord, ChunkNormalizer
from hayrunner.adapters.provider_failures import provider_failure
from hayrunner.adapters.settings import LOOPLESS_OPTIONS, refuse_options
from hayrunner.adapters.spans import note_conversation
from hayrunner.approvals import is_marked
from hayrunner.errors import ConfigurationError, HayrunnerError
from hayrunner.token_counts import usage_from
from hayrunner_contracts.events import (
    StreamEvent,
    ToolExecutionCommitted,
    ToolOutput,
    Usage,
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
        self._agent = self._find_agent()
        self._refuse_marked_tools()

    def _refuse_marked_tools(self) -> None:
        # An Agent among other components runs Haystack's own loop, which would just run them.
        for name, data in self._pipeline.graph.nodes(data=True):
            instance = data["instance"]
            tools = instance.tools if isinstance(instance, HaystackAgent) else None
            if any(map(is_marked, flatten_tools_or_toolsets(tools))):
                raise ConfigurationError(
                    f"the pipeline's component {name} has a tool that requires approval, which "
                    "only an agent can ask for: serve that agent alone, or as a subagent"
                )

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
            # An Agent hands its callback on, whether its generator takes one or not.
            streamer = _generator_of(instance) or instance
            if _CALLBACK in inspect.signature(streamer.run).parameters:
                found = name
        return found

    def _find_agent(self) -> str | None:
        """The Agent whose tools are shown: the component that streams, or the last one if there
        is none."""
        names = [self._streams] if self._streams is not None else list(self._pipeline.graph.nodes)
        agents = [n for n in names if _generator_of(self._pipeline.get_component(n)) is not None]
        return agents[-1] if agents else None

    def body(self, messages: Sequence[ChatMessage]) -> RunBody:
        """A run body that runs the pipeline; its answer is the text that comes out last."""

        async def body(run: RunContext) -> Any:
            refuse_options(
                run.settings, LOOPLESS_OPTIONS, "a pipeline answers, which decides that itself"
            )
            note_conversation(run, messages)
            normalizer = _PipelineNormalizer(run.normalizer.used_ids)
            run.normalizer = normalizer
            normalizer.begin_step()
            data = self._data(messages)
            if self._streams is not None:
                component = self._pipeline.get_component(self._streams)
                callback = chunk_callback(run, component, of_many=True)
                data.setdefault(self._streams, {})[_CALLBACK] = callback
            result = await self._run(run, data)
            agent = {} if self._agent is None else {self._agent: result.pop(self._agent, {})}
            found = _messages_in(result)
            text = None if found else _text_in(result)
            found = found or _messages_in(agent)
            asked = {id(message) for message in messages}
            new = [m for m in found if id(m) not in asked][-_new_count(found, messages) :]
            if text is None and new:
                text = new[-1].text
            await run.emit(normalizer.finish(new, text))
            run.new_messages.extend(new or [ChatMessage.from_assistant(text or "")])
            run.model_calls = normalizer.step
            run.spend(_total_usage(new))
            run.finish_reason = new[-1].meta.get("finish_reason", "stop") if new else "stop"
            return text

        return body

    async def _run(self, run: RunContext, data: dict[str, Any]) -> dict[str, Any]:
        try:
            # An Agent's messages hold what its chunks do not show, wherever they go from there.
            extra = {self._agent} if self._agent is not None else None
            running = self._pipeline.run_async(data, include_outputs_from=extra)
            if not run.hooks.watches_deltas:
                return await running
            return await stoppable(run, running) or {}
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


def _generator_of(instance: Any) -> Any:
    return instance.chat_generator if isinstance(instance, HaystackAgent) else None


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

    def __init__(self, used_ids: set[str] | None = None) -> None:
        super().__init__(used_ids)
        self._streamed = False
        self._ended: list[tuple[int, CallRecord]] = []
        """The calls of the steps that have ended, with their step."""

    def feed(self, chunk: StreamingChunk) -> list[StreamEvent]:
        if chunk.tool_call_result is not None:
            return [*self._end_step(), *self._result(chunk.tool_call_result, ran=True)]
        if chunk.finish_reason == "tool_call_results":
            return self._end_step()
        events: list[StreamEvent] = []
        if chunk.content or chunk.tool_calls or chunk.reasoning:
            # Where no tool could be run, no result marks the border: a reply that is complete
            # and has calls is followed by the next one.
            if self.finished and self.calls:
                events = self._end_step()
            if not self.open:
                self.begin_step()
        self._streamed = self._streamed or bool(chunk.content)
        return [*events, *super().feed(chunk)]

    def _end_step(self) -> list[StreamEvent]:
        if not self.open:
            return []
        _, events = self.close_step(None)
        self._ended.extend((self.step, call) for call in self.calls)
        return events

    def _take(self, origin: ToolCall) -> tuple[int, CallRecord] | None:
        for step, call in self._ended:
            if not call.answered and _is(call, origin):
                call.answered = True
                return step, call
        return None

    def _result(self, result: ToolCallResult, *, ran: bool) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if (taken := self._take(result.origin)) is None:
            # The generator did not stream the call.
            call, step = self._unseen(result.origin), self.step
            events += [self._announce(call), *self._complete(call, result.origin)]
        else:
            step, call = taken
        if ran:
            events.append(_committed(call, result, step))
        return [*events, _output(call.id, result, step)]

    def _unseen(self, origin: ToolCall) -> CallRecord:
        provider_id = origin.id or ""
        call = CallRecord(id=self.unique_id(provider_id), provider_id=provider_id)
        call.tool_name, call.answered = origin.tool_name, True
        return call

    def finish(self, new: Sequence[ChatMessage], text: str | None) -> list[StreamEvent]:
        """What the chunks did not show: results that are only in the messages, the text of a
        pipeline that does not stream."""
        results = [result for message in new for result in message.tool_call_results]
        events: list[StreamEvent] = []
        if results and not self._ended and not self.calls:
            events += self._end_step()
            for result in results:
                events += self._result(result, ran=not result.error)
        if text and not self._streamed:
            events += self.feed(StreamingChunk(text))
        events += self._end_step()
        for result in results:
            if (taken := self._take(result.origin)) is not None:
                events.append(_output(taken[1].id, result, taken[0]))
        return [*events, *self.close_open_calls("This call has no result.")]

    def close_open_calls(self, why: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for step, call in self._ended:
            if not call.answered:
                call.answered = True
                events.append(
                    ToolOutput(tool_call_id=call.id, tool_output=why, is_error=True, step=step)
                )
        return [*events, *super().close_open_calls(why)]


def _total_usage(new: Sequence[ChatMessage]) -> Usage:
    """The sum over the messages that came out."""
    usages = (message.meta.get("usage") for message in new)
    return sum((usage_from(u) for u in usages if isinstance(u, Mapping)), Usage())


def _is(call: CallRecord, origin: ToolCall) -> bool:
    if origin.id and origin.id in (call.id, call.provider_id):
        return True
    return not origin.id and call.tool_name == origin.tool_name


def _output(call_id: str, result: ToolCallResult, step: int) -> ToolOutput:
    return ToolOutput(
        tool_call_id=call_id,
        tool_output=to_wire_parts(result.result),
        is_error=result.error,
        step=step,
    )


def _committed(call: CallRecord, result: ToolCallResult, step: int) -> ToolExecutionCommitted:
    return ToolExecutionCommitted(
        tool_call_id=call.id,
        tool_name=result.origin.tool_name,
        tool_input=result.origin.arguments,
        step=step,
    )
