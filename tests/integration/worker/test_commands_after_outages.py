"""Commands that are sent while a worker's connection is away: heard when it is back, once."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from tests.integration.client.wire_cutter import WireCutter
from tests.integration.worker.conftest import Requester
from tests.integration.worker.scripted import ScriptedAgent, ScriptedRegistry, Session

from hayrunner.embedded import EmbeddedServer
from hayrunner.serving.app import Worker
from hayrunner.settings import Settings
from hayrunner_contracts.commands import Say
from hayrunner_contracts.testing import eventually


class ListeningAgent(ScriptedAgent):
    """Runs for ever; `heard` is what was said to its runs."""

    def __init__(self) -> None:
        super().__init__(script=self._listen)
        self._session: Session | None = None

    async def _listen(self, session: Session) -> str:
        self._session = session
        await session.say("first")
        await asyncio.Event().wait()
        return ""

    @property
    def heard(self) -> list[str]:
        commands = [] if self._session is None else self._session.commands
        return [command.text for command in commands if isinstance(command, Say)]


@pytest.fixture
async def wire(nats_server: EmbeddedServer) -> AsyncIterator[WireCutter]:
    """What lies between the worker and the server; requesters have a way of their own."""
    async with WireCutter(urlsplit(nats_server.url).port or 0) as wire:
        yield wire


@pytest.fixture
async def agent(wire: WireCutter, requester: Requester) -> AsyncIterator[ListeningAgent]:
    agent = ListeningAgent()
    settings = Settings(nats_url=wire.url, port=-1, ack_wait_s=30)
    async with Worker(settings, ScriptedRegistry(agent)):
        await requester.watch()
        yield agent


async def begun(requester: Requester) -> str:
    message_id = await requester.publish()
    await eventually(lambda: len(requester.events[message_id]) == 2, what="the first text")
    return message_id


async def test_a_cancel_that_is_sent_during_an_outage_ends_the_run_after_it(
    agent: ListeningAgent, wire: WireCutter, requester: Requester
) -> None:
    message_id = await begun(requester)
    wire.cut(stay_away=True)
    await requester.cancel(message_id)
    await wire.mend()

    result = await requester.ended(message_id)

    assert (result.status, result.attempts) == ("cancelled", 1)


async def test_what_was_said_during_an_outage_is_heard_once_each(
    agent: ListeningAgent, wire: WireCutter, requester: Requester
) -> None:
    message_id = await begun(requester)
    commands = f"runs.default.{message_id}.commands"

    async def say(text: str, **headers: str) -> None:
        data = b'{"type":"say","text":"%s"}' % text.encode()
        await requester.js.publish(commands, data, headers=headers or None)

    await say("a")
    await say("b", **{"Nats-Msg-Id": "b1"})
    await eventually(lambda: agent.heard == ["a", "b"])
    wire.cut(stay_away=True)
    await say("a")
    await say("b", **{"Nats-Msg-Id": "b2"})
    await say("c")
    await wire.mend()
    await eventually(lambda: len(agent.heard) >= 5)
    await say("last")
    await eventually(lambda: agent.heard[-1] == "last")

    assert agent.heard == ["a", "b", "a", "b", "c", "last"]
    await requester.cancel(message_id)
    await requester.ended(message_id)
