"""A real nats-server for every test that asks for one."""

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client

from hayrunner.embedded import EmbeddedServer


@pytest.fixture
def server_arguments() -> tuple[str, ...]:
    """What a module's server is started with besides; overridden where a test needs more."""
    return ()


@pytest.fixture
async def nats_server(server_arguments: tuple[str, ...]) -> AsyncIterator[EmbeddedServer]:
    """A server of the test's own: it may be killed and started again."""
    async with EmbeddedServer(arguments=server_arguments) as server:
        yield server


@pytest.fixture
async def nc(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    """A requester's connection, which survives a restart of the server."""
    connection = await nats.connect(
        nats_server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_quiet
    )
    try:
        yield connection
    finally:
        await connection.close()


async def _quiet(_: Exception) -> None:
    return
