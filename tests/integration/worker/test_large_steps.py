"""Checkpoints too large for a claim: what two have in common is stored once."""

import asyncio
from typing import Any, cast

import pytest
from nats.aio.client import Client
from tests.integration.worker.conftest import Requester
from tests.integration.worker.test_fencing import MESSAGE_ID, Attempts, say

from hayrunner.serving.claims import Claim, Claims
from hayrunner.serving.holdings import HeldRun
from hayrunner.serving.provisioning import provision
from hayrunner.serving.steps import RunSteps, StepBlobs, kept_bytes
from hayrunner.settings import Settings
from hayrunner_contracts.blobs import BlobStore
from hayrunner_contracts.testing import eventually

# One kind of server is enough: what is looked at is the worker.
pytestmark = pytest.mark.parametrize("nats_server", ["process"], indirect=True)

INLINE = 1_000
LONG = '"a word — ' * 300


class Objects:
    """The bucket, with what was put into it."""

    def __init__(self, nc: Client) -> None:
        self._store = BlobStore(nc)
        self.put_names: list[str] = []
        self.stored: list[str] = []
        self.hangs = False

    async def put(self, name: str, data: bytes, *, patience_s: float) -> object:
        self.put_names.append(name)
        if self.hangs:
            await asyncio.Event().wait()
        reference = await self._store.put(name, data, patience_s=patience_s)
        self.stored.append(name)
        return reference

    async def get(self, name: str) -> bytes:
        return await self._store.get(name, max_bytes=1_000_000)

    async def delete(self, name: str) -> None:
        await self._store.delete(name)


class Kept:
    """One run's claim, and the steps of its attempts."""

    def __init__(self, nc: Client, requester: Requester) -> None:
        self.objects = Objects(nc)
        self._requester = requester
        self._attempts = Attempts(nc, requester)

    async def begin(self, attempt: int = 1) -> RunSteps:
        bucket = await self._requester.js.key_value("RUNS")
        self.claims = Claims(bucket, namespace="default", worker=f"worker-{attempt}")
        claim = await self._claim(self.claims)
        self.publisher = await self._attempts.begin(attempt)
        nothing = cast("Any", None)
        held = HeldRun(claim=claim, delivery=nothing, end_here=lambda: None)

        async def still_held() -> bool:
            return True

        return RunSteps(
            claims=self.claims,
            blobs=cast("StepBlobs", self.objects),
            held=held,
            publisher=self.publisher,
            inbox=nothing,
            still_held=still_held,
            inline_bytes=INLINE,
        )

    async def _claim(self, claims: Claims) -> Claim:
        found = await claims.find(MESSAGE_ID)
        if found is None:
            made = await claims.create(MESSAGE_ID, agent="a", sequence=1, requested_at=0.0)
        else:
            made = await claims.take_over(MESSAGE_ID, *found, sequence=1)
        assert made is not None
        return made

    async def found(self) -> bytes | None:
        """What another worker would go on from."""
        record = await self.claims.find(MESSAGE_ID)
        assert record is not None
        return await kept_bytes(cast("StepBlobs", self.objects), record[0])


def checkpoint(*messages: str, phase: str = "called") -> bytes:
    table = ",".join(f'"{message.replace(chr(34), "")}"' for message in messages)
    return f'{{"table":[{table}],"phase":"{phase}"}}'.encode()


@pytest.fixture
async def kept(nc: Client, requester: Requester) -> Kept:
    await provision(requester.js, Settings(), [])
    return Kept(nc, requester)


async def test_only_what_is_new_in_a_large_checkpoint_is_stored_again(kept: Kept) -> None:
    steps = await kept.begin()
    for data in (
        checkpoint(LONG),
        checkpoint(LONG, phase="settled"),
        checkpoint(LONG, "a result"),
        checkpoint(LONG, "another é", phase="settled"),
    ):
        await say(kept.publisher, "word ")
        await steps.keep(data, phase="called", step=1)
        assert await kept.found() == data
    await steps.close()

    assert len(kept.objects.put_names) == 1
    record = steps.held.claim.record.kept
    assert record is not None
    assert record.seq == kept.publisher.last_seq
    assert len(record.tail or "") < 50


async def test_a_checkpoint_with_much_that_is_new_is_an_object_of_its_own(
    kept: Kept, requester: Requester
) -> None:
    steps = await kept.begin()
    await steps.keep(checkpoint(LONG), phase="called", step=1)
    await steps.keep(checkpoint(LONG, LONG), phase="called", step=2)
    await steps.close()

    assert await kept.found() == checkpoint(LONG, LONG)
    assert len(kept.objects.put_names) == 2
    # Its content and its description: the first one is gone.
    assert await requester.count("OBJ_RUN_BLOBS") == 2


async def test_another_attempt_makes_an_object_of_its_own(kept: Kept, requester: Requester) -> None:
    steps = await kept.begin()
    await steps.keep(checkpoint(LONG), phase="called", step=1)
    await steps.keep(checkpoint(LONG, "more"), phase="settled", step=1)
    again = await kept.begin(2)
    await again.keep(checkpoint(LONG, "else"), phase="called", step=2)
    await again.close()

    assert await kept.found() == checkpoint(LONG, "else")
    assert len(set(kept.objects.put_names)) == 2
    assert await requester.count("OBJ_RUN_BLOBS") == 2


async def test_a_checkpoint_that_has_become_small_leaves_no_object(
    kept: Kept, requester: Requester
) -> None:
    steps = await kept.begin()
    await steps.keep(checkpoint(LONG), phase="called", step=1)
    await steps.keep(checkpoint("short"), phase="settled", step=1)
    await steps.close()

    assert await kept.found() == checkpoint("short")
    assert await requester.count("OBJ_RUN_BLOBS") == 0


async def test_without_its_object_a_checkpoint_is_none(kept: Kept) -> None:
    steps = await kept.begin()
    await steps.keep(checkpoint(LONG), phase="called", step=1)
    await steps.keep(checkpoint(LONG, "more"), phase="settled", step=1)
    await kept.objects.delete(kept.objects.put_names[0])

    assert await kept.found() is None


async def test_an_object_that_is_put_is_no_checkpoint_while_its_events_are_not_verified(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = await kept.begin()
    verifying = asyncio.Event()

    async def verify(*, patience_s: float) -> None:
        verifying.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(kept.publisher, "verify", verify)
    keeping = asyncio.create_task(steps.keep(checkpoint(LONG), phase="called", step=1))
    await asyncio.wait_for(verifying.wait(), 5)
    await eventually(lambda: len(kept.objects.stored) == 1, 5, what="the object")
    assert await kept.found() is None

    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert await kept.found() is None


async def test_a_step_that_is_cut_off_leaves_the_checkpoint_before_it(kept: Kept) -> None:
    steps = await kept.begin()
    await steps.keep(checkpoint(LONG), phase="called", step=1)
    kept.objects.hangs = True
    keeping = asyncio.create_task(steps.keep(checkpoint(LONG, LONG), phase="settled", step=1))
    await eventually(lambda: len(kept.objects.put_names) == 2, 5, what="a second object")

    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert await kept.found() == checkpoint(LONG)
    assert len(kept.objects.stored) == 1
    assert {task for task in asyncio.all_tasks() if "put" in str(task.get_coro())} == set()
