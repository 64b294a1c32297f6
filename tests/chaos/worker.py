"""A worker of a chaos run: `python -m tests.chaos.worker FOLDER --nats URL --provider URL --id W`.

Its tools write to a journal when they begin and when they end, its publisher when an attempt
begins and when it is left. `--broken` takes away one of the things that make a worker safe, here
and not in the product: a checker that does not see it is no checker.
"""

import argparse
import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from tests.chaos.breakage import BREAKAGES, break_worker
from tests.chaos.journal import Journal
from tests.chaos.plan import Plan, read_plan
from tests.chaos.watching import watch_deliveries, watched_publisher

from hayrunner import Agent
from hayrunner.agent import ToolSource
from hayrunner.registry import Registry
from hayrunner.serving.app import Worker
from hayrunner.serving.process import serve_until_signalled
from hayrunner.settings import load_settings
from hayrunner.telemetry.logs import set_up_logs
from hayrunner.tool_context import current_tool_call

__all__ = ["Clerk", "Talker"]


class Talker(Agent):
    """Has no tools."""

    name = "talker"
    model = "scripted"


class Clerk(Agent):
    """Has tools that take a while, answer, and leave a trace."""

    name = "clerk"
    model = "scripted"
    max_agent_steps = 12
    approvals = ("refund",)

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def get_tools(
        self, thread_id: str | None = None, user: str | None = None
    ) -> Sequence[ToolSource]:
        return (self.look_up, self.compute, self.refund)

    async def look_up(
        self, run: int, step: int, index: int, seconds: float = 0.0, size: int = 0
    ) -> str:
        """Looks something up."""
        facts = self._begin(run, step, index)
        await asyncio.sleep(seconds)
        return self._end(facts, size)

    def compute(self, run: int, step: int, index: int, seconds: float = 0.0, size: int = 0) -> str:
        """Computes something, and blocks its thread meanwhile."""
        facts = self._begin(run, step, index)
        time.sleep(seconds)
        return self._end(facts, size)

    async def refund(
        self, run: int, step: int, index: int, seconds: float = 0.0, size: int = 0
    ) -> str:
        """Pays somebody back, once a person has said so."""
        return await self.look_up(run, step, index, seconds, size)

    def _begin(self, run: int, step: int, index: int) -> dict[str, Any]:
        call = current_tool_call()
        facts: dict[str, Any] = {
            "run": run,
            "step": step,
            "index": index,
            "nonce": uuid.uuid4().hex,
            "message_id": call.message_id,
            "call_id": call.tool_call_id,
            "key": call.idempotency_key,
        }
        self._journal.write("tool", **facts)
        return facts

    def _end(self, facts: dict[str, Any], size: int) -> str:
        self._journal.write("tool_done", run=facts["run"], nonce=facts["nonce"])
        answer = {name: facts[name] for name in ("run", "step", "index", "nonce")}
        return msgspec.json.encode({**answer, "padding": "x" * size}).decode()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--broken", choices=BREAKAGES, default=None)
    return parser.parse_args()


def _worker(plan: Plan, given: argparse.Namespace) -> Worker:
    os.environ["OPENAI_API_KEY"] = "none"
    os.environ["OPENAI_BASE_URL"] = given.provider
    settings = load_settings(
        nats_url=given.nats,
        worker_id=given.id,
        replicas=given.replicas,
        ack_wait_s=plan.ack_wait_s,
        max_attempts=plan.max_attempts,
        concurrency=plan.concurrency,
        drain_timeout_s=plan.drain_timeout_s,
        park_after_s=plan.park_after_s,
        port=-1,
        log_format="json",
    )
    set_up_logs(form=settings.log_format, level=settings.log_level)
    journal = Journal(given.folder / f"worker-{given.id}.jsonl", worker=given.id)
    watch_deliveries(journal)
    break_worker(given.broken)
    publisher = watched_publisher(journal, drop_every=plan.drop_every)
    return Worker(settings, Registry([Talker, Clerk(journal)]), publisher=publisher)


def main() -> None:
    """Serve until told to end."""
    given = _arguments()
    worker = _worker(read_plan(given.folder / "plan.json"), given)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_until_signalled(worker))


if __name__ == "__main__":
    main()
