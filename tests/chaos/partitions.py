"""A cluster whose servers can be cut off from one another.

Every server reaches every other through a wire of its own, and tells nobody its real address, so
that no server finds a way around a wire that is cut. Clients are not cut off: whoever is connected
to a lonely server stays connected to it.
"""

import asyncio
from pathlib import Path

from tests.integration.client.wire_cutter import WireCutter
from tests.integration.cluster import Cluster

from hayrunner.embedded import find_nats_server

__all__ = ["CuttableCluster"]

# Nobody listens there: servers that hear of one another by others cannot connect.
_NOWHERE = "127.0.0.1:1"


class CuttableCluster(Cluster):
    """`isolate` one server, and `heal`."""

    def __init__(self, folder: Path | None = None, *, size: int = 3) -> None:
        super().__init__(folder, size=size)
        pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
        self._wires = {(i, j): WireCutter(self._routes[j]) for i, j in pairs}

    def isolate(self, i: int) -> None:
        """Cut server `i` off from all others."""
        for pair, wire in self._wires.items():
            if i in pair:
                wire.cut(stay_away=True)

    async def heal(self, i: int) -> None:
        """Connect server `i` with the others again."""
        for pair, wire in self._wires.items():
            if i in pair:
                await wire.mend()

    async def start(self) -> None:
        for wire in self._wires.values():
            await wire.mend()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        for wire in self._wires.values():
            await wire.__aexit__(None, None, None)

    async def _start(self, i: int) -> None:
        routes = ",".join(self._wires[i, j].url for j in range(self.size) if j != i)
        command = [
            find_nats_server(),
            *("-a", "127.0.0.1", "-p", str(self._clients[i]), "-m", str(self._monitors[i])),
            *("-js", "-sd", str(self.folder / f"n{i}"), "-n", f"n{i}"),
            *("--cluster_name", "hayrunner", "--routes", routes),
            *("--cluster", f"nats://127.0.0.1:{self._routes[i]}"),
            *("--cluster_advertise", _NOWHERE),
            *("-l", str(self.folder / f"n{i}.log")),
        ]
        self._processes[i] = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
