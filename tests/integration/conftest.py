"""A real nats-server for every test that asks for one: as a process, and in a container."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from tests.integration import containers

from hayrunner.embedded import EmbeddedServer

NatsServer = EmbeddedServer | containers.ContainerServer


@pytest.fixture(scope="session")
def container_image() -> None:
    """The image is there; skipped without Docker, failed where it has to be there."""
    if not containers.docker_runs():
        if os.environ.get("HAYRUNNER_REQUIRE_DOCKER"):
            pytest.fail("no Docker daemon answers, and HAYRUNNER_REQUIRE_DOCKER is set")
        pytest.skip("no Docker daemon answers")
    containers.sweep()
    containers.build_image()


@pytest.fixture
def server_arguments() -> tuple[str, ...]:
    """What a module's server is started with besides; overridden where a test needs more."""
    return ()


# Docker's proxy accepts connections for a server that is not there, and resets them: nats-py
# leaves such a connection to the garbage collector, which warns.
_IN_A_CONTAINER = [
    pytest.mark.docker,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


# What depends on how a server comes and goes; for the others one kind of server is enough.
_IN_BOTH = {
    *("test_asks", "test_bad_requests", "test_claims", "test_draining", "test_outages"),
    *("test_provisioning", "test_runs", "test_stopping", "test_streams"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the containers of all other modules."""
    here = Path(__file__).parent
    out = [
        item
        for item in items
        if here in item.path.parents
        and item.path.stem not in _IN_BOTH
        and item.get_closest_marker("docker") is not None
    ]
    if out:
        gone = set(map(id, out))
        items[:] = [item for item in items if id(item) not in gone]
        config.hook.pytest_deselected(items=out)


@pytest.fixture(params=["process", pytest.param("container", marks=_IN_A_CONTAINER)])
async def nats_server(
    request: pytest.FixtureRequest, server_arguments: tuple[str, ...]
) -> AsyncIterator[NatsServer]:
    """A server of the test's own: it may be killed and started again."""
    if request.param == "process":
        async with EmbeddedServer(arguments=server_arguments) as server:
            yield server
    else:
        request.getfixturevalue("container_image")
        async with containers.ContainerServer(server_arguments) as server:
            yield server


@pytest.fixture
async def nc(nats_server: NatsServer) -> AsyncIterator[Client]:
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
