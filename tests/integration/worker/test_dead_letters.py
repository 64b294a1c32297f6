"""Dead letters: found, looked at, run again, thrown away, and bounded."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest
from tests.integration.worker.conftest import Requester, Serve
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner.embedded import EmbeddedServer
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.dead_letters import DeadLetter, DeadLetters, NoDeadLetter, NotWhole
from hayrunner_contracts.errors import InvalidRequest, Overloaded, UnknownAgent
from hayrunner_contracts.testing import eventually


@pytest.fixture
async def client(nats_server: EmbeddedServer) -> AsyncIterator[RunClient]:
    async with await RunClient.connect(nats_server.url) as client:
        yield client


async def letters_of(letters: DeadLetters, agent: str | None = None) -> list[DeadLetter]:
    return [letter async for letter in letters.list(agent)]


async def died(requester: Requester, client: RunClient, agent: str = "gone") -> DeadLetter:
    """A request for an agent that nobody serves, given up on."""
    await requester.ended(await requester.publish(agent, prompt="hello"))
    return (await letters_of(client.dead_letters))[-1]


async def test_a_dead_letter_says_what_it_is_and_has_the_request_unchanged(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    await serve(ScriptedAgent())
    body = b'{ "prompt": "hi", "modle": "stream" }'
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await requester.js.publish("agents.default.support.requests", body, headers=headers)
    await eventually(lambda: requester.results, what="the failed result")
    (message_id,) = requester.results

    (letter,) = await letters_of(client.dead_letters)
    assert (letter.agent, letter.reason, letter.message_id) == (
        "support",
        "invalid_request",
        message_id,
    )
    assert (letter.body, letter.size, letter.whole) == (body, len(body), True)
    assert letter.headers == headers
    assert letter.subject == "agents.default.support.requests"
    assert letter.at.startswith("20")
    assert letter.at.endswith("Z")
    assert await client.dead_letters.get(letter.number) == letter
    assert await letters_of(client.dead_letters, "support") == [letter]
    assert await letters_of(client.dead_letters, "billing") == []


async def test_run_again_it_is_a_new_run_and_the_old_result_stays(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    await serve(ScriptedAgent())
    letter = await died(requester, client)
    with pytest.raises(UnknownAgent):
        await client.dead_letters.retry(letter.number)
    seen: list[str] = []

    async def script(session: Session) -> str:
        seen.append(f"{session.request.prompt} {session.request.message_id}")
        return "done"

    await serve(ScriptedAgent("gone", script), worker_id="second")
    new_id = await client.dead_letters.retry(letter.number)

    result = await client.result(new_id, timeout=10)
    assert (result.status, result.answer, result.message_id) == ("completed", "done", new_id)
    assert seen == [f"hello {letter.message_id}"]
    assert new_id != letter.message_id
    old = await client.result(letter.message_id or "", timeout=10)
    assert old.error is not None
    assert old.error.code == "unknown_agent"
    assert await letters_of(client.dead_letters) == []
    with pytest.raises(NoDeadLetter):
        await client.dead_letters.retry(letter.number)


async def test_two_that_run_the_same_one_again_make_one_run(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    await serve(ScriptedAgent())
    letter = await died(requester, client)
    agent = ScriptedAgent("gone")
    await serve(agent, worker_id="second")

    ids = await asyncio.gather(
        *(client.dead_letters.retry(letter.number) for _ in range(2)), return_exceptions=True
    )
    made = {found for found in ids if isinstance(found, str)}
    assert len(made) == 1
    assert all(isinstance(found, str | NoDeadLetter) for found in ids)
    await client.result(made.pop(), timeout=10)
    await eventually(requester.queue_is_empty, what="an empty queue")
    assert len(agent.started) == 1


async def test_one_that_dies_again_is_another_dead_letter_with_the_new_id(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    await serve(ScriptedAgent())
    await requester.publish_raw(b"not JSON")
    await eventually(lambda: requester.results, what="the failed result")
    (letter,) = await letters_of(client.dead_letters)

    new_id = await client.dead_letters.retry(letter.number)
    result = await client.result(new_id, timeout=10)
    assert result.status == "failed"
    (again,) = await letters_of(client.dead_letters)
    assert (again.message_id, again.body) == (new_id, b"not JSON")
    assert again.headers["Hayrunner-Retry-Of"] == letter.message_id
    assert again.number > letter.number


async def test_a_full_queue_keeps_the_dead_letter(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    await serve(ScriptedAgent(), max_queue=1)
    letter = await died(requester, client)
    await (await serve(ScriptedAgent("gone"), worker_id="second", max_queue=1)).shutdown()
    await requester.publish("gone")
    with pytest.raises(Overloaded):
        await client.dead_letters.retry(letter.number)
    assert await letters_of(client.dead_letters) == [letter]


async def test_what_is_dropped_is_gone_and_other_namespaces_are_left_alone(
    serve: Serve, requester: Requester, client: RunClient, nats_server: EmbeddedServer
) -> None:
    await serve(ScriptedAgent())
    letter = await died(requester, client)
    async with await RunClient.connect(nats_server.url, "other") as other:
        assert await letters_of(other.dead_letters) == []
        for act in (other.dead_letters.get, other.dead_letters.drop, other.dead_letters.retry):
            with pytest.raises(NoDeadLetter):
                await act(letter.number)
    await client.dead_letters.drop(letter.number)
    assert await letters_of(client.dead_letters) == []
    for number in (letter.number, 0, 999):
        with pytest.raises(NoDeadLetter):
            await client.dead_letters.drop(number)


async def test_past_the_limit_the_oldest_goes_and_requests_still_end(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    await serve(ScriptedAgent(), max_dead_letters=2)
    ids = [str(uuid.uuid4()) for _ in range(4)]
    for message_id in ids:
        body = json.dumps({"message_id": message_id, "prompt": " "}).encode()
        await requester.publish_raw(body, message_id=message_id)
        await requester.ended(message_id)
    letters = await letters_of(client.dead_letters)
    assert [letter.message_id for letter in letters] == ids[2:]


async def test_one_that_was_cut_is_not_run_again(
    serve: Serve, requester: Requester, client: RunClient
) -> None:
    await serve(ScriptedAgent())
    body = b'{"prompt": "' + b"x" * (requester.nc.max_payload - 100) + b'"}'
    await requester.js.publish("agents.default.support.requests", body[: requester.nc.max_payload])
    await eventually(lambda: requester.results, what="the failed result")
    (letter,) = await letters_of(client.dead_letters)
    assert not letter.whole
    assert letter.reason == "payload_too_large"
    with pytest.raises(NotWhole):
        await client.dead_letters.retry(letter.number)


async def test_a_header_that_is_no_message_id_is_ignored(
    serve: Serve, requester: Requester
) -> None:
    await serve(ScriptedAgent())
    message_id = str(uuid.uuid4())
    body = json.dumps({"message_id": message_id, "prompt": "hi"}).encode()
    headers = {"Hayrunner-Message-Id": "x.>"}
    await requester.js.publish("agents.default.support.requests", body, headers=headers)
    assert (await requester.ended(message_id)).status == "completed"


async def test_an_agents_name_that_is_none_is_refused(client: RunClient) -> None:
    with pytest.raises(InvalidRequest):
        await letters_of(client.dead_letters, "a.b")
