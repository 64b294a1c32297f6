"""`python -m tests.chaos --runs 2000 --seed 7`: a long chaos run. See README.md."""

import argparse
import asyncio
import logging
import random
import sys
import time
from pathlib import Path

import uvloop
from tests.chaos.breakage import BREAKAGES
from tests.chaos.guarantees import GUARANTEES
from tests.chaos.harness import play
from tests.chaos.plan import FaultKind, Plan
from tests.chaos.recovery import percentile, recoveries
from tests.chaos.report import recovery_limit_s, summary, told
from tests.chaos.scenarios import cluster_mix
from tests.chaos.seeds import ALL_FAULTS, random_plan


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5.0, help="runs a second")
    parser.add_argument("--fault-every", type=float, default=4.0, help="seconds")
    parser.add_argument("--ack-wait", type=float, default=2.0, help="seconds")
    parser.add_argument("--only", default=None, help="kinds of faults, as kill_worker,stop_nats")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for what is left")
    parser.add_argument("--broken", choices=BREAKAGES, default=None)
    parser.add_argument("--show", choices=GUARANTEES, default=None, help="a guarantee of its own")
    parser.add_argument("--cluster", action="store_true", help="three servers, leaders lost")
    return parser.parse_args()


async def _main(given: argparse.Namespace, plan: Plan) -> int:
    began = time.monotonic()
    verdict = await play(plan, folder=given.keep, broken=given.broken, tell=_tell)
    print(summary(verdict.evidence, verdict.violations))
    print(f"took {time.monotonic() - began:.0f} s")
    late = percentile(recoveries(verdict.evidence).alone, 0.99)
    slow = late is not None and late > recovery_limit_s(verdict.evidence)
    if verdict.violations:
        print(f"\n{len(verdict.violations)} violations; everything is in {verdict.folder}")
        print(told(verdict.violations))
    return 1 if verdict.violations or slow else 0


def _tell(line: str) -> None:
    print(line, flush=True)


def _plan(given: argparse.Namespace, seed: int) -> Plan:
    if given.cluster:
        return cluster_mix(seed, runs=given.runs, rate=given.rate)
    return random_plan(
        seed,
        runs=given.runs,
        workers=given.workers,
        rate=given.rate,
        fault_every_s=given.fault_every,
        ack_wait_s=given.ack_wait,
        faults=_kinds(given.only),
    )


def _kinds(only: str | None) -> dict[FaultKind, int] | None:
    if only is None:
        return None
    return {kind: weight for kind, weight in ALL_FAULTS.items() if kind in only.split(",")}


def main() -> None:
    """Play a plan made from the seed; exit code 1 on any violation."""
    given = _arguments()
    # A line for every connection that every reader loses, while servers are killed on purpose.
    logging.getLogger("hayrunner_contracts.client").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if given.show is not None:
            sys.exit(0 if runner.run(_shown(given.show)) else 1)
        sys.exit(runner.run(_main(given, _chosen(given))))


async def _shown(name: str) -> bool:
    return await GUARANTEES[name]()


def _chosen(given: argparse.Namespace) -> Plan:
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    plan = _plan(given, seed)
    again = f"--runs {given.runs} --seed {seed} --workers {given.workers} --rate {given.rate:g}"
    again += f" --only {given.only}" if given.only else ""
    again += " --cluster" if given.cluster else ""
    print(f"{len(plan.runs)} runs, {len(plan.faults)} faults, about {plan.length_s:.0f} s")
    print(f"again: python -m tests.chaos {again}", flush=True)
    return plan


if __name__ == "__main__":
    main()
