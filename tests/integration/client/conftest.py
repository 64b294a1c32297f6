"""A real nats-server with the streams of the contract, a scripted worker, and clients."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.js.api import (
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StreamConfig,
    SubjectTransform,
)
from tests.integration.client.wire_cutter import WireCutter

from hayrunner_contracts.client import ReadSettings, RunClient
from hayrunner_contracts.codec import decode_request, encode
from hayrunner_contracts.events import MessageEnd, MessageStart, StreamEnd, StreamEvent, TextChunk
from hayrunner_contracts.replay import StoredSubject
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.subjects import (
    AGENT_REQUESTS,
    RUN_BLOBS_BUCKET,
    RUN_COMMANDS,
    RUN_EVENTS,
    RUN_RESULTS,
    ask,
    consumer_name,
    events,
    requests,
    result,
)
from hayrunner_contracts.testing import eventually


class NatsServer:
    """A nats-server of its own, which can be stopped and started again with what it stored."""

    def __init__(self, folder: Path, *, jetstream: bool = True, config: str = "") -> None:
        self._folder = folder
        self._jetstream = jetstream
        self._config = folder / "server.conf"
        self._config.write_text(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = -1
        self._monitor = ""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        self._launch()
        await eventually(self._listens, what="nats-server listening")

    def _launch(self) -> None:
        binary = Path(sys.executable).parent / "nats-server"
        command = [str(binary), "-c", str(self._config), "-a", "127.0.0.1", "-p", str(self._port)]
        command += ["-m", "-1", "--ports_file_dir", str(self._folder)]
        if self._jetstream:
            command += ["-js", "-sd", str(self._folder / "store")]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "nats-server ended"
        for ports in self._folder.glob(f"*_{self._process.pid}.ports"):
            if text := ports.read_text():
                urls = json.loads(text)
                self._port = int(urls["nats"][0].rsplit(":", 1)[1])
                self._monitor = urls["monitoring"][0]
                return True
        return False

    async def subscribers(self, subject: str) -> int:
        """How many clients listen to a subject, streams aside."""
        url = f"{self._monitor}/connz?subs=1"
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
        connections = json.loads(answer)["connections"]
        return sum(
            subject in connection.get("subscriptions_list", []) for connection in connections
        )

    async def connections(self) -> int:
        """How many clients are connected."""
        url = f"{self._monitor}/connz"
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
        return int(json.loads(answer)["num_connections"])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class ScriptedWorker:
    """Publishes what a test says, as a worker would. Not the worker: it decides nothing."""

    def __init__(self, connection: Connection, namespace: str = "default") -> None:
        self.connection = connection
        self.jetstream = connection.jetstream()
        self.namespace = namespace

    async def create_streams(self, **requests_limits: Any) -> None:
        await self.create_events_stream()
        await self.jetstream.create_object_store(RUN_BLOBS_BUCKET)
        await self.jetstream.add_stream(
            StreamConfig(name=RUN_COMMANDS, subjects=["runs.*.*.commands"], allow_direct=True)
        )
        await self.jetstream.add_stream(
            StreamConfig(
                name=RUN_RESULTS,
                subjects=["runs.*.*.result"],
                max_msgs_per_subject=1,
                allow_direct=True,
            )
        )
        await self.jetstream.add_stream(
            StreamConfig(
                name=AGENT_REQUESTS,
                subjects=["agents.*.*.requests"],
                retention=RetentionPolicy.WORK_QUEUE,
                discard=DiscardPolicy.NEW,
                **requests_limits,
            )
        )

    async def create_events_stream(self, *, allow_direct: bool = True) -> None:
        """The stream also takes `missed.…`, stored as events: what no live subscriber gets."""
        await self.jetstream.add_stream(
            StreamConfig(
                name=RUN_EVENTS,
                subjects=["runs.*.*.events", "missed.*.*.events"],
                subject_transform=SubjectTransform(
                    src="missed.*.*.events", dest="runs.{{wildcard(1)}}.{{wildcard(2)}}.events"
                ),
                allow_direct=allow_direct,
            )
        )

    async def serve(self, agent: str) -> None:
        """Create the agent's consumer: from now on it is known."""
        name = consumer_name(self.namespace, agent)
        await self.jetstream.add_consumer(
            AGENT_REQUESTS,
            ConsumerConfig(durable_name=name, filter_subject=requests(self.namespace, agent)),
        )

    async def take(self, agent: str) -> RunRequest:
        """The next request of the agent, off the queue."""
        name = consumer_name(self.namespace, agent)
        pull = await self.jetstream.pull_subscribe_bind(stream=AGENT_REQUESTS, consumer=name)
        [message] = await pull.fetch(1, timeout=10)
        await message.ack_sync()
        await pull.unsubscribe()
        return decode_request(message.data)

    async def publish(
        self, message_id: str, run: Sequence[StreamEvent], *, live: bool = True
    ) -> None:
        """Publish events; not `live`: stored, but missed by everyone who listens."""
        subject = events(self.namespace, message_id)
        if not live:
            subject = subject.replace("runs.", "missed.", 1)
        for event in run:
            await self.connection.publish(subject, encode(event))
        await self.connection.flush()

    async def publish_result(self, outcome: RunResult) -> None:
        subject = result(self.namespace, outcome.message_id)
        await self.jetstream.publish(subject, encode(outcome))

    async def complete(self, request: RunRequest, answer: Any, agent: str = "support") -> None:
        assert request.message_id is not None
        await self.publish_result(
            RunResult(message_id=request.message_id, agent=agent, status="completed", answer=answer)
        )

    async def stored(self, message_id: str) -> int:
        """How many events the stream holds for a run."""
        subject = events(self.namespace, message_id)
        info = await self.jetstream.stream_info(RUN_EVENTS, subjects_filter=subject)
        return (info.state.subjects or {}).get(subject, 0)

    async def stored_bytes(self, message_id: str) -> list[bytes]:
        """The events of a run as the stream holds them, in its order."""
        stored = StoredSubject(self.connection, RUN_EVENTS, events(self.namespace, message_id))
        found: list[bytes] = []
        more, sequence = True, 0
        while more:
            batch, more = await stored.after(sequence)
            found += [message.data for message in batch]
            sequence = batch[-1].sequence if batch else sequence
        return found

    async def forget(self, message_id: str, seqs: Iterable[int]) -> None:
        """Take events out of the stream, as if they had died with the server."""
        gone = set(seqs)
        stored = StoredSubject(self.connection, RUN_EVENTS, events(self.namespace, message_id))
        batch, more = await stored.after(0)
        assert not more
        for message in batch:
            if json.loads(message.data)["seq"] in gone:
                await self.jetstream.delete_msg(RUN_EVENTS, message.sequence)

    async def answer_asks(
        self, agent: str, reply: Callable[[Msg, RunRequest], Awaitable[None]]
    ) -> None:
        async def respond(message: Msg) -> None:
            await reply(message, decode_request(message.data))

        await self.connection.subscribe(ask(self.namespace, agent), cb=respond)
        await self.known_to_the_server()

    async def known_to_the_server(self) -> None:
        """Whatever was subscribed to is. nats-py writes the PING of a flush ahead of what it has
        buffered; the second one comes after that."""
        await self.connection.flush()
        await self.connection.flush()


def run_of(message_id: str, chunks: int, *, agent: str = "support") -> list[StreamEvent]:
    """A run's events: a start, `chunks` pieces of text, two ends; numbered from 1."""
    return [
        MessageStart(seq=1, message_id=message_id, agent=agent),
        *(
            TextChunk(seq=number + 2, step=1, content=f"piece {number} ")
            for number in range(chunks)
        ),
        MessageEnd(seq=chunks + 2, finish_reason="stop"),
        StreamEnd(seq=chunks + 3),
    ]


@pytest.fixture
def server_of(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    servers: list[NatsServer] = []

    def make(**options: Any) -> NatsServer:
        folder = tmp_path / f"nats-{len(servers)}"
        folder.mkdir()
        servers.append(NatsServer(folder, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
async def server(server_of: Callable[..., NatsServer]) -> NatsServer:
    server = server_of()
    await server.start()
    return server


@pytest.fixture
async def worker_on() -> AsyncIterator[Callable[..., Awaitable[ScriptedWorker]]]:
    async with AsyncExitStack() as stack:

        async def make(server: NatsServer, **options: Any) -> ScriptedWorker:
            connection = await nats.connect(
                server.url,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.05,
                error_cb=_quiet,
                **options,
            )
            stack.push_async_callback(connection.close)
            return ScriptedWorker(connection)

        yield make


@pytest.fixture
async def bare_worker(
    server: NatsServer, worker_on: Callable[..., Awaitable[ScriptedWorker]]
) -> ScriptedWorker:
    """A worker's connection to a server on which nothing was set up."""
    return await worker_on(server)


@pytest.fixture
async def worker(bare_worker: ScriptedWorker) -> ScriptedWorker:
    """All streams, and the agent `support` known."""
    await bare_worker.create_streams()
    await bare_worker.serve("support")
    return bare_worker


@pytest.fixture
async def connect(server: NatsServer) -> AsyncIterator[Callable[..., Awaitable[RunClient]]]:
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> RunClient:
            options.setdefault("reconnect_time_wait", 0.05)
            options.setdefault("error_cb", _quiet)
            client = await RunClient.connect(options.pop("url", server.url), **options)
            return await stack.enter_async_context(client)

        yield make


@pytest.fixture
async def cutter(server: NatsServer) -> AsyncIterator[WireCutter]:
    """Between a client and the server."""
    async with WireCutter(server.port) as cutter:
        yield cutter


@pytest.fixture
async def client(worker: ScriptedWorker, connect: Callable[..., Awaitable[RunClient]]) -> RunClient:
    """A client that looks at the store after a tenth of a second of silence."""
    return await connect(settings=ReadSettings(idle_check_s=0.1, patience_s=0.5))


@pytest.fixture
def script() -> Callable[..., list[StreamEvent]]:
    return run_of


@pytest.fixture
async def tasks() -> AsyncIterator[Callable[[Any], "asyncio.Task[Any]"]]:
    """Starts tasks that do not outlive the test."""
    started: list[asyncio.Task[Any]] = []

    def start(coroutine: Any) -> "asyncio.Task[Any]":
        started.append(asyncio.create_task(coroutine))
        return started[-1]

    yield start
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


async def _quiet(_: Exception) -> None:
    """Tests stop servers on purpose."""
