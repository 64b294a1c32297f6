"""The parts of a worker, wired together once the connection is there."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nats.js.errors import NotFoundError

from hayrunner.serving.admission import Admission
from hayrunner.serving.asks import Asks
from hayrunner.serving.blobs import Blobs
from hayrunner.serving.bus import Bus
from hayrunner.serving.claims import Claims
from hayrunner.serving.dead_letters import DeadLetters
from hayrunner.serving.deliveries import Heartbeat
from hayrunner.serving.endings import Endings
from hayrunner.serving.execution import Execution, PublisherFactory
from hayrunner.serving.handler import Handler
from hayrunner.serving.holdings import Holdings
from hayrunner.serving.intake import Intake
from hayrunner.serving.parking import Parking
from hayrunner.serving.provisioning import (
    DELIVERIES_BEYOND_ATTEMPTS,
    check_provisioned,
    ensure_consumer,
    provision,
)
from hayrunner.serving.served import AgentRegistry
from hayrunner.serving.slots import Slots
from hayrunner.serving.sweeper import Sweeper
from hayrunner.serving.turns import Turns
from hayrunner.settings import Settings
from hayrunner.storage.jetstream import JetStreamThreads
from hayrunner.telemetry.metrics import Metrics
from hayrunner_contracts import subjects
from hayrunner_contracts.codec import RequestLimits

__all__ = ["Parts", "build_parts", "provisioned"]

_REFRESH_MOST_S = 6 * 3600.0
# Deliveries that a parked run's request has left when a copy takes its place.
_DELIVERIES_LEFT = 5
_BIND_TIMEOUT_S = 1.0
# What a server does not answer while it elects a leader it does not answer later: ask again.
_BUCKET_TIMEOUT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the composition root starts, asks and stops."""

    bus: Bus
    slots: Slots
    holdings: Holdings
    heartbeat: Heartbeat
    intake: Intake
    asks: Asks
    sweeper: Sweeper
    parking: Parking


async def provisioned(bus: Bus, settings: Settings, registry: AgentRegistry) -> None:
    """Create what is missing, or only check, as the settings say. `ConfigurationError`."""
    if settings.provision:
        await provision(bus.js, settings, registry.names())
    else:
        await check_provisioned(bus.js, settings, registry.names())


async def build_parts(
    bus: Bus,
    settings: Settings,
    registry: AgentRegistry,
    metrics: Metrics,
    *,
    publisher: PublisherFactory,
) -> Parts:
    """Everything, wired and not yet started."""
    agents = list(registry.names())
    limits = RequestLimits(max_bytes=settings.max_request_bytes)
    blobs = Blobs(bus)
    bucket = await bus.nc.jetstream(timeout=_BUCKET_TIMEOUT_S).key_value(subjects.RUNS_BUCKET)
    claims = Claims(bucket, namespace=settings.namespace, worker=settings.worker_id)
    holdings = Holdings(claims)
    bus.link.when_back(holdings.check_all)
    slots = Slots(settings.concurrency, _limits(registry))
    turns = Turns(bus=bus, bucket=bucket, claims=claims, holdings=holdings, slots=slots)
    registry.bind(threads=JetStreamThreads(bus.nc, bus.namespace, turns=turns.turn))
    heartbeat = Heartbeat(
        settings.ack_wait_s,
        bus.link,
        on_miss=metrics.heartbeat_missed,
        on_overdue=holdings.check_all,
    )
    blobs = Blobs(bus)
    parking = _parking(bus, settings, claims)
    handler = Handler(
        registry=registry,
        admission=_admission(bus, settings, claims, holdings, parking),
        execution=Execution(
            bus=bus,
            claims=claims,
            holdings=holdings,
            metrics=metrics,
            parking=parking,
            endings=Endings(bus=bus, claims=claims, blobs=blobs),
            blobs=blobs,
            park_after_s=settings.park_after_s,
            publisher=publisher,
        ),
        dead_letters=DeadLetters(bus, metrics),
        metrics=metrics,
        blobs=blobs,
        limits=limits,
    )
    intake = Intake(
        nc=bus.nc,
        link=bus.link,
        namespace=settings.namespace,
        agents=agents,
        slots=slots,
        heartbeat=heartbeat,
        handle=handler.handle,
        bind=_binder(bus, settings),
    )
    return Parts(
        bus=bus,
        slots=slots,
        holdings=holdings,
        heartbeat=heartbeat,
        intake=intake,
        asks=Asks(
            bus=bus,
            registry=registry,
            slots=slots,
            holdings=holdings,
            metrics=metrics,
            blobs=blobs,
            limits=limits,
        ),
        sweeper=Sweeper(bus=bus, agents=agents, give_up=handler.give_up_stray),
        parking=parking,
    )


def _limits(registry: AgentRegistry) -> dict[str, int]:
    """By agent, where it has a limit of its own."""
    limits = {name: registry.get(name).max_concurrent_runs for name in registry.names()}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _parking(bus: Bus, settings: Settings, claims: Claims) -> Parking:
    return Parking(
        bus=bus,
        claims=claims,
        # A claim is kept as long as a result: look after it well before it goes by age.
        refresh_s=min(_REFRESH_MOST_S, settings.results_max_age_s / 4),
        deliveries_most=settings.max_attempts + DELIVERIES_BEYOND_ATTEMPTS - _DELIVERIES_LEFT,
    )


def _admission(
    bus: Bus, settings: Settings, claims: Claims, holdings: Holdings, parking: Parking
) -> Admission:
    return Admission(
        bus=bus,
        claims=claims,
        holdings=holdings,
        parking=parking,
        worker=settings.worker_id,
        max_attempts=settings.max_attempts,
        ack_wait_s=settings.ack_wait_s,
    )


def _binder(bus: Bus, settings: Settings) -> Callable[[str], Awaitable[None]]:
    """Makes sure that an agent's consumer is there, or, where this worker may not create any,
    looks whether it is."""
    # A consumer that has just lost its leader does not answer: ask again soon, do not wait.
    js = bus.nc.jetstream(timeout=_BIND_TIMEOUT_S)

    async def bind(agent: str) -> None:
        if not settings.provision:
            name = subjects.consumer_name(settings.namespace, agent)
            await js.consumer_info(subjects.AGENT_REQUESTS, name)
            return
        try:
            await ensure_consumer(js, settings, agent)
        except NotFoundError:
            # The stream itself went away.
            await provision(bus.js, settings, [agent])

    return bind
