"""Streams, consumers and the bucket: created, updated, or refused where data would be lost.

Idempotent. The names and what is kept in each are in docs/contract.md; the limits come from
settings. Consumers are made for the agents of this worker only.
"""

import time
from collections.abc import Iterable
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, NotFoundError

from hayrunner.errors import ConfigurationError
from hayrunner.settings import Settings
from hayrunner.telemetry.logs import get_logger
from hayrunner_contracts import subjects

__all__ = [
    "DELIVERIES_BEYOND_ATTEMPTS",
    "check_provisioned",
    "consumer_config",
    "ensure_consumer",
    "provision",
    "stream_configs",
]

_log = get_logger(__name__)

_DUPLICATE_WINDOW_S = 120.0
_MAX_EVENTS_OF_A_RUN = 200_000
_MAX_COMMANDS_OF_A_RUN = 1_000
# Deliveries that are no attempt: handed back by a graceful shutdown, or put back because the
# holder turned out to be alive. Counting attempts is the claim's work; this is the last resort
# against a request that kills every worker before it can claim.
DELIVERIES_BEYOND_ATTEMPTS = 20
# The server's default of 1,000 would cap the runs of the whole fleet.
_MAX_ACK_PENDING = 20_000

_RUNS_STREAM = f"KV_{subjects.RUNS_BUCKET}"


def stream_configs(settings: Settings) -> list[StreamConfig]:
    """Every stream, with the limits of these settings."""

    def stream(name: str, subject: str, **more: Any) -> StreamConfig:
        age = more.get("max_age") or _DUPLICATE_WINDOW_S
        config = StreamConfig(
            name=name,
            subjects=[subject],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType(settings.storage),
            num_replicas=settings.replicas,
            allow_direct=True,
            duplicate_window=min(_DUPLICATE_WINDOW_S, age),
        )
        return config.evolve(**more)

    return [
        stream(
            subjects.AGENT_REQUESTS,
            "agents.*.*.requests",
            retention=RetentionPolicy.WORK_QUEUE,
            max_msgs=settings.max_queue,
            discard=DiscardPolicy.NEW,
        ),
        stream(
            subjects.RUN_EVENTS,
            "runs.*.*.events",
            max_age=settings.events_max_age_s,
            max_msgs_per_subject=_MAX_EVENTS_OF_A_RUN,
        ),
        stream(
            subjects.RUN_RESULTS,
            "runs.*.*.result",
            max_age=settings.results_max_age_s,
            max_msgs_per_subject=1,
        ),
        stream(
            subjects.RUN_COMMANDS,
            "runs.*.*.commands",
            max_age=settings.results_max_age_s,
            max_msgs_per_subject=_MAX_COMMANDS_OF_A_RUN,
        ),
        stream(
            subjects.THREADS,
            "threads.*.*",
            max_age=settings.threads_max_age_s,
            max_bytes=settings.threads_max_bytes or -1,
        ),
        stream(subjects.DEAD_RUNS, "dead.*.*"),
    ]


def consumer_config(settings: Settings, agent: str) -> ConsumerConfig:
    """The durable pull consumer of one agent's requests."""
    return ConsumerConfig(
        durable_name=subjects.consumer_name(settings.namespace, agent),
        filter_subject=subjects.requests(settings.namespace, agent),
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=settings.ack_wait_s,
        max_deliver=settings.max_attempts + DELIVERIES_BEYOND_ATTEMPTS,
        max_ack_pending=_MAX_ACK_PENDING,
    )


async def provision(js: JetStreamContext, settings: Settings, agents: Iterable[str]) -> None:
    """Make everything be as the settings say. `ConfigurationError` where that would lose data
    or the server refuses."""
    for config in stream_configs(settings):
        await _ensure_stream(js, config)
    await _ensure_bucket(js, settings)
    await _ensure_commands_consumer(js, settings)
    for agent in agents:
        await ensure_consumer(js, settings, agent)


async def check_provisioned(
    js: JetStreamContext, settings: Settings, agents: Iterable[str]
) -> None:
    """`ConfigurationError` naming the first thing that is not there."""
    for name in [*(str(config.name) for config in stream_configs(settings)), _RUNS_STREAM]:
        try:
            await js.stream_info(name)
        except NotFoundError:
            raise ConfigurationError(f"stream {name} is missing: run `hayrunner init`") from None
    name = subjects.commands_consumer_name(settings.namespace)
    try:
        await js.consumer_info(subjects.RUN_COMMANDS, name)
    except NotFoundError:
        raise ConfigurationError(
            f"the namespace {settings.namespace} has no consumer of its commands: "
            "run `hayrunner init`"
        ) from None
    for agent in agents:
        name = subjects.consumer_name(settings.namespace, agent)
        try:
            await js.consumer_info(subjects.AGENT_REQUESTS, name)
        except NotFoundError:
            raise ConfigurationError(
                f"agent {agent} has no consumer: run `hayrunner init`"
            ) from None


async def _ensure_commands_consumer(js: JetStreamContext, settings: Settings) -> None:
    """The consumer through which commands wake parked runs, whichever worker reads them."""
    name = subjects.commands_consumer_name(settings.namespace)
    wanted = ConsumerConfig(
        durable_name=name,
        filter_subject=f"runs.{settings.namespace}.*.commands",
        # What was sent before there was a worker cannot be for a parked run.
        deliver_policy=DeliverPolicy.NEW,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=settings.ack_wait_s,
        max_ack_pending=_MAX_ACK_PENDING,
    )
    try:
        await js.consumer_info(subjects.RUN_COMMANDS, name)
    except NotFoundError:
        try:
            await js.add_consumer(subjects.RUN_COMMANDS, wanted)
        except APIError as error:
            raise ConfigurationError(
                f"the consumer of the commands cannot be made: {error.description}"
            ) from error


async def ensure_consumer(js: JetStreamContext, settings: Settings, agent: str) -> None:
    """The agent's consumer, created, or updated explicitly where it differs: binding to an
    existing durable with another configuration says nothing and changes nothing."""
    wanted = consumer_config(settings, agent)
    name = str(wanted.durable_name)
    try:
        current = (await js.consumer_info(subjects.AGENT_REQUESTS, name)).config
    except NotFoundError:
        current = None
    if current is not None and all(
        getattr(current, field) == getattr(wanted, field)
        for field in ("filter_subject", "ack_wait", "max_deliver", "max_ack_pending")
    ):
        return
    try:
        await js.add_consumer(subjects.AGENT_REQUESTS, wanted)
    except APIError as error:
        raise ConfigurationError(
            f"the consumer of agent {agent} cannot be made as configured: {error.description}"
        ) from error
    _log.info("consumer made" if current is None else "consumer updated", agent=agent)


async def _ensure_stream(js: JetStreamContext, wanted: StreamConfig) -> None:
    name = str(wanted.name)
    try:
        info = await js.stream_info(name)
    except NotFoundError:
        info = None
    try:
        if info is None:
            await js.add_stream(wanted)
            _log.info("stream made", stream=name)
            return
        changes = _changes(info.config, wanted)
        if not changes:
            return
        await _refuse_loss(js, info, wanted, changes)
        await js.update_stream(info.config.evolve(**changes))
        _log.info("stream updated", stream=name, changed=sorted(changes))
    except APIError as error:
        raise ConfigurationError(
            f"stream {name} cannot be made as configured: {error.description}"
        ) from error


async def _ensure_bucket(js: JetStreamContext, settings: Settings) -> None:
    wanted = StreamConfig(
        name=_RUNS_STREAM,
        storage=StorageType(settings.storage),
        num_replicas=settings.replicas,
        max_age=settings.results_max_age_s,
        allow_direct=False,
    )
    try:
        info = await js.stream_info(_RUNS_STREAM)
    except NotFoundError:
        await js.create_key_value(
            KeyValueConfig(
                bucket=subjects.RUNS_BUCKET,
                history=1,
                ttl=settings.results_max_age_s,
                storage=StorageType(settings.storage),
                replicas=settings.replicas,
                # Direct reads may come from a replica that is behind; a claim must not.
                direct=False,
            )
        )
        _log.info("bucket made", bucket=subjects.RUNS_BUCKET)
        return
    fields = ("storage", "num_replicas", "max_age", "allow_direct")
    changes = {
        field: getattr(wanted, field)
        for field in fields
        if getattr(info.config, field) != getattr(wanted, field)
    }
    if changes:
        await _refuse_loss(js, info, wanted, changes)
        await js.update_stream(info.config.evolve(**changes))
        _log.info("bucket updated", bucket=subjects.RUNS_BUCKET, changed=sorted(changes))


_COMPARED = (
    "subjects",
    "retention",
    "storage",
    "num_replicas",
    "max_msgs",
    "max_bytes",
    "discard",
    "max_age",
    "max_msgs_per_subject",
    "allow_direct",
    "duplicate_window",
)
_FIXED = ("retention", "storage")


def _changes(current: StreamConfig, wanted: StreamConfig) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for field in _COMPARED:
        value = getattr(wanted, field)
        if field in ("max_msgs", "max_bytes") and value is None:
            value = -1
        if field == "max_age" and value is None:
            value = 0.0
        if getattr(current, field) != value:
            changes[field] = value
    return changes


async def _refuse_loss(
    js: JetStreamContext, info: StreamInfo, wanted: StreamConfig, changes: dict[str, Any]
) -> None:
    """Raise where the change would throw away what the stream holds, or cannot be made."""
    name = info.config.name
    for field in _FIXED:
        if field in changes:
            raise ConfigurationError(
                f"stream {name} has {field} {getattr(info.config, field)} and should have "
                f"{getattr(wanted, field).value}: that cannot be changed without losing what it "
                "holds; remove the stream first, or keep the setting"
            )
    if "subjects" in changes and not set(info.config.subjects or ()) <= set(wanted.subjects or ()):
        raise ConfigurationError(
            f"stream {name} takes the subjects {', '.join(info.config.subjects or ())} and should "
            f"take {', '.join(wanted.subjects or ())}: messages of the others would be lost"
        )
    limit = changes.get("max_msgs")
    if limit is not None and 0 < limit < info.state.messages:
        raise ConfigurationError(
            f"stream {name} holds {info.state.messages} messages: a limit of {limit} loses some"
        )
    size = changes.get("max_bytes")
    if size is not None and 0 < size < info.state.bytes:
        raise ConfigurationError(
            f"stream {name} holds {info.state.bytes} bytes: a limit of {size} loses some"
        )
    age = changes.get("max_age")
    if age and info.state.messages and await _oldest_age_s(js, info) > age:
        raise ConfigurationError(
            f"stream {name} holds messages older than {age:g} s: that limit loses them"
        )


async def _oldest_age_s(js: JetStreamContext, info: StreamInfo) -> float:
    try:
        oldest = await js.get_msg(str(info.config.name), seq=info.state.first_seq)
    except NotFoundError:
        return 0.0
    return 0.0 if oldest.time is None else time.time() - oldest.time.timestamp()
