"""Tool calls that cannot be run, and what is done about them."""

from collections.abc import Mapping
from typing import Any

from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool
from jsonschema import Draft202012Validator
from referencing import Registry

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.normalize import INVALID_ARGUMENTS
from hayrunner.errors import InvalidToolCall
from hayrunner.hooks import Fail, InvalidCall, Repair, Retry, Skip

__all__ = ["CheckedCalls", "problem_of", "schema_faults", "with_calls"]

_FAULTS_TOLD = 3
_KEPT = "_hayrunner_validator"


class CheckedCalls:
    """The calls of one step, sorted into those to run and those that get an answer instead.

    `runnable` may hold repaired calls; `answers` has the text for every other one, by id.
    """

    def __init__(self, run: RunContext, tools: Mapping[str, Tool]) -> None:
        self._run = run
        self._tools = tools
        self.runnable: list[ToolCall] = []
        self.answers: dict[str | None, str] = {}
        self.repaired: dict[str | None, ToolCall] = {}

    async def check(self, calls: list[ToolCall]) -> None:
        """Sort `calls`, in call order. Raises `InvalidToolCall` where the run's budget of
        corrections is used up or a hook says so."""
        corrected = False
        for call in calls:
            problem = self._problem(call)
            if problem is None:
                self.runnable.append(call)
                continue
            corrected = await self._decide(call, problem) or corrected
        if corrected:
            self._spend()

    async def _decide(self, call: ToolCall, problem: str) -> bool:
        """Whether this call costs a correction."""
        action = await self._run.hooks.invalid_tool_call(
            InvalidCall(
                tool_call_id=call.id or "",
                tool_name=call.tool_name,
                tool_input=_as_written(call),
                problem=problem,
                retries_left=self._left(),
            )
        )
        if isinstance(action, Fail):
            raise InvalidToolCall(self._run.invalid_retries_used, messages=self._run.new_messages)
        if isinstance(action, Skip):
            self.answers[call.id] = action.reason
            return False
        if isinstance(action, Repair):
            mended = ToolCall(
                tool_name=action.tool_name or call.tool_name,
                arguments=dict(action.tool_input),
                id=call.id,
                extra=_without_raw(call.extra),
            )
            problem_left = self._problem(mended)
            if problem_left is None:
                self.repaired[call.id] = mended
                self.runnable.append(mended)
                return False
            problem = problem_left
        self.answers[call.id] = action.feedback if isinstance(action, Retry) else problem
        return True

    def _problem(self, call: ToolCall) -> str | None:
        if self._run.settings.tool_choice == "none":
            return "This call was not run: tools may not be called in this run."
        return problem_of(call, self._tools)

    def _left(self) -> int:
        used = self._run.invalid_retries_used
        return max(0, self._run.settings.max_invalid_tool_call_retries - used)

    def _spend(self) -> None:
        if not self._left():
            limit = self._run.settings.max_invalid_tool_call_retries
            raise InvalidToolCall(limit, messages=self._run.new_messages)
        self._run.invalid_retries_used += 1


def _as_written(call: ToolCall) -> dict[str, Any] | str:
    raw = (call.extra or {}).get(INVALID_ARGUMENTS)
    return call.arguments if raw is None else str(raw)


def _without_raw(extra: dict[str, Any] | None) -> dict[str, Any] | None:
    kept = {key: value for key, value in (extra or {}).items() if key != INVALID_ARGUMENTS}
    return kept or None


def problem_of(call: ToolCall, tools: Mapping[str, Tool]) -> str | None:
    """What the model is told of a call that cannot be run; None where it can."""
    if (call.extra or {}).get(INVALID_ARGUMENTS) is not None:
        return (
            "This call was not run: its arguments are not a JSON object. "
            "Call the tool again with arguments that are one."
        )
    tool = tools.get(call.tool_name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return f"This call was not run: there is no tool of that name. The tools are: {known}."
    faults = schema_faults(tool, call.arguments)
    if faults is None:
        return None
    return (
        "This call was not run: its arguments do not satisfy the tool's schema: "
        f"{faults}. Call the tool again with arguments that do."
    )


def schema_faults(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """What keeps arguments from satisfying the tool's schema, the first few faults; None where
    they do."""
    faults = [
        f"at {'/'.join(str(part) for part in fault.absolute_path) or 'the root'}: {fault.message}"
        for fault, _ in zip(
            _validator(tool).iter_errors(arguments), range(_FAULTS_TOLD), strict=False
        )
    ]
    return "; ".join(faults) or None


def _validator(tool: Tool) -> Draft202012Validator:
    """Kept on the tool: it costs more to make than to use, and lives as long."""
    kept = tool.__dict__.get(_KEPT)
    if kept is None or kept.schema is not tool.parameters:
        kept = Draft202012Validator(tool.parameters, registry=Registry())
        tool.__dict__[_KEPT] = kept
    return kept


def with_calls(message: ChatMessage, calls: list[ToolCall]) -> ChatMessage:
    """The assistant message with other tool calls."""
    return ChatMessage.from_assistant(
        text=message.text,
        tool_calls=calls,
        reasoning=message.reasoning,
        name=message.name,
        meta=message.meta,
    )
