"""What a failed run says: a stable code, a safe message, and nothing of what anybody wrote."""

import logging
from typing import Any

import pytest
from haystack.components.agents.state import State
from haystack.hooks import hook
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, call_turn, tell, text_turn

from hayrunner.storage.memory import InMemoryStorage
from hayrunner_contracts.codec import encode
from hayrunner_contracts.errors import ProviderRateLimited
from hayrunner_contracts.events import Error, MessageEnd
from hayrunner_contracts.messages import ChatMessage

SENTINEL = "sentinel-4711"

ANSWERS: list[tuple[int, str, bool]] = [
    (400, "provider_error", False),
    (401, "provider_error", False),
    (404, "provider_error", False),
    (429, "provider_rate_limited", True),
    (500, "provider_error", True),
    (503, "provider_error", True),
]


@pytest.mark.parametrize("mode", ["stream", "answer"])
@pytest.mark.parametrize("kind", ["own", "openai", "responses"])
@pytest.mark.parametrize(("status", "code", "retryable"), ANSWERS)
async def test_a_providers_status_becomes_a_code(
    provide: Provide, kind: str, status: int, code: str, retryable: bool, mode: str
) -> None:
    refusal = {"$status": status, "body": {"error": {"message": SENTINEL, "type": "x"}}}
    provider, generator = await provide([[refusal]], kind)

    told = await tell(agent_over(generator), mode=mode)

    assert len(provider.requests) == 1
    assert told.kinds == ["MessageStart", "Error", "MessageEnd", "StreamEnd"]
    assert (told.outcome.status, told.code) == ("failed", code)
    assert told.outcome.error is not None
    assert told.outcome.error.retryable is retryable
    assert str(status) in told.outcome.error.message
    assert not any(SENTINEL.encode() in encode(event) for event in told.events)


async def test_agent_run_raises_the_contracts_error(provide: Provide) -> None:
    _, generator = await provide([[{"$status": 429, "body": {}}]])
    with pytest.raises(ProviderRateLimited) as raised:
        await agent_over(generator).run("hi")
    assert raised.value.retryable


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_a_provider_that_nobody_serves_is_a_provider_error(
    provide: Provide, kind: str
) -> None:
    provider, generator = await provide([text_turn("Hello")], kind)
    await provider.__aexit__(None, None, None)
    told = await tell(agent_over(generator))
    assert told.code == "provider_error"


async def test_a_failure_in_a_later_step_keeps_what_there_was(provide: Provide) -> None:
    def add(a: int) -> int:
        """Adds."""
        return a

    _, generator = await provide([call_turn(("add", {"a": 1})), [{"$status": 500, "body": {}}]])
    told = await tell(agent_over(generator, tools=[add]))
    assert told.code == "provider_error"
    assert told.roles == ["assistant", "tool"]
    assert told.outcome.usage.total_tokens == 15
    assert told.outcome.model_calls == 2


def raising(point: str) -> dict[str, Any]:
    @hook
    def fail(state: State) -> None:
        raise RuntimeError(f"{SENTINEL}: {state.data['messages'][-1].text}")

    return {point: [fail]}


@pytest.mark.parametrize(
    "point", ["before_run", "before_llm", "before_tool", "after_tool", "on_exit", "after_run"]
)
async def test_an_unexpected_exception_becomes_a_reference(
    provide: Provide, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    def add(a: int) -> int:
        """Adds."""
        return a

    _, generator = await provide([call_turn(("add", {"a": 1})), text_turn("1")])

    told = await tell(agent_over(generator, tools=[add], default_hooks=raising(point)))

    (error,) = told.of(Error)
    assert (error.error_code, told.outcome.finish_reason) == ("internal", "error")
    assert error.ref
    assert error.error_message == f"the run failed unexpectedly (ref {error.ref})"
    assert not any(SENTINEL.encode() in encode(event) for event in told.events)
    logged = [r for r in caplog.records if r.name.startswith("hayrunner")]
    assert [record.levelno for record in logged] == [logging.ERROR]
    assert f"unexpected RuntimeError at {__file__}:" in logged[0].getMessage()
    assert error.ref in logged[0].getMessage()
    assert SENTINEL not in caplog.text


class BrokenStorage(InMemoryStorage):
    def __init__(self, broken: str) -> None:
        super().__init__()
        self._broken = broken

    async def load(self, before_message_id: str | None = None) -> list[ChatMessage]:
        if self._broken == "load":
            raise OSError(SENTINEL)
        return await super().load(before_message_id)

    async def append(self, message_id: str, messages: Any) -> None:
        if self._broken == "append":
            raise OSError(SENTINEL)
        await super().append(message_id, messages)


@pytest.mark.parametrize("mode", ["stream", "answer"])
async def test_a_thread_that_cannot_be_loaded_fails_the_run_before_any_call(
    provide: Provide, mode: str
) -> None:
    provider, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator)
    agent.get_storage = lambda thread_id: BrokenStorage("load")

    told = await tell(agent, thread_id="t", mode=mode)

    assert provider.requests == []
    assert told.code == "storage_error"
    assert told.of(Error)[0].error_message == "the thread could not be loaded"
    assert told.of(Error)[0].retryable


async def test_an_answer_that_cannot_be_saved_is_a_failed_run(
    provide: Provide, caplog: pytest.LogCaptureFixture
) -> None:
    _, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator)
    agent.get_storage = lambda thread_id: BrokenStorage("append")

    told = await tell(agent, thread_id="t")

    assert (told.outcome.status, told.code) == ("failed", "storage_error")
    assert told.of(MessageEnd)[0].finish_reason == "error"
    assert told.outcome.answer == "Hello"
    assert SENTINEL not in caplog.text


async def test_a_run_that_brought_nothing_leaves_its_thread_as_it_was(provide: Provide) -> None:
    _, generator = await provide([[{"$status": 500, "body": {}}]])
    storage = InMemoryStorage()
    agent = agent_over(generator)
    agent.get_storage = lambda thread_id: storage
    await tell(agent, thread_id="t")
    assert await storage.load() == []
