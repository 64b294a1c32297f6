"""A run's events on a terminal, as they come; the same as plain text where it is none.

Text of models and tools is shown without control characters, so that it cannot move the cursor,
change the terminal's settings or hide what stands before it.
"""

import re
import sys
from typing import Any, TextIO

import msgspec
from rich.console import Console

from hayrunner_contracts.events import (
    REPLY_REJECTED,
    Data,
    Error,
    MessageEnd,
    ModelCallEnd,
    ReasoningChunk,
    RunResumed,
    Source,
    Suggestion,
    TextChunk,
    ToolApprovalRequest,
    ToolExecutionCommitted,
    ToolInputComplete,
    ToolOutput,
    Usage,
)
from hayrunner_contracts.following import Event

__all__ = ["RunView", "make_console", "safe_text", "usage_line"]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONGEST_OUTPUT = 2_000


def make_console(stream: TextIO | None = None) -> Console:
    """Colours on a terminal, plain text elsewhere; no markup and no emoji codes in either."""
    return Console(
        file=stream or sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def safe_text(text: str) -> str:
    """The text without control characters, line breaks and tabs aside."""
    return _CONTROL.sub("", text)


def usage_line(usage: Usage | None) -> str:
    """Tokens in a few words."""
    if usage is None:
        return "usage unknown"
    return f"{usage.input_tokens} tokens in, {usage.output_tokens} out, {usage.total_tokens} in all"


class RunView:
    """Prints one run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._at_line_start = True
        self._section: tuple[str, int | None] | None = None
        self._written: dict[str, Any] = {}
        self._tool_names: dict[str, str] = {}
        self._model_calls = 0
        self._models: list[str] = []

    def show(self, event: Event) -> None:
        """Print what the event says, if anything."""
        match event:
            case TextChunk():
                self._flow("text", event.step, event.content)
            case ReasoningChunk():
                self._flow("reasoning", event.step, event.content, style="dim")
            case ToolInputComplete() | ToolExecutionCommitted() | ToolOutput():
                self._show_tool(event)
            case MessageEnd():
                self._show_end(event)
            case Error():
                self._show_error(event)
            case ModelCallEnd():
                self._model_calls += 1
                if event.model and event.model not in self._models:
                    self._models.append(event.model)
            case _:
                self._show_rest(event)

    def _flow(self, kind: str, step: int | None, text: str, *, style: str | None = None) -> None:
        """Running text: each kind and each step of it begins on a line of its own."""
        if self._section != (kind, step):
            self._line_break()
            self._section = (kind, step)
        self._write(text, style=style)

    def _show_tool(self, event: ToolInputComplete | ToolExecutionCommitted | ToolOutput) -> None:
        call = event.tool_call_id
        if isinstance(event, ToolInputComplete):
            name = f"{event.agent}: {event.tool_name}" if event.agent else event.tool_name
            self._tool_names[call] = name
            self._written[call] = event.tool_input
            self._line(f"  → {name} {_as_text(event.tool_input)}", style="cyan")
        elif isinstance(event, ToolExecutionCommitted):
            if event.tool_input != self._written.get(call):
                self._line(f"  → run with {_as_text(event.tool_input)}", style="cyan")
        else:
            name = self._tool_names.get(call, "")
            output = _shortened(_as_text(event.tool_output))
            mark, style = ("✗", "red") if event.is_error else ("←", "green")
            self._line(f"  {mark} {name} {output}", style=style)

    def _show_error(self, event: Error) -> None:
        reference = f" (ref {event.ref})" if event.ref else ""
        again = "; trying again may help" if event.retryable else ""
        self._line(f"{event.error_code}: {event.error_message}{reference}{again}", style="red")

    def _show_end(self, event: MessageEnd) -> None:
        calls = f"{self._model_calls} model call{'' if self._model_calls == 1 else 's'}"
        parts = [event.finish_reason, calls, usage_line(event.usage), *self._models]
        self._line("")
        self._line(" · ".join(parts), style="dim")

    def _show_rest(self, event: Event) -> None:
        match event:
            case RunResumed():
                self._section = None
                self._line(
                    f"-- the worker was lost; attempt {event.attempt} goes on, and what stands "
                    "above this line is void --",
                    style="yellow",
                )
            case ToolApprovalRequest():
                asked = f"  ? {event.tool_name} {_as_text(event.tool_input)} waits for approval"
                self._line(asked, style="yellow")
            case Source():
                title = event.title or event.source_id or ""
                self._line(f"  [{event.index}] {title} {event.url or ''}".rstrip(), style="dim")
            case Suggestion():
                for question in event.suggestions:
                    self._line(f"  · {question}", style="dim")
            case Data() if event.data_type == REPLY_REJECTED:
                self._line("-- what the model said last does not count --", style="yellow")
            case Data():
                self._line(f"  {event.data_type}: {_shortened(_as_text(event.data))}", style="dim")
            case _:
                pass  # says nothing to a reader

    def _line(self, text: str, *, style: str | None = None) -> None:
        self._line_break()
        self._section = None
        self._write(text + "\n", style=style)

    def _line_break(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str, *, style: str | None = None) -> None:
        text = safe_text(text)
        if not text:
            return
        if style is None:
            self._console.file.write(text)  # rich would spread tabs
        else:
            self._console.out(text, style=style, highlight=False, end="")
        self._console.file.flush()
        self._at_line_start = text.endswith("\n")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_OUTPUT:
        return text
    return f"{text[:_LONGEST_OUTPUT]} … ({len(text)} characters)"
