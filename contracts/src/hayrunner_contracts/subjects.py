"""Subjects, stream names, bucket names: the only place that spells them.

Every builder checks its tokens first, so that nothing a requester chose can widen a subject
(`*`, `>`, `.`) or break the protocol (white space).
"""

import hashlib
import re
import uuid

from hayrunner_contracts.errors import InvalidRequest

__all__ = [
    "AGENT_REQUESTS",
    "DEAD_RUNS",
    "DEFAULT_NAMESPACE",
    "RUNS_BUCKET",
    "RUN_BLOBS_BUCKET",
    "RUN_COMMANDS",
    "RUN_EVENTS",
    "RUN_RESULTS",
    "THREADS",
    "THREAD_BLOBS_BUCKET",
    "all_agents_requests",
    "all_dead",
    "all_threads",
    "ask",
    "blob_name",
    "blob_parts",
    "claim_key",
    "commands",
    "commands_consumer_name",
    "consumer_name",
    "dead",
    "derived_message_id",
    "events",
    "message_id",
    "parse_requests_subject",
    "requests",
    "result",
    "thread",
    "thread_lock_key",
    "token",
    "worker_holds",
]

DEFAULT_NAMESPACE = "default"

AGENT_REQUESTS = "AGENT_REQUESTS"
RUN_EVENTS = "RUN_EVENTS"
RUN_RESULTS = "RUN_RESULTS"
RUN_COMMANDS = "RUN_COMMANDS"
THREADS = "THREADS"
DEAD_RUNS = "DEAD_RUNS"
RUNS_BUCKET = "RUNS"
RUN_BLOBS_BUCKET = "RUN_BLOBS"
THREAD_BLOBS_BUCKET = "THREAD_BLOBS"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_BLOB_NAME = re.compile(
    r"(?P<namespace>[A-Za-z0-9_-]{1,128})\.(?P<message>[A-Za-z0-9_-]{1,128})"
    r"\.(?P<what>[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64}){0,3})"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
# The server refuses consumer names over 255 bytes; two tokens of 128 and a joint are 257.
_LONGEST_CONSUMER_NAME = 255


def token(name: str, value: str) -> str:
    """`value`, if it may stand in a subject; `InvalidRequest` naming `name` otherwise."""
    if not isinstance(value, str) or _TOKEN.fullmatch(value) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(
            f"{name}: must be 1 to 128 characters of A-Z, a-z, 0-9, _ and -", field=name
        )
    return value


def message_id(value: str) -> str:
    """`value` in canonical form, if it is a UUID; `InvalidRequest` otherwise."""
    token("message_id", value)
    # Not left to uuid.UUID alone: it lets hyphens stand anywhere, and underscores between digits.
    if _UUID.fullmatch(value) is None:
        raise InvalidRequest("message_id: must be a UUID", field="message_id")
    return str(uuid.UUID(value))


def requests(namespace: str, agent: str) -> str:
    """Where durable requests are published; kept in `AGENT_REQUESTS`."""
    return f"agents.{token('namespace', namespace)}.{token('agent', agent)}.requests"


def all_agents_requests(namespace: str) -> str:
    """The requests of every agent of a namespace: a filter, not a subject to publish on."""
    return f"agents.{token('namespace', namespace)}.*.requests"


def parse_requests_subject(subject: str) -> tuple[str, str]:
    """The namespace and agent of a requests subject; `ValueError` if it is none."""
    parts = subject.split(".")
    if len(parts) != 4 or parts[0] != "agents" or parts[3] != "requests":
        raise ValueError(f"not a requests subject: {subject}")
    return parts[1], parts[2]


def ask(namespace: str, agent: str) -> str:
    """Where direct requests go: core request-reply, kept nowhere."""
    return f"agents.{token('namespace', namespace)}.{token('agent', agent)}.ask"


def events(namespace: str, message: str) -> str:
    """The reply subject of one message: every event of its run; kept in `RUN_EVENTS`."""
    return f"runs.{token('namespace', namespace)}.{token('message_id', message)}.events"


def result(namespace: str, message: str) -> str:
    """The one result of a run; kept in `RUN_RESULTS`."""
    return f"runs.{token('namespace', namespace)}.{token('message_id', message)}.result"


def commands(namespace: str, message: str) -> str:
    """Commands to a run; kept in `RUN_COMMANDS`."""
    return f"runs.{token('namespace', namespace)}.{token('message_id', message)}.commands"


def thread(namespace: str, thread_id: str) -> str:
    """A conversation's messages; kept in `THREADS`."""
    return f"threads.{token('namespace', namespace)}.{token('thread_id', thread_id)}"


def all_threads(namespace: str) -> str:
    """Every conversation of a namespace: a filter, not a subject to publish on."""
    return f"threads.{token('namespace', namespace)}.*"


def dead(namespace: str, agent: str) -> str:
    """Requests given up on; kept in `DEAD_RUNS`."""
    return f"dead.{token('namespace', namespace)}.{token('agent', agent)}"


def all_dead(namespace: str) -> str:
    """Every dead letter of a namespace: a filter, not a subject to publish on."""
    return f"dead.{token('namespace', namespace)}.*"


def worker_holds(worker_id: str) -> str:
    """Where one worker answers which runs it holds: core request-reply."""
    return f"workers.{token('worker_id', worker_id)}.holds"


def claim_key(namespace: str, message: str) -> str:
    """The key of a run's claim in the `RUNS` bucket."""
    return f"{token('namespace', namespace)}.{token('message_id', message)}"


def thread_lock_key(namespace: str, thread_id: str) -> str:
    """The key in the `RUNS` bucket that says which run has the thread. Three tokens, so that it
    can be no claim's."""
    return f"{token('namespace', namespace)}.thread.{token('thread_id', thread_id)}"


def blob_name(namespace: str, message: str, what: str) -> str:
    """The name of an object in `RUN_BLOBS`. `what` is one to four tokens of at most 64
    characters, joined by dots."""
    name = f"{token('namespace', namespace)}.{token('message_id', message)}.{what}"
    blob_parts(name)
    return name


def blob_parts(name: str) -> tuple[str, str, str]:
    """The namespace, message id and content that the name of an object tells; `InvalidRequest`
    where it is none."""
    found = _BLOB_NAME.fullmatch(name)
    if found is None:
        raise InvalidRequest("not the name of an object of a run")
    return found["namespace"], found["message"], found["what"]


def consumer_name(namespace: str, agent: str) -> str:
    """The durable consumer of an agent's requests. `~` cannot occur in a token."""
    name = f"{token('namespace', namespace)}~{token('agent', agent)}"
    if len(name) <= _LONGEST_CONSUMER_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: _LONGEST_CONSUMER_NAME - 65]}~{digest}"


def commands_consumer_name(namespace: str) -> str:
    """The durable consumer of a namespace's commands, on `RUN_COMMANDS`: it wakes parked runs."""
    return token("namespace", namespace)


def derived_message_id(stream: str, sequence: int) -> str:
    """The id of a durable request that came without one: the same at every redelivery."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"hayrunner:{stream}:{sequence}"))
