"""Spans of what failed, or was cut short: they are there, and say no more than a code."""

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import StatusCode
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import (
    MESSAGE_ID,
    Sink,
    agent_over,
    call_turn,
    request,
    tell,
    text_turn,
)
from tests.unit.telemetry.test_run_spans import add
from tests.unit.telemetry.traces import Traces, attributes, decoded, said_nothing_of_errors

from hayrunner.telemetry import names
from hayrunner_contracts.testing import eventually


async def test_a_provider_that_fails_leaves_a_code(provide: Provide, traces: Traces) -> None:
    error = {"$status": 400, "body": {"error": {"message": "sentinel body"}}}
    _, generator = await provide([[error]])

    told = await tell(agent_over(generator))

    assert told.code == "provider_error"
    for span in (traces.one("chat"), traces.one("invoke_agent")):
        assert attributes(span)[names.ERROR_TYPE] == "provider_error"
        assert span.status.status_code is StatusCode.ERROR
    assert attributes(traces.one("invoke_agent"))[names.RUN_STATUS] == "failed"
    assert said_nothing_of_errors(traces)
    assert not any("sentinel" in text for text in traces.texts())


async def test_a_run_past_its_turns_fails_by_that_name(provide: Provide, traces: Traces) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2}))])

    await tell(agent_over(generator, tools=[add]), options={"max_turns": 1})

    assert len(traces.named("chat")) == 1
    told = attributes(traces.one("invoke_agent"))
    assert (told[names.ERROR_TYPE], told[names.RUN_EXIT_REASON]) == ("max_turns", "max_turns")


@pytest.mark.parametrize("code", ["cancelled", "deadline_exceeded"])
async def test_a_model_call_that_is_cut_is_there(
    provide: Provide, traces: Traces, code: Any
) -> None:
    provider, generator = await provide([[*text_turn("Hel")[:1], {"$hang": True}]])
    session = agent_over(generator).open_session(
        request("hi"), message_id=MESSAGE_ID, sink=Sink(), agent_name="support"
    )
    running = asyncio.ensure_future(session.run())
    await eventually(lambda: bool(provider.requests) and bool(provider.requests[0].emitted))

    session.stop(code, "enough")
    await running

    chat, run = traces.one("chat"), traces.one("invoke_agent")
    assert attributes(chat)[names.ERROR_TYPE] == "cancelled"
    assert names.RESPONSE_FINISH_REASONS not in attributes(chat)
    assert attributes(run)[names.ERROR_TYPE] == code
    expected = StatusCode.UNSET if code == "cancelled" else StatusCode.ERROR
    assert run.status.status_code is expected
    assert said_nothing_of_errors(traces)


async def test_a_tool_call_that_is_cut_is_there(provide: Provide, traces: Traces) -> None:
    started = asyncio.Event()

    async def wait(name: str) -> str:
        """Waits."""
        started.set()
        await asyncio.Event().wait()
        return name

    _, generator = await provide([call_turn(("wait", {"name": "x"}), ("wait", {"name": "y"}))])
    session = agent_over(generator, tools=[wait]).open_session(
        request("hi", {"tool_concurrency": 2}),
        message_id=MESSAGE_ID,
        sink=Sink(),
        agent_name="support",
    )
    running = asyncio.ensure_future(session.run())
    await started.wait()

    session.stop("cancelled", "enough")
    await running

    cut = traces.named("execute_tool wait")
    assert [attributes(span)[names.OUTCOME] for span in cut] == ["cancelled"] * 2
    assert attributes(traces.one("invoke_agent"))[names.RUN_STATUS] == "cancelled"


async def test_a_worker_that_goes_away_ends_the_span(provide: Provide, traces: Traces) -> None:
    provider, generator = await provide([[{"$hang": True}]])
    session = agent_over(generator).open_session(
        request("hi"), message_id=MESSAGE_ID, sink=Sink(), agent_name="support"
    )
    running = asyncio.ensure_future(session.run())
    await eventually(lambda: bool(provider.requests))

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    told = attributes(traces.one("invoke_agent"))
    assert told[names.ERROR_TYPE] == "cancelled"
    assert names.RUN_STATUS not in told


@pytest.mark.parametrize("options", [{}, {"record_content_telemetry": True}])
async def test_a_call_that_is_made_again_is_a_span_each_time(
    provide: Provide, traces: Traces, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def at_once(seconds: float) -> None:
        return None

    monkeypatch.setattr("hayrunner.adapters.retries._sleep", at_once)

    def turn(body: dict[str, Any]) -> list[dict[str, Any]]:
        nonlocal tries
        tries += 1
        if tries == 1:
            return [*text_turn("Hel")[:1], {"$abort": True}]
        return text_turn("Hello")

    _, generator = await provide(turn)

    told = await tell(agent_over(generator, provider_retries=1), options=options)

    assert told.outcome.status == "completed"
    first, second = traces.named("chat")
    assert attributes(first)[names.ERROR_TYPE] == "provider_error"
    assert first.status.status_code is StatusCode.ERROR
    assert second.status.status_code is StatusCode.UNSET
    assert attributes(traces.one("invoke_agent"))[names.RUN_STATUS] == "completed"
    said = [decoded(span, names.OUTPUT_MESSAGES) for span in (first, second)]
    if options:
        texts = [message["parts"][0]["content"] for (message,) in said]
        assert texts == ["Hel", "Hello"]
    else:
        assert said == [None, None]
