"""FastStream's part of the bus: direct requests, and other workers' questions.

Each function is a few lines that call the part that does the work; framework types stop here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from faststream import Context
from faststream.nats import NatsBroker, NatsMessage

from hayrunner.serving.asks import Asks
from hayrunner.serving.holdings import Holdings
from hayrunner.settings import Settings
from hayrunner_contracts import subjects

__all__ = ["Subscribers", "add_subscribers"]

_QUEUE = "hayrunner"


@dataclass(frozen=True, kw_only=True)
class Subscribers:
    """What was added to the broker."""

    asks: list[Any]


def add_subscribers(broker: NatsBroker, settings: Settings, agents: Sequence[str]) -> Subscribers:
    """Declare the subscribers; they start with the broker. `asks` and `holdings` have to be in
    FastStream's context by then."""
    asks = [_ask(broker, settings.namespace, agent) for agent in agents]
    _holds(broker, settings.worker_id)
    return Subscribers(asks=asks)


def _ask(broker: NatsBroker, namespace: str, agent: str) -> Any:
    subscriber = broker.subscriber(
        subjects.ask(namespace, agent),
        _QUEUE,
        decoder=_raw,
        no_reply=True,
        title=f"ask {agent}",
    )

    @subscriber
    async def ask(
        message: NatsMessage,
        asks: Annotated[Asks, Context("asks")],
    ) -> None:
        asks.receive(message.raw_message, agent)

    return subscriber


def _holds(broker: NatsBroker, worker: str) -> None:
    @broker.subscriber(
        subjects.worker_holds(worker), decoder=_raw, title="which runs this worker holds"
    )
    async def holds(
        message: NatsMessage,
        holdings: Annotated[Holdings, Context("holdings")],
    ) -> bytes:
        return holdings.answer(message.body)


async def _raw(message: NatsMessage) -> bytes:
    """Bodies are bytes here: without this they would be tried as JSON."""
    return message.body
