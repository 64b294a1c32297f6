"""The same agent, served by hayhooks the way its documentation does it: an async wrapper."""

import importlib
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from haystack.dataclasses import ChatMessage

sys.path.insert(0, str(Path(__file__).parents[2]))
bench_agent: Any = importlib.import_module("agents").bench_agent
# By name: hayhooks is installed where benchmarks are run, not where types are checked.
hayhooks: Any = importlib.import_module("hayhooks")


class PipelineWrapper(hayhooks.BasePipelineWrapper):
    def setup(self) -> None:
        self.pipeline = bench_agent("haystack", os.environ["BENCH_PROVIDER"])

    async def run_chat_completion_async(
        self, model: str, messages: list[dict[str, Any]], body: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        asked = [ChatMessage.from_openai_dict_format(message) for message in messages]
        return hayhooks.async_streaming_generator(
            pipeline=self.pipeline, pipeline_run_args={"messages": asked}
        )
