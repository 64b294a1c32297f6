"""The embedded server comes, serves, and goes, however its parent ends."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import nats
import pytest

from hayrunner import embedded
from hayrunner.embedded import EmbeddedServer
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.testing import eventually

PARENT = """
import asyncio
from hayrunner.embedded import EmbeddedServer

async def main():
    async with EmbeddedServer() as server:
        print(server.pid, server.folder, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_serves_jetstream_and_leaves_nothing_behind() -> None:
    async with EmbeddedServer() as server:
        nc = await nats.connect(server.url)
        await nc.jetstream().account_info()
        await nc.close()
        pid, folder = server.pid, server.folder
        assert pid is not None
        assert folder.exists()

    assert not is_alive(pid)
    assert not folder.exists()


async def test_it_comes_back_on_the_same_port_with_its_data() -> None:
    async with EmbeddedServer() as server:
        url = server.url
        nc = await nats.connect(url)
        await nc.jetstream().add_stream(name="KEPT", subjects=["kept"])
        await nc.jetstream().publish("kept", b"x")
        await nc.close()
        await server.kill()
        await server.start()

        assert server.url == url
        nc = await nats.connect(url)
        assert (await nc.jetstream().stream_info("KEPT")).state.messages == 1
        await nc.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_it_does_not_outlive_a_parent_that_is_killed(number: signal.Signals) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid, folder = (await asyncio.wait_for(parent.stdout.readline(), 20)).decode().split()
    assert is_alive(int(pid))

    parent.send_signal(number)
    await parent.wait()

    await eventually(lambda: not is_alive(int(pid)), what="the server's end")
    await eventually(lambda: not Path(folder).exists(), what="the folder's end")


async def test_a_given_store_is_kept(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with EmbeddedServer(store_dir=store) as server:
        nc = await nats.connect(server.url)
        await nc.jetstream().add_stream(name="KEPT", subjects=["kept"])
        await nc.close()

    assert list(store.rglob("KEPT"))


async def test_a_missing_binary_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(embedded.sysconfig, "get_path", lambda name: "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigurationError, match="no nats-server binary: install"):
        async with EmbeddedServer():
            pass


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did not start"):
        async with EmbeddedServer(arguments=("-c", str(tmp_path / "missing.conf"))):
            pass
