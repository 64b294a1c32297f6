"""What a change of a stream's configuration would throw away."""

import time
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo
from nats.js.errors import NotFoundError

__all__ = ["changes_of", "losses_of"]

_COMPARED = (
    "subjects",
    "retention",
    "storage",
    "num_replicas",
    "max_msgs",
    "max_bytes",
    "discard",
    "discard_new_per_subject",
    "max_age",
    "max_msgs_per_subject",
    "allow_rollup_hdrs",
    "allow_direct",
    "duplicate_window",
)
_FIXED = ("retention", "storage")
# What the server answers where nothing was said.
_UNSET = {"max_msgs": -1, "max_bytes": -1, "max_age": 0.0, "allow_rollup_hdrs": False}


def changes_of(current: StreamConfig, wanted: StreamConfig) -> dict[str, Any]:
    """The fields that differ, with the wanted value."""
    changes: dict[str, Any] = {}
    for field in _COMPARED:
        value = getattr(wanted, field)
        if value is None:
            value = _UNSET.get(field)
        if getattr(current, field) != value:
            changes[field] = value
    return changes


async def losses_of(
    js: JetStreamContext, info: StreamInfo, wanted: StreamConfig, changes: dict[str, Any]
) -> list[str]:
    """A sentence for each change that cannot be made without losing what the stream holds."""
    name = info.config.name
    losses: list[str] = []
    for field in _FIXED:
        if field in changes:
            losses.append(
                f"stream {name} has {field} {getattr(info.config, field)} and should have "
                f"{getattr(wanted, field).value}: that cannot be changed without losing what it "
                "holds; remove the stream first, or keep the setting"
            )
    if "subjects" in changes and not set(info.config.subjects or ()) <= set(wanted.subjects or ()):
        losses.append(
            f"stream {name} takes the subjects {', '.join(info.config.subjects or ())} and should "
            f"take {', '.join(wanted.subjects or ())}: messages of the others would be lost"
        )
    for field, held, unit in (
        ("max_msgs", info.state.messages, "messages"),
        ("max_bytes", info.state.bytes, "bytes"),
    ):
        limit = changes.get(field, -1)
        if 0 < limit < held:
            losses.append(f"stream {name} holds {held} {unit}: a limit of {limit} loses some")
    losses += await _of_one_subject(js, info, changes.get("max_msgs_per_subject", -1))
    age = changes.get("max_age")
    if age and info.state.messages and await _oldest_age_s(js, info) > age:
        losses.append(f"stream {name} holds messages older than {age:g} s: that limit loses them")
    return losses


async def _of_one_subject(js: JetStreamContext, info: StreamInfo, limit: int) -> list[str]:
    if not 0 < limit < info.state.messages:
        return []
    name = str(info.config.name)
    state = (await js.stream_info(name, subjects_filter=">")).state
    fullest, held = max((state.subjects or {"": 0}).items(), key=lambda item: item[1])
    if held <= limit:
        return []
    return [f"stream {name} holds {held} messages of {fullest}: a limit of {limit} loses some"]


async def _oldest_age_s(js: JetStreamContext, info: StreamInfo) -> float:
    try:
        oldest = await js.get_msg(str(info.config.name), seq=info.state.first_seq)
    except NotFoundError:
        return 0.0
    return 0.0 if oldest.time is None else time.time() - oldest.time.timestamp()
