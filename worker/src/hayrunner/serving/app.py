"""The composition root: from settings to a running worker, and back.

`serve` is `startup`, `main_loop`, `shutdown`. FastStream owns the connection, direct requests,
dependency injection and the HTTP routes; durable requests are pulled by `Intake`.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from faststream.asgi import AsgiFastStream
from nats.aio.client import Client
from nats.errors import Error as NatsError

from hayrunner.errors import HayrunnerError
from hayrunner.serving.bus import Bus
from hayrunner.serving.connection import Link, abort_transport, make_broker, shown_servers
from hayrunner.serving.execution import PublisherFactory
from hayrunner.serving.health import health_routes
from hayrunner.serving.http_server import HttpServer
from hayrunner.serving.parts import Parts, build_parts, provisioned
from hayrunner.serving.remote_agents import BusAgents
from hayrunner.serving.run_events import RunPublisher
from hayrunner.serving.served import AgentRegistry, CallsRemoteAgents
from hayrunner.serving.subscribers import add_subscribers
from hayrunner.settings import Settings
from hayrunner.telemetry.logs import cause_of, get_logger
from hayrunner.telemetry.metrics import Metrics

__all__ = ["ConnectionLost", "Worker"]

_log = get_logger(__name__)

_BORDER_LIMIT_S = 5.0
_CUT_LIMIT_S = 12.0
_FORCED_LIMIT_S = 2.0
_CLOSE_LIMIT_S = 6.0
_SIDE_TASKS_LIMIT_S = 3.0


class ConnectionLost(HayrunnerError):
    """The connection to NATS was closed for good: start the worker again."""


class Worker:
    """Serves the agents of a registry.

    `await worker.serve()` runs until `stop()` was called, twice to end without waiting for
    running runs. `async with Worker(...)` is the same around a block, for tests and embedding.
    """

    def __init__(
        self,
        settings: Settings,
        registry: AgentRegistry,
        *,
        publisher: PublisherFactory = RunPublisher,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.metrics = Metrics(registry.names())
        self._publisher = publisher
        self._link = Link()
        self._broker = make_broker(settings, self._link)
        routes = health_routes(problems=self.problems, metrics=self.metrics)
        self._app = AsgiFastStream(
            self._broker,
            asgi_routes=routes,
            logger=None,
            on_startup=[self._before_broker],
            after_startup=[self._after_broker],
        )
        self._subscribers = add_subscribers(self._broker, settings, registry.names())
        self._parts: Parts | None = None
        self._http: HttpServer | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._draining = False

    # --- what others may know

    @property
    def connection(self) -> Client:
        """The connection to NATS; `RuntimeError` while there is none."""
        if self._parts is None:
            raise RuntimeError("the worker was not started")
        return self._parts.bus.nc

    @property
    def http_url(self) -> str | None:
        """Where health and metrics are, None where they are not served."""
        if self._http is None:
            return None
        host = self.settings.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "") else f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self._http.port}"

    @property
    def running(self) -> int:
        """How many runs are going on here."""
        return 0 if self._parts is None else self._parts.slots.running

    def problems(self) -> list[str]:
        """Why the worker is not ready; empty where it is."""
        found: list[str] = []
        if self._draining or self._stop.is_set():
            found.append("shutting down")
        if self._parts is None or not self._link.up:
            found.append("not connected to NATS")
        elif not self._parts.intake.ready and not found:
            found.append("not every agent's requests can be pulled")
        return found

    # --- the life of a worker

    def stop(self) -> None:
        """Drain and end; called again, end at once. Safe in a signal handler of the loop."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    async def serve(self) -> None:
        """Start, work, end. `ConfigurationError` where it cannot start, `ConnectionLost` where
        it cannot go on."""
        try:
            if await self._unless_stopped(self.startup()):
                await self.main_loop()
        finally:
            await self.shutdown()
        if self._link.lost.is_set() and not self._stop.is_set():
            raise ConnectionLost("the connection to NATS was closed for good")

    async def startup(self) -> None:
        """Connect, provision, warm the agents up, and begin to take requests."""
        if self.settings.port >= 0:
            self._http = HttpServer(self._app, host=self.settings.host, port=self.settings.port)
            self._spawn(self._http.run(), "http")
        await self._app.start()
        _log.info(
            "worker ready",
            agents=list(self.registry.names()),
            namespace=self.settings.namespace,
            worker=self.settings.worker_id,
            http=self.http_url,
        )
        agents = len(self.registry.names())
        if agents > self.settings.concurrency:
            _log.warning(
                "fewer slots than agents: idle agents take turns",
                agents=agents,
                concurrency=self.settings.concurrency,
            )

    async def main_loop(self) -> None:
        """Until `stop`, or until the connection is gone for good."""
        await self._first_of(self._stop, self._link.lost)

    async def shutdown(self) -> None:
        """Take no more, let runs go on up to `drain_timeout_s`, hand the rest back, close."""
        self._draining = True
        if self._parts is not None:
            await self._drain(self._parts)
        self._link.expect_close()
        await self._end_side_tasks()
        await self._close_connection()
        if self._http is not None:
            # Last: until here somebody may ask whether the worker is alive.
            self._http.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SIDE_TASKS_LIMIT_S)
        for name in self.registry.names():
            with contextlib.suppress(Exception):  # an agent's own closing must not stop ours
                await self.registry.get(name).close()
        _log.info("worker ended", worker=self.settings.worker_id)

    async def __aenter__(self) -> Self:
        try:
            await self.startup()
        except BaseException:
            await self.shutdown()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        await self.shutdown()

    # --- steps

    async def _before_broker(self) -> None:
        """FastStream calls this before it starts its subscribers, which need the parts."""
        _log.info("connecting to NATS", servers=shown_servers(self.settings))
        nc = await self._broker.connect()
        self._link.bind(nc)
        self._spawn(self._link.watch(), "watch connection")
        bus = Bus(
            nc=nc,
            js=nc.jetstream(),
            link=self._link,
            namespace=self.settings.namespace,
            max_blob_bytes=self.settings.max_blob_bytes,
        )
        await provisioned(bus, self.settings, self.registry)
        self._parts = await build_parts(
            bus, self.settings, self.registry, self.metrics, publisher=self._publisher
        )
        if isinstance(self.registry, CallsRemoteAgents):
            depth = self.settings.subagent_depth
            self.registry.use_remote_agents(BusAgents(bus), max_depth=depth)
        self._app.context.set_global("asks", self._parts.asks)
        self._app.context.set_global("holdings", self._parts.holdings)
        names = self.registry.names()
        await asyncio.gather(*(self.registry.get(name).warm_up() for name in names))

    async def _after_broker(self) -> None:
        """Subscribers are there: make sure that the server knows, then take requests."""
        assert self._parts is not None
        # Twice: the client's PING overtakes what it has buffered, and the second cannot.
        await self._parts.bus.nc.flush()
        await self._parts.bus.nc.flush()
        self._spawn(self._parts.heartbeat.run(), "heartbeat")
        self._spawn(self._parts.sweeper.run(), "sweeper")
        self._spawn(self._parts.parking.run(), "parked runs")
        await self._parts.intake.start()

    async def _drain(self, parts: Parts) -> None:
        parts.asks.draining = True
        with contextlib.suppress(NatsError):
            if self._link.up:
                for subscriber in self._subscribers.asks:
                    await subscriber.stop()
        await parts.intake.stop_pulling()
        running = parts.intake.running | parts.asks.running
        if running:
            _log.info("waiting for runs to end", runs=len(running))
            await self._first_done(running, self.settings.drain_timeout_s)
        left = {task for task in running if not task.done()}
        if left and not self._force.is_set() and (runs := parts.holdings.leave_at_border()):
            _log.info("waiting for the tools of runs to end", runs=runs)
            # Their tools may end yet: what was run here need not be run again elsewhere.
            await self._first_done(left, _BORDER_LIMIT_S)
            left = {task for task in left if not task.done()}
        if left:
            _log.warning("handing runs back", runs=len(left))
            for task in left:
                task.cancel()
            limit = _FORCED_LIMIT_S if self._force.is_set() else _CUT_LIMIT_S
            await self._first_done(left, limit)

    async def _end_side_tasks(self) -> None:
        """Before the connection goes: one may be in the middle of ending a request."""
        side = {task for task in self._tasks if task.get_name() != "http"}
        for task in side:
            task.cancel()
        if side:
            await asyncio.wait(side, timeout=_SIDE_TASKS_LIMIT_S)

    async def _first_done(self, tasks: set["asyncio.Task[None]"], limit_s: float) -> None:
        """Until all tasks are done, the time is over, or somebody wants to go at once."""
        all_done = asyncio.ensure_future(asyncio.wait(tasks, timeout=limit_s))
        force = asyncio.ensure_future(self._force.wait())
        lost = asyncio.ensure_future(self._link.lost.wait())
        try:
            await asyncio.wait({all_done, force, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (all_done, force, lost):
                waiting.cancel()

    async def _close_connection(self) -> None:
        """NATS may be away, or stalled: neither may hold the process up."""
        try:
            await asyncio.wait_for(self._app.stop(), _CLOSE_LIMIT_S)
        except (NatsError, TimeoutError, AssertionError) as error:
            _log.info("the connection was not drained", **cause_of(error))
        if self._parts is None or self._parts.bus.nc.is_closed:
            return
        try:
            await asyncio.wait_for(self._parts.bus.nc.close(), _FORCED_LIMIT_S)
        except (NatsError, OSError, TimeoutError):
            abort_transport(self._parts.bus.nc)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work was done before `stop`; a start that waits for NATS can be ended."""
        task = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_FORCED_LIMIT_S)
            return False
        task.result()
        return True

    async def _first_of(self, *events: asyncio.Event) -> None:
        waits = {asyncio.ensure_future(event.wait()) for event in events}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))
