"""The AsyncAPI 3.0 document: every subject, what goes over it, and what a worker does there."""

from typing import Any, NamedTuple

from hayrunner_contracts import examples, headers
from hayrunner_contracts.commands import COMMAND_TYPES
from hayrunner_contracts.events import EVENT_TYPES
from hayrunner_contracts.schema import components
from hayrunner_contracts.strict_json import RequestLimits
from hayrunner_contracts.threads import THREAD_RECORD_TYPES

__all__ = ["CHANNELS", "Channel", "asyncapi"]

_TOKEN = {"description": "1 to 128 characters of A-Z, a-z, 0-9, _ and -"}
_PARAMETERS: dict[str, dict[str, str]] = {
    "ns": {**_TOKEN, "default": "default"},
    "agent": _TOKEN,
    "message_id": {"description": "A UUID in canonical form, lower case"},
    "thread_id": _TOKEN,
}
_TRACE = {
    headers.TRACEPARENT: {"type": "string", "description": "W3C trace context"},
    headers.TRACESTATE: {"type": "string", "description": "W3C trace context"},
}
_BLOB = {
    headers.BLOB: {
        "type": "string",
        "description": "On a stub: the object in the bucket RUN_BLOBS that has the whole payload",
    },
    headers.BLOB_DIGEST: {
        "type": "string",
        "description": "Beside it: SHA-256= and the digest in URL-safe base64",
    },
}


class Channel(NamedTuple):
    """A subject of the contract."""

    name: str
    address: str
    publisher: str
    carries: str
    kept_in: str
    action: str | None
    """What the worker does there, in AsyncAPI's words; None where no message type is public."""


CHANNELS: tuple[Channel, ...] = (
    Channel(
        "requests",
        "agents.{ns}.{agent}.requests",
        "the requester",
        f"`RunRequest`, with the header `{headers.MSG_ID}: {{message_id}}`",
        "`AGENT_REQUESTS`, a work queue",
        "receive",
    ),
    Channel(
        "ask",
        "agents.{ns}.{agent}.ask",
        "the requester, with a reply inbox",
        "`RunRequest`; the reply is the one `RunResult`, or, in mode `stream`, the events",
        "nothing",
        "receive",
    ),
    Channel(
        "events",
        "runs.{ns}.{message_id}.events",
        "the worker",
        "every `StreamEvent` of the run",
        "`RUN_EVENTS`, by age",
        "send",
    ),
    Channel(
        "result",
        "runs.{ns}.{message_id}.result",
        "the worker",
        "the one `RunResult`",
        "`RUN_RESULTS`, last per subject, by age",
        "send",
    ),
    Channel(
        "commands",
        "runs.{ns}.{message_id}.commands",
        "anyone allowed",
        "`RunCommand`",
        "`RUN_COMMANDS`, by age",
        "receive",
    ),
    Channel(
        "thread",
        "threads.{ns}.{thread_id}",
        "the worker, and clients for all but messages",
        f"a `ThreadRecord` of a conversation, with the header `{headers.THREAD_STATE}`",
        "`THREADS`",
        "send",
    ),
    Channel(
        "dead",
        "dead.{ns}.{agent}",
        "the worker",
        f"a request given up on, unchanged, with the header `{headers.DEAD_REASON}`",
        "`DEAD_RUNS`",
        "send",
    ),
)

_EVENTS = {name: kind.__name__ for name, kind in EVENT_TYPES.items()}
_COMMANDS = {name: kind.__name__ for name, kind in COMMAND_TYPES.items()}
_RECORDS = {name: kind.__name__ for name, kind in THREAD_RECORD_TYPES.items()}
_CARRIED: dict[str, list[str]] = {
    "requests": ["queuedRequest"],
    "ask": ["askedRequest"],
    "askReply": ["runResult", *_EVENTS.values()],
    "events": list(_EVENTS.values()),
    "result": ["runResult"],
    "commands": list(_COMMANDS.values()),
    "thread": list(_RECORDS.values()),
    "dead": ["deadRequest"],
}


def asyncapi() -> dict[str, Any]:
    """The document, from the worker's point of view: it receives requests and sends events."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Hayrunner",
            "version": "1",
            "description": "Runs of agents over NATS. All payloads are JSON in UTF-8; a request "
            f"has at most {RequestLimits().max_bytes} bytes; what is larger, or too large for the "
            "server, travels by reference. See docs/contract.md.",
        },
        "defaultContentType": "application/json",
        "channels": _channels(),
        "operations": _operations(),
        "components": {"messages": _messages(), "schemas": _schemas()},
    }


def _channels() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for channel in CHANNELS:
        made[channel.name] = {
            "address": channel.address,
            "description": f"Carries {channel.carries}. Published by {channel.publisher}. "
            f"Kept in {channel.kept_in}.".replace("`", ""),
            "messages": _references(channel.name),
            "parameters": {
                name: _PARAMETERS[name] for name in _PARAMETERS if f"{{{name}}}" in channel.address
            },
        }
    made["askReply"] = {
        "address": None,
        "description": "The reply inbox of a direct request: one result, or the events, the last "
        "of which is stream_end.",
        "messages": _references("askReply"),
    }
    return made


def _operations() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for channel in CHANNELS:
        if channel.action is None:
            continue
        name = f"{channel.action}{channel.name.capitalize()}"
        made[name] = {
            "action": channel.action,
            "channel": {"$ref": f"#/channels/{channel.name}"},
            "messages": _channel_messages(channel.name),
        }
        if channel.name == "ask":
            made[name]["reply"] = {
                "channel": {"$ref": "#/channels/askReply"},
                "messages": _channel_messages("askReply"),
            }
    return made


def _references(channel: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in _CARRIED[channel]}


def _channel_messages(channel: str) -> list[dict[str, str]]:
    return [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in _CARRIED[channel]]


def _messages() -> dict[str, Any]:
    request = [examples.REQUESTS["run_request"]]
    queued = {
        headers.MSG_ID: {"type": "string", "description": "The message id"},
        headers.MESSAGE_ID: {
            "type": "string",
            "description": "The message id, in place of the body's",
        },
        headers.RETRY_OF: {
            "type": "string",
            "description": "The message id of the run that was given up on",
        },
        **_TRACE,
        **_BLOB,
    }
    dead = {
        headers.DEAD_REASON: {"type": "string", "description": "The error code"},
        headers.ORIGINAL_SUBJECT: {"type": "string", "description": "Where it was sent"},
        headers.DEAD_SIZE: {"type": "string", "description": "Bytes of the body as it came"},
        headers.MESSAGE_ID: {"type": "string", "description": "The run's"},
    }
    buried = {**dead, **_BLOB}
    record = {
        headers.MSG_ID: {"type": "string", "description": "One per change, for ever"},
        headers.EXPECTED_LAST_SUBJECT_SEQUENCE: {
            "type": "string",
            "description": "The sequence of the last record that the writer has seen",
        },
        headers.THREAD_STATE: {"type": "string", "description": "`ThreadState` as JSON in ASCII"},
    }
    results = list(examples.RESULTS.values())
    made = {
        "queuedRequest": _message("RunRequest", request, queued, [headers.MSG_ID]),
        "askedRequest": _message("RunRequest", request, {**_TRACE, **_BLOB}, []),
        "deadRequest": _message("RunRequest", request, buried, list(dead)),
        "runResult": _message("RunResult", results, _BLOB, []),
    }
    for tag, name in _EVENTS.items():
        made[name] = _message(name, [examples.EVENTS[tag]], _BLOB, [])
    for tag, name in _COMMANDS.items():
        made[name] = _message(name, [examples.COMMANDS[tag]], {}, [])
    for tag, name in _RECORDS.items():
        made[name] = _message(name, [examples.THREAD_RECORDS[tag]], record, list(record))
    return made


def _message(
    schema: str, shown: list[Any], header_fields: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    message: dict[str, Any] = {
        "name": schema,
        "payload": {"$ref": f"#/components/schemas/{schema}"},
        "examples": [{"payload": value} for value in shown],
    }
    if header_fields:
        message["headers"] = {"type": "object", "properties": header_fields, "required": required}
    return message


def _schemas() -> dict[str, Any]:
    return components("#/components/schemas/{name}")
