"""Streams, consumers and the bucket: created, updated, or refused where data would be lost.

Idempotent. What would lose data is looked for first, in all of them: where anything is refused,
nothing is changed. The names and what is kept in each are in docs/contract.md; the limits come
from settings. Consumers are made for the agents of this worker only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from hayrunner.errors import ConfigurationError, LossRefused
from hayrunner.serving.availability import when_available
from hayrunner.serving.losses import changes_of, losses_of
from hayrunner.settings import Settings
from hayrunner.telemetry.logs import get_logger
from hayrunner_contracts import subjects

__all__ = [
    "DELIVERIES_BEYOND_ATTEMPTS",
    "blob_configs",
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
# Names of agents that nobody serves are a requester's to choose: all together need a bound, too.
_DEAD_LETTERS_OVER_ALL = 10
# Deliveries that are no attempt: handed back by a graceful shutdown, or put back because the
# holder turned out to be alive. Counting attempts is the claim's work; this is the last resort
# against a request that kills every worker before it can claim.
DELIVERIES_BEYOND_ATTEMPTS = 20
# The server's default of 1,000 would cap the runs of the whole fleet. Never less than a queue
# may hold: requests that are put back with a delay count, too, and must not block the others.
_MAX_ACK_PENDING = 20_000
# JSClusterNoPeersErrF, JSStreamReplicasNotSupportedErr
_TOO_FEW_SERVERS = (10005, 10074)

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
            # One tenant's backlog must not refuse the others' requests.
            max_msgs_per_subject=settings.max_queue,
            discard_new_per_subject=True,
            max_msgs=settings.max_queue_total,
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
        stream(
            subjects.DEAD_RUNS,
            "dead.*.*",
            # The oldest goes: a store that refused new ones would keep their requests on the queue.
            max_msgs_per_subject=settings.max_dead_letters,
            max_msgs=settings.max_dead_letters * _DEAD_LETTERS_OVER_ALL,
        ),
    ]


def blob_configs(settings: Settings) -> list[StreamConfig]:
    """The streams under the object stores: what is too large for a message of a run, and of a
    thread, kept as long as results and as threads."""
    return [
        _blob_config(settings, subjects.RUN_BLOBS_BUCKET, settings.results_max_age_s),
        _blob_config(settings, subjects.THREAD_BLOBS_BUCKET, settings.threads_max_age_s),
    ]


def _blob_config(settings: Settings, bucket: str, max_age_s: float) -> StreamConfig:
    """As every NATS client makes one."""
    return StreamConfig(
        name=f"OBJ_{bucket}",
        subjects=[f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType(settings.storage),
        num_replicas=settings.replicas,
        max_age=max_age_s,
        duplicate_window=min(_DUPLICATE_WINDOW_S, max_age_s or _DUPLICATE_WINDOW_S),
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )


def _bucket_config(settings: Settings) -> StreamConfig:
    """The bucket of claims, which is a stream with the settings of a key-value bucket."""
    return StreamConfig(
        name=_RUNS_STREAM,
        subjects=[f"$KV.{subjects.RUNS_BUCKET}.>"],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType(settings.storage),
        num_replicas=settings.replicas,
        max_age=settings.results_max_age_s,
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        duplicate_window=min(_DUPLICATE_WINDOW_S, settings.results_max_age_s),
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        deny_delete=True,
        # Direct reads may come from a replica that is behind; a claim must not.
        allow_direct=False,
    )


def _all_configs(settings: Settings) -> list[StreamConfig]:
    return [*stream_configs(settings), *blob_configs(settings), _bucket_config(settings)]


def consumer_config(settings: Settings, agent: str) -> ConsumerConfig:
    """The durable pull consumer of one agent's requests."""
    return ConsumerConfig(
        durable_name=subjects.consumer_name(settings.namespace, agent),
        filter_subject=subjects.requests(settings.namespace, agent),
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=settings.ack_wait_s,
        max_deliver=settings.max_attempts + DELIVERIES_BEYOND_ATTEMPTS,
        max_ack_pending=max(_MAX_ACK_PENDING, settings.max_queue),
    )


async def provision(js: JetStreamContext, settings: Settings, agents: Iterable[str]) -> None:
    """Make everything be as the settings say.

    `LossRefused` where that would lose data; nothing is changed then. `ConfigurationError` where
    the server refuses, or has no leader for longer than a cluster takes to elect one.
    """
    agents = list(agents)

    async def once() -> None:
        plans = [await _plan(js, config) for config in _all_configs(settings)]
        losses = [loss for plan in plans for loss in plan.losses]
        if losses:
            raise LossRefused(losses)
        for plan in plans:
            await _carry_out(js, plan)
        await _ensure_commands_consumer(js, settings)
        for agent in agents:
            await ensure_consumer(js, settings, agent)

    await when_available(once)


async def check_provisioned(
    js: JetStreamContext, settings: Settings, agents: Iterable[str]
) -> None:
    """`ConfigurationError` naming the first thing that is not there."""
    for name in (str(config.name) for config in _all_configs(settings)):
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
        except ServiceUnavailableError:
            raise
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
    except ServiceUnavailableError:
        raise
    except APIError as error:
        raise ConfigurationError(
            f"the consumer of agent {agent} cannot be made as configured: {error.description}"
        ) from error
    _log.info("consumer made" if current is None else "consumer updated", agent=agent)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What has to be done to one stream. `current` is None where it is not there."""

    wanted: StreamConfig
    current: StreamInfo | None
    changes: dict[str, Any]
    losses: list[str]


async def _plan(js: JetStreamContext, wanted: StreamConfig) -> _Plan:
    try:
        current = await js.stream_info(str(wanted.name))
    except NotFoundError:
        return _Plan(wanted=wanted, current=None, changes={}, losses=[])
    changes = changes_of(current.config, wanted)
    losses = await losses_of(js, current, wanted, changes) if changes else []
    return _Plan(wanted=wanted, current=current, changes=changes, losses=losses)


async def _carry_out(js: JetStreamContext, plan: _Plan) -> None:
    name = str(plan.wanted.name)
    try:
        if plan.current is None:
            await js.add_stream(plan.wanted)
            _log.info("stream made", stream=name)
        elif plan.changes:
            await js.update_stream(plan.current.config.evolve(**plan.changes))
            _log.info("stream updated", stream=name, changed=sorted(plan.changes))
    except ServiceUnavailableError:
        raise
    except APIError as error:
        raise ConfigurationError(_refusal(plan.wanted, error)) from error


def _refusal(wanted: StreamConfig, error: APIError) -> str:
    if error.err_code in _TOO_FEW_SERVERS:
        return (
            f"stream {wanted.name} cannot have {wanted.num_replicas} copies: that takes a cluster "
            f"of as many servers with JetStream ({error.description}); start them, or set "
            "HAYRUNNER_REPLICAS"
        )
    return f"stream {wanted.name} cannot be made as configured: {error.description}"
