"""What a chaos worker writes down of the product's own steps: deliveries and attempts."""

from typing import Any

from tests.chaos.journal import Journal

from hayrunner.serving.deliveries import Delivery
from hayrunner.serving.execution import PublisherFactory
from hayrunner.serving.handler import Handler
from hayrunner.serving.holdings import HeldRun
from hayrunner.serving.parking import Parking
from hayrunner.serving.run_events import RunPublisher
from hayrunner_contracts.codec import peek_message_id

__all__ = ["watch_deliveries", "watched_publisher"]


def watch_deliveries(journal: Journal) -> None:
    """Write a line for every request that is handed to this worker, and for every run it parks."""
    handle = Handler.handle

    async def watched(self: Handler, delivery: Delivery) -> None:
        journal.write(
            "delivery",
            message_id=peek_message_id(delivery.data),
            times=delivery.times_delivered,
        )
        await handle(self, delivery)

    Handler.handle = watched
    park = Parking.park

    async def watched_park(self: Parking, held: HeldRun, **more: Any) -> None:
        await park(self, held, **more)
        journal.write("parked", message_id=held.claim.message_id)

    Parking.park = watched_park


def watched_publisher(journal: Journal, *, drop_every: int) -> PublisherFactory:
    """A `RunPublisher` that writes a line when an attempt has begun, has ended its run, and is
    left; and that loses every `drop_every`th event on its way to the server, if that is not 0."""

    class Watched(RunPublisher):
        def __init__(self, nc: Any, *args: Any, message_id: str, **more: Any) -> None:
            published = 0

            async def lossy(subject: str, data: bytes, **headers: Any) -> None:
                nonlocal published
                published += 1
                if published % drop_every:
                    await nc.publish(subject, data, **headers)

            if drop_every:
                more["send"] = lossy
            super().__init__(nc, *args, message_id=message_id, **more)
            self._journaled = message_id

        async def begin(self, *, attempt: int, **more: Any) -> None:
            await super().begin(attempt=attempt, **more)
            journal.write("begin", message_id=self._journaled, attempt=attempt)

        async def end(self, *, patience_s: float) -> None:
            await super().end(patience_s=patience_s)
            journal.write("end", message_id=self._journaled)

        async def close(self) -> None:
            await super().close()
            journal.write("left", message_id=self._journaled)

    return Watched
