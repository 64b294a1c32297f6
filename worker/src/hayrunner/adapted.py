"""Agents made of what an author has already: a Haystack Agent or Pipeline."""

from dataclasses import replace
from typing import Any

from haystack import Pipeline
from haystack.components.agents import Agent as HaystackAgent
from haystack.dataclasses import ChatMessage
from msgspec import UNSET

from hayrunner.adapters.body import RunBody, loop_body
from hayrunner.adapters.loop import loop_agent
from hayrunner.adapters.settings import RunSettings
from hayrunner.adapters.stream import Stream
from hayrunner.adapters.structured import ResponseFormat, keeps_tools
from hayrunner.agent import Agent
from hayrunner.errors import UnsupportedOption
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.options import RunOptions

__all__ = ["HaystackAgentAdapter", "PipelineAgent"]

# What a run of a pipeline can honour: the rest is decided by its components.
_PIPELINE_OPTIONS = frozenset(
    {"history", "memory", "on_busy_thread", "deadline", "record_content_telemetry"}
)


class HaystackAgentAdapter(Agent):
    """A Haystack Agent as it is: its generator, prompts, tools, hooks, limits and exit
    conditions are its own; the request's options apply over them."""

    def __init__(self, name: str, agent: HaystackAgent) -> None:
        super().__init__()
        self.name = name
        self.description = f"Asks the agent {name}."
        self._haystack_agent = agent
        self._loop = loop_agent(agent)

    def get_llm(self) -> Any:
        return self._haystack_agent.chat_generator

    def default_settings(self) -> RunSettings:
        return replace(
            super().default_settings(),
            max_turns=self._haystack_agent.max_agent_steps,
            tool_concurrency=self._haystack_agent.tool_concurrency_limit,
        )

    def get_pipeline_adapter(self, thread_id: str | None = None, user: str | None = None) -> Stream:
        return Stream(
            self.loop,
            storage=self.get_storage(thread_id),
            suggestion_generator=self.get_suggestion_generator(),
            max_history=self.max_history,
        )

    def headless_body(
        self,
        messages: list[ChatMessage],
        form: ResponseFormat | None,
        tools: bool,
        thread_id: str | None,
        user: str | None,
    ) -> RunBody:
        own = None if tools and keeps_tools(form) else ()
        return loop_body(self.loop, messages, tools=own, response_format=form)


class PipelineAgent(Agent):
    """A Haystack Pipeline. It runs the same way in both modes, tools included if it has any."""

    def __init__(self, name: str, pipeline: Pipeline) -> None:
        super().__init__()
        self.name = name
        self.description = f"Asks the agent {name}."
        self._pipeline = pipeline
        # Made here for its checks: a pipeline that cannot run is refused before it is served.
        self._stream = Stream(pipeline)

    def check_options(self, options: RunOptions) -> None:
        for name in options.__struct_fields__:
            if name not in _PIPELINE_OPTIONS and getattr(options, name) is not UNSET:
                raise UnsupportedOption(name, "this agent is a pipeline, which decides that itself")

    async def warm_up(self) -> None:
        await self._pipeline.warm_up_async()

    async def close(self) -> None:
        await self._pipeline.close_async()

    def get_pipeline_adapter(self, thread_id: str | None = None, user: str | None = None) -> Stream:
        return Stream(
            self._pipeline, storage=self.get_storage(thread_id), max_history=self.max_history
        )

    def headless_body(
        self,
        messages: list[ChatMessage],
        form: ResponseFormat | None,
        tools: bool,
        thread_id: str | None,
        user: str | None,
    ) -> RunBody:
        if form is not None:
            raise InvalidRequest("a pipeline decides its own output", field="response_format")
        return self._stream.body(messages)
