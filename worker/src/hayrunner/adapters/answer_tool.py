"""A tool that is never run: a model that is made to call it answers in the form of its
arguments. For generators that can be given tools and no format."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
from haystack.tools import Tool

from hayrunner.adapters.schema_forms import named_in

__all__ = ["AnswerTool", "answer_tool"]

_NAME = "answer"
_DESCRIPTION = (
    "Give the final answer by calling this tool: its arguments are the answer. Call it once, when "
    "nothing is left to be found out, and write nothing beside it."
)


@dataclass(frozen=True, kw_only=True)
class AnswerTool:
    """The tool, and how its arguments become the answer. `wrapped` says that the answer is one
    argument of the call, because arguments are always an object and the answer need not be."""

    tool: Tool
    wrapped: bool

    @property
    def name(self) -> str:
        return self.tool.name

    def beside(self, names: Iterable[str]) -> "AnswerTool":
        """The same under a name that none of the run's tools has."""
        taken = set(names)
        if self.name not in taken:
            return self
        free = next(name for n in range(2, len(taken) + 3) if (name := f"{_NAME}_{n}") not in taken)
        return replace(self, tool=replace(self.tool, name=free))

    def answer_of(self, arguments: str) -> str:
        """The JSON of the answer, from the arguments as the model wrote them; what cannot be read
        stays as it is, to be found wrong where every reply is checked."""
        if not self.wrapped:
            return arguments
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return arguments
        if not isinstance(value, dict) or _NAME not in value:
            return arguments
        return msgspec.json.encode(cast("dict[str, Any]", value)[_NAME]).decode()


def answer_tool(schema: dict[str, Any]) -> AnswerTool:
    """The tool whose call is an answer that satisfies `schema`."""
    wrapped = schema.get("type") != "object"
    tool = Tool(
        name=_NAME,
        description=_DESCRIPTION,
        parameters=named_in(schema, _NAME) if wrapped else schema,
        function=_never,
    )
    return AnswerTool(tool=tool, wrapped=wrapped)


def _never(**_: Any) -> None:
    raise AssertionError("the answer tool is not run")
