"""How each generator is asked for a format.

| generator | how |
|---|---|
| OpenAI chat completions, compatible servers | the parameter `response_format` |
| OpenAI Responses | the parameter `text.format` |
| Ollama | `response_format` of the generator itself: set on the run's copy |
| any other that takes tools, Anthropic's among them | a tool that it is made to call |
| any other | refused before a model call |
"""

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any

from hayrunner.adapters.answer_tool import AnswerTool, answer_tool
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.schema_forms import allows_strict
from hayrunner.adapters.structured import ResponseFormat
from hayrunner.errors import UnsupportedResponseFormat

__all__ = ["FormatRequest", "format_request"]

# By class name, so that no optional integration has to be imported.
_CHAT = frozenset({"OpenAICompatibleChatGenerator", "OpenAIChatGenerator"})
_RESPONSES = frozenset({"OpenAIResponsesChatGenerator"})
_OLLAMA = frozenset({"OllamaChatGenerator"})


@dataclass(frozen=True, kw_only=True)
class FormatRequest:
    """What a run's model calls are given so that their replies have the format.

    `attributes` are set on the run's own copy of the generator. `alone` says that a model that
    is asked for the format can call no tools.
    """

    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    answer_tool: AnswerTool | None = None
    alone: bool = False

    def apply(self, run: RunContext) -> None:
        """Ask for the format in the run's model calls from now on."""
        run.generation_kwargs = run.generation_kwargs | self.parameters
        run.answer_tool = self.answer_tool
        if self.attributes:
            mine = copy.copy(run.generator)
            for name, value in self.attributes.items():
                setattr(mine, name, value)
            run.generator = mine


def format_request(generator: Any, wanted: ResponseFormat) -> FormatRequest:
    """How `generator` is asked for the format.

    Raises `UnsupportedResponseFormat` for one that cannot be asked: before any model call.
    """
    names = {cls.__name__ for cls in type(generator).__mro__}
    if names & _RESPONSES:
        return FormatRequest(parameters={"text": {"format": _spec(wanted, type="json_schema")}})
    if names & _CHAT:
        form = {"type": "json_schema", "json_schema": _spec(wanted)}
        return FormatRequest(parameters={"response_format": form})
    if names & _OLLAMA:
        # Ollama holds the model to the schema from its first token: it could not call a tool.
        return FormatRequest(attributes={"response_format": wanted.schema}, alone=True)
    if "tools" in inspect.signature(generator.run).parameters:
        return FormatRequest(answer_tool=answer_tool(wanted.schema))
    raise UnsupportedResponseFormat(type(generator).__name__)


def _spec(wanted: ResponseFormat, **more: Any) -> dict[str, Any]:
    strict = allows_strict(wanted.schema)
    return {**more, "name": wanted.name, "schema": wanted.schema, "strict": strict}
