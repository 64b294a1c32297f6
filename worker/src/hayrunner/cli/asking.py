"""What a command line says of a run, made into a request's arguments. Checked before anything
is sent, by the rules that the worker checks by."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from hayrunner.errors import ConfigurationError
from hayrunner_contracts.arguments import RunArguments, compose_request
from hayrunner_contracts.message_ids import new_message_id
from hayrunner_contracts.options import NamedTool
from hayrunner_contracts.requests import RunMode

__all__ = ["Question", "read_prompt"]

_CHOICES = ("auto", "required", "none")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One run to start. `timeout_s` is for the whole of it, time in the queue included."""

    agent: str
    prompt: str
    arguments: RunArguments
    message_id: str
    tools: bool = False
    timeout_s: float | None = None

    @classmethod
    def of(
        cls,
        agent: str,
        prompt: str,
        *,
        mode: RunMode,
        tools: bool,
        timeout_s: float | None,
        given: dict[str, Any],
        options: Sequence[str],
    ) -> "Question":
        """Check and keep it. `given` are run arguments by name, None for those that were not
        given; `options` are `name=json`. Raises `InvalidRequest` or `ConfigurationError`."""
        arguments = {name: value for name, value in given.items() if value is not None}
        if "tool_choice" in arguments and arguments["tool_choice"] not in _CHOICES:
            arguments["tool_choice"] = NamedTool(name=arguments["tool_choice"])
        arguments.update(_option(option) for option in options)
        arguments["message_id"] = new_message_id()
        if timeout_s is not None:
            arguments["timeout_s"] = timeout_s
        typed = cast("RunArguments", arguments)
        try:
            compose_request(prompt, typed, mode=mode, tools=tools)
        except TypeError as error:
            raise ConfigurationError(f"--option: {error}") from None
        return cls(
            agent=agent,
            prompt=prompt,
            arguments=typed,
            message_id=arguments["message_id"],
            tools=tools,
            timeout_s=timeout_s,
        )


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(
            f"--option takes name=json, such as max_turns=3; this has no =: {name}"
        )
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        raise ConfigurationError(
            f"--option {name}: the value is not JSON; text needs quotes, such as "
            f"'{name}=\"some text\"'"
        ) from None


def read_prompt(given: str | None) -> str:
    """The prompt, from standard input where it is `-`, or missing and something is piped in."""
    if given is not None and given != "-":
        return given
    if given is None and sys.stdin.isatty():
        raise ConfigurationError("a prompt is missing: give one, or pipe it in")
    return sys.stdin.buffer.read().decode("utf-8", errors="replace").strip()
