"""Requests that no pull brings, looked for on servers that may know less than they should."""

import pytest
from tests.integration.worker.conftest import Requester

from hayrunner.serving.bus import Bus
from hayrunner.serving.connection import Link
from hayrunner.serving.deliveries import Delivery
from hayrunner.serving.provisioning import provision
from hayrunner.serving.sweeper import Sweeper
from hayrunner.settings import Settings
from hayrunner_contracts.errors import RunFailure
from hayrunner_contracts.testing import eventually

OLD_ENOUGH_S = 5.0


class Forgetful(Sweeper):
    """Its server lists no consumers, as one may that was away for a while."""

    async def _consumer_names(self) -> set[str]:
        return set()


class GivenUp(list[tuple[str, str]]):
    async def __call__(self, delivery: Delivery, cause: RunFailure) -> None:
        self.append((delivery.agent, cause.code))


@pytest.fixture
async def bus(requester: Requester) -> Bus:
    link = Link()
    link.bind(requester.nc)
    await provision(requester.js, Settings(), ["support"])
    return Bus(nc=requester.nc, js=requester.js, link=link, namespace="default")


async def test_a_request_is_unserved_when_it_is_so_in_two_rounds(
    bus: Bus, requester: Requester
) -> None:
    given_up = GivenUp()
    sweeper = Sweeper(bus=bus, agents=["support"], give_up=given_up)
    await requester.publish("nobody")
    await sweeper.sweep()
    assert given_up == []

    async def ended() -> bool:
        await sweeper.sweep()
        return bool(given_up)

    await eventually(ended, OLD_ENOUGH_S, what="a request that is old enough")
    assert given_up == [("nobody", "unknown_agent")]


async def test_a_list_that_lacks_a_consumer_ends_no_request(bus: Bus, requester: Requester) -> None:
    given_up = GivenUp()
    forgetful = Forgetful(bus=bus, agents=[], give_up=given_up)
    await requester.publish("support")
    await requester.publish("nobody")

    async def ended() -> bool:
        await forgetful.sweep()
        return bool(given_up)

    await eventually(ended, OLD_ENOUGH_S, what="the other request that is old enough")
    assert {agent for agent, _ in given_up} == {"nobody"}
