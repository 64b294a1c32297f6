"""`hayrunner dev`: everything embedded, reloaded on change, gone however it ends."""

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.acceptance.processes import Run, Start

Gone = Callable[[], Awaitable[None]]

AGENT = """
from hayrunner import Agent
from hayrunner.demo import demo_llm

def cube(number: int) -> int:
    "Cube a number."
    return number ** {power}

class Cubes(Agent):
    name = "cubes"
    tools = (cube,)
    def get_llm(self):
        return demo_llm()
"""


async def test_a_change_is_served_and_a_mistake_is_told_and_nothing_is_left_after_a_kill(
    start: Start, run: Run, hayrunner: str, tmp_path: Path, everything_gone: Gone
) -> None:
    target = tmp_path / "project" / "agents.py"
    target.parent.mkdir()
    target.write_text(AGENT.format(power=3))
    dev = await start(hayrunner, "dev", str(target), "--nats-port", "0", "--json")
    opening = json.loads(await dev.read_until(b"\n"))
    assert opening["watching"] == str(target.parent)

    async def cube_of_three() -> str:
        asked = await run(
            *(hayrunner, "ask", "cubes", "3", "--answer", "--tools", "--nats", opening["nats"])
        )
        assert asked.code == 0, asked
        return asked.out

    await dev.said("worker ready")
    assert "27." in await cube_of_three()

    target.write_text(AGENT.format(power=2))
    assert b"agents.py" in await dev.read_until(b"\n")
    assert "9." in await cube_of_three()  # queued, if the new worker is not ready yet

    target.write_text("x = = 1\n")
    await dev.said(f"{target}, line 1: invalid syntax")
    target.write_text(AGENT.format(power=4))
    assert "81." in await cube_of_three()

    dev.send(signal.SIGKILL)
    await dev.ended()
    await everything_gone()


async def test_ctrl_c_ends_everything_with_code_0(
    start: Start, hayrunner: str, tmp_path: Path, everything_gone: Gone
) -> None:
    target = tmp_path / "agents.py"
    target.write_text(AGENT.format(power=3))
    dev = await start(hayrunner, "dev", str(target), "--nats-port", "0")
    await dev.said("worker ready")
    dev.send(signal.SIGINT)
    assert await dev.ended() == 0
    assert "Traceback" not in dev.errors
    await everything_gone()
