"""Commands to a run, whatever state it is in."""

from typing import Any

import msgspec

__all__ = [
    "COMMAND_REFUSED",
    "COMMAND_TYPES",
    "SAID",
    "Approve",
    "Cancel",
    "Deny",
    "Modify",
    "RunCommand",
    "Say",
]

COMMAND_REFUSED = "command_refused"
"""The `data_type` of the `data` event that says that a command was not taken: `command` (its type),
`reason`, and `tool_call_id` where it has one."""

SAID = "said"
"""The `data_type` of the `data` event that says that the `text` of a `say` was taken in, before the
model call that is the event's `step`."""


class RunCommand(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="",
):
    """What every command has."""


class Cancel(RunCommand, frozen=True, kw_only=True, omit_defaults=True, tag="cancel"):
    """End the run. Cancelling twice is one cancel; a finished run stays as it ended."""

    reason: str | None = None


class Approve(RunCommand, frozen=True, kw_only=True, omit_defaults=True, tag="approve"):
    """Let the call run as the request for approval shows it."""

    tool_call_id: str
    feedback: str | None = None


class Deny(RunCommand, frozen=True, kw_only=True, omit_defaults=True, tag="deny"):
    """Do not run the call; the model is told so, with the feedback."""

    tool_call_id: str
    feedback: str | None = None


class Modify(RunCommand, frozen=True, kw_only=True, omit_defaults=True, tag="modify"):
    """Run the call with these arguments instead."""

    tool_call_id: str
    tool_input: dict[str, Any]
    feedback: str | None = None


class Say(RunCommand, frozen=True, kw_only=True, omit_defaults=True, tag="say"):
    """A further user message, taken in before the next model call. One that comes while the last
    reply is made has one more call made, if `max_turns` allows it."""

    text: str


COMMAND_TYPES: dict[str, type[RunCommand]] = {
    str(command.__struct_config__.tag): command for command in (Cancel, Approve, Deny, Modify, Say)
}
