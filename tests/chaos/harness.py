"""One chaos run from a plan to a verdict."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from tests.chaos.breakage import Breakage
from tests.chaos.checker import Violation, check
from tests.chaos.evidence import Evidence, collect, keep
from tests.chaos.faults import Faults
from tests.chaos.fleet import Fleet, ProviderProcess
from tests.chaos.journal import Journal
from tests.chaos.load import Load
from tests.chaos.plan import Plan, write_plan
from tests.chaos.sites import ClusterSite, OneServer, Site

from hayrunner_contracts import subjects
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.reading import ReadSettings

__all__ = ["Verdict", "play"]

Tell = Callable[[str], None]

_CLIENTS = 4
_PATIENCE_S = 45.0
_QUIET_S = 20.0
_CLUSTER_QUIET_S = 60.0
_TELL_S = 30.0
# Small, so that a consumer that is slow has to read from the stream.
_SLOW_BUFFER = 16


class Verdict(msgspec.Struct, kw_only=True):
    """What became of a plan. `folder` holds everything where something is wrong."""

    evidence: Evidence
    violations: list[Violation]
    folder: Path

    @property
    def rules(self) -> set[str]:
        """The rules that do not hold."""
        return {one.rule for one in self.violations}


async def play(
    plan: Plan,
    *,
    broken: Breakage | None = None,
    folder: Path | None = None,
    patience_s: float = _PATIENCE_S,
    tell: Tell | None = None,
) -> Verdict:
    """Carry the plan out and check it. The folder is removed where all is well, unless it was
    given. `tell` is told how far it is, now and then."""
    given = folder is not None
    folder = folder or Path(tempfile.mkdtemp(prefix=f"hayrunner-chaos-{plan.seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(plan, folder / "plan.json")
    evidence = await _carry_out(plan, folder, broken, patience_s, tell)
    violations = check(evidence)
    keep(evidence, folder)
    if violations:
        (folder / "violations.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(violations))
        )
    elif not given:
        shutil.rmtree(folder, ignore_errors=True)
    return Verdict(evidence=evidence, violations=violations, folder=folder)


async def _carry_out(
    plan: Plan, folder: Path, broken: Breakage | None, patience_s: float, tell: Tell | None
) -> Evidence:
    async with AsyncExitStack() as stack:
        store = folder / "nats"
        store.mkdir(exist_ok=True)
        made = OneServer(store) if plan.servers == 1 else ClusterSite(store)
        site: Site = await stack.enter_async_context(made)
        provider = ProviderProcess(folder)
        stack.push_async_callback(provider.stop)
        await provider.start()
        fleet = Fleet(
            folder,
            places=plan.workers,
            nats=",".join(site.urls),
            provider=provider.url,
            broken=broken,
            replicas=site.replicas,
        )
        stack.push_async_callback(fleet.stop)
        await fleet.start()
        load = await _make_load(plan, folder, site.urls, stack, patience_s)
        faults = Faults(plan, fleet, site, Journal(folder / "faults.jsonl"))
        began = asyncio.get_running_loop().time()
        telling = asyncio.create_task(_tell(tell, load, faults, began))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(faults.run(began))
            tasks.create_task(load.run(began))
        telling.cancel()
        nc = await stack.enter_async_context(_connection(site.urls))
        await _quiet(nc, _QUIET_S if plan.servers == 1 else _CLUSTER_QUIET_S)
        await fleet.stop()
        await site.settle()
        evidence = await collect(
            nc,
            folder,
            plan,
            accepted=load.accepted,
            seen=load.seen,
            exit_codes=fleet.exit_codes,
        )
    shutil.rmtree(store, ignore_errors=True)
    return evidence


async def _tell(tell: Tell | None, load: Load, faults: Faults, began: float) -> None:
    while tell is not None:
        await asyncio.sleep(_TELL_S)
        passed = asyncio.get_running_loop().time() - began
        tell(
            f"{passed:5.0f} s: {len(load.accepted)} runs accepted, {len(load.finished)} ended, "
            f"{faults.begun} of {len(load.plan.faults)} faults"
        )


async def _make_load(
    plan: Plan, folder: Path, urls: list[str], stack: AsyncExitStack, patience_s: float
) -> Load:
    clients = [
        await stack.enter_async_context(await RunClient.connect(urls)) for _ in range(_CLIENTS)
    ]

    async def connect() -> RunClient:
        settings = ReadSettings(buffer_events=_SLOW_BUFFER)
        return await RunClient.connect(urls, settings=settings)

    return Load(
        plan=plan,
        clients=clients,
        connect=connect,
        journal=Journal(folder / "load.jsonl"),
        patience_s=patience_s,
    )


@asynccontextmanager
async def _connection(urls: list[str]) -> AsyncGenerator[Client]:
    async def say_nothing(_: Exception) -> None:
        return

    nc = await nats.connect(urls, max_reconnect_attempts=-1, error_cb=say_nothing)
    try:
        yield nc
    finally:
        await nc.close()


async def _quiet(nc: Client, limit_s: float) -> None:
    """Wait until the queue is empty; the checker says so where it never is."""
    js = nc.jetstream()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while True:
                with contextlib.suppress(NatsError):
                    info = await js.stream_info(subjects.AGENT_REQUESTS)
                    if info.state.messages == 0:
                        return
                await asyncio.sleep(0.1)
