"""One trace over the bus: who asked, who answered, and what happens when it is tried again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from tests.integration.worker.conftest import Requester, Serve, ServeFiles, Serving
from tests.integration.worker.scripted import ScriptedAgent, Session
from tests.integration.worker.test_subagents import (
    ASK,
    Provide,
    look_up,
    named,
    provide,
)
from tests.unit.agent.files import Files, deletes
from tests.unit.agent.runs import call_turn, text_turn
from tests.unit.telemetry.traces import Traces, attributes, parent_of

from hayrunner.telemetry import names
from hayrunner.telemetry.tracer import stop_tracing
from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import Overloaded, UnknownAgent
from hayrunner_contracts.otel import OpenTelemetryTracing
from hayrunner_contracts.testing import eventually

__all__ = ["provide"]

SEND, PROCESS = "send agents.default.support.requests", "process agents.default.support.requests"
REQUESTER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
REQUESTER_TRACE, REQUESTER_SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


@pytest.fixture
def traces() -> Iterator[Traces]:
    caught = Traces()
    caught.start()
    yield caught
    stop_tracing()
    caught.close()


@pytest.fixture
async def client(nc: Client, traces: Traces) -> AsyncIterator[RunClient]:
    async with RunClient(nc, tracing=OpenTelemetryTracing(traces.provider)) as client:
        yield client


def trace_ids(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in spans if span.context is not None}


def path_of(traces: Traces, span: ReadableSpan) -> list[str]:
    """The names from a span up to its root."""
    found, above = [span.name], parent_of(span, traces.spans)
    while above is not None:
        found.append(above.name)
        above = parent_of(above, traces.spans)
    return found


async def ended(traces: Traces, count: int, start: str = "process") -> list[ReadableSpan]:
    """The spans of attempts, once there are so many: a span ends after its run's result is out."""
    await eventually(lambda: len(traces.named(start)) >= count, what=f"{count} spans {start}")
    return traces.named(start)


async def test_a_requester_a_worker_a_tool_and_a_subagent_elsewhere_are_one_trace(
    provide: Provide, serving: Serving, client: RunClient, traces: Traces
) -> None:
    _, parent = await provide([ASK, text_turn("It is blue.")])
    _, child = await provide([call_turn(("look_up", {"name": "tea"})), text_turn("Blue")])
    await serving(named(parent, "support", subagents=["researcher"]))
    await serving(named(child, "researcher", tools=[look_up]))

    with traces.provider.get_tracer("shop").start_as_current_span("POST /orders"):
        answer = await client.run("support", "What colour?", tools=True)

    assert answer == "It is blue."
    await ended(traces, 2)
    assert len(trace_ids(traces.spans)) == 1
    assert path_of(traces, traces.one("execute_tool look_up")) == [
        "execute_tool look_up",
        "invoke_agent researcher",
        "process agents.default.researcher.requests",
        "send agents.default.researcher.requests",
        "execute_tool researcher",
        "invoke_agent support",
        PROCESS,
        SEND,
        "POST /orders",
    ]
    assert len(traces.named("chat")) == 4
    assert not any(span.links for span in traces.spans)


async def test_the_spans_of_a_request_name_its_queue_and_no_subject_of_a_run(
    serve: Serve, client: RunClient, traces: Traces
) -> None:
    await serve(ScriptedAgent())

    handle = await client.submit("support", "sentinel", metadata={"a": "sentinel"})
    await handle.result(timeout=10)

    (process,), send = await ended(traces, 1), traces.one("send")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    shared = {
        names.MESSAGING_SYSTEM: "nats",
        names.DESTINATION_NAME: "agents.default.support.requests",
        names.DESTINATION_TEMPLATE: "agents.{namespace}.{agent}.requests",
        names.MESSAGE_ID: handle.message_id,
    }
    sent = attributes(send)
    assert sent.pop(names.MESSAGE_BODY_SIZE) > 0
    assert sent == {
        **shared,
        names.MESSAGING_OPERATION_NAME: "send",
        names.MESSAGING_OPERATION_TYPE: "send",
    }
    processed = attributes(process)
    assert 0 <= processed.pop(names.QUEUE_WAIT) < 30
    assert processed == {
        **shared,
        names.MESSAGING_OPERATION_NAME: "process",
        names.MESSAGING_OPERATION_TYPE: "process",
        names.ATTEMPT: 1,
        names.DELIVERY: 1,
        names.RUN_STATUS: "completed",
        names.OUTCOME: "done",
    }
    assert not any("sentinel" in told or "runs.default" in told for told in traces.texts())


async def test_an_attempt_after_the_first_is_a_trace_of_its_own_with_links(
    serve: Serve, requester: Requester, traces: Traces
) -> None:
    release = asyncio.Event()

    async def wait(session: Session) -> str:
        await release.wait()
        return "done"

    first = ScriptedAgent(script=wait)
    worker = await serve(first, drain_timeout_s=0)
    await requester.js.publish(
        "agents.default.support.requests",
        b'{"message_id":"01981a60-0000-7000-8000-00000000000a","prompt":"hi"}',
        headers={"traceparent": REQUESTER, "tracestate": "a=b"},
    )
    await eventually(lambda: len(first.started) == 1)

    worker.stop()
    await worker.shutdown()
    release.set()
    await serve(ScriptedAgent())
    await requester.ended("01981a60-0000-7000-8000-00000000000a")

    one, two = await ended(traces, 2)
    assert one.context is not None
    assert two.context is not None
    assert one.parent is not None
    assert (one.parent.trace_id, one.parent.span_id) == (REQUESTER_TRACE, REQUESTER_SPAN)
    assert one.context.trace_state.get("a") == "b"
    assert attributes(one)[names.OUTCOME] == "handed_back"
    assert one.status.status_code is StatusCode.UNSET
    assert not one.links
    assert two.parent is None
    assert two.context.trace_id != REQUESTER_TRACE
    told = attributes(two)
    assert (told[names.ATTEMPT], told[names.DELIVERY]) == (2, 2)
    links = [(link.context.span_id, dict(link.attributes or {})) for link in two.links]
    assert links == [
        (REQUESTER_SPAN, {names.LINK_TO: "requester"}),
        (one.context.span_id, {names.LINK_TO: "earlier attempt"}),
    ]


async def test_a_request_without_a_context_begins_a_trace(
    serve: Serve, requester: Requester, traces: Traces
) -> None:
    await serve(ScriptedAgent())
    await requester.ended(await requester.publish())

    (process,) = await ended(traces, 1)
    assert process.parent is None
    assert not process.links


@pytest.mark.parametrize("broken", ["", "00-xyz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_context_that_cannot_be_read_is_none(
    serve: Serve, requester: Requester, traces: Traces, broken: str
) -> None:
    await serve(ScriptedAgent())
    data = b'{"message_id":"01981a60-0000-7000-8000-00000000000a","prompt":"hi"}'
    headers = {"traceparent": broken or "-", "tracestate": "§"}
    await requester.js.publish("agents.default.support.requests", data, headers=headers)

    await requester.ended("01981a60-0000-7000-8000-00000000000a")

    (process,) = await ended(traces, 1)
    assert process.parent is None


async def test_a_request_that_nobody_can_run_has_its_code(
    serve: Serve, requester: Requester, traces: Traces
) -> None:
    await serve(ScriptedAgent())
    message_id = "01981a60-0000-7000-8000-00000000000a"
    await requester.publish_raw(
        b'{"message_id":"01981a60-0000-7000-8000-00000000000a","prompt":5,"x":"sentinel"}'
    )
    await requester.ended(message_id)

    (process,) = await ended(traces, 1)
    assert attributes(process)[names.ERROR_TYPE] == "invalid_request"
    assert attributes(process)[names.RUN_STATUS] == "failed"
    assert process.status.status_code is StatusCode.ERROR
    assert process.status.description is None
    assert not any("sentinel" in told for told in traces.texts())


async def test_a_request_for_an_agent_nobody_serves_does_not_name_it(
    serve: Serve, requester: Requester, traces: Traces
) -> None:
    await serve(ScriptedAgent())
    data = b'{"message_id":"01981a60-0000-7000-8000-00000000000a","prompt":"hi"}'
    await requester.publish_raw(data, agent="sentinel")
    await requester.ended("01981a60-0000-7000-8000-00000000000a", timeout=30)

    (process,) = await ended(traces, 1)
    assert process.name == "process agents._OTHER.requests"
    assert not any("sentinel" in told for told in traces.texts())


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_direct_request_is_one_trace_too(
    provide: Provide, serving: Serving, client: RunClient, traces: Traces, streamed: bool
) -> None:
    _, generator = await provide([text_turn("Hi")])
    await serving(named(generator, "support"))

    if streamed:
        _ = [event async for event in client.ask_stream("support", "hi")]
    else:
        await client.ask("support", "hi")

    (process,) = await ended(traces, 1)
    assert path_of(traces, traces.one("chat")) == [
        "chat m",
        "invoke_agent support",
        "process agents.default.support.ask",
        "send agents.default.support.ask",
    ]
    assert attributes(process)[names.OUTCOME] == "done"


async def test_a_direct_request_that_is_refused_has_its_code(
    serve: Serve, client: RunClient, traces: Traces
) -> None:
    worker = await serve(ScriptedAgent(), concurrency=1)
    gate = asyncio.Event()

    async def wait(session: Session) -> str:
        await gate.wait()
        return ""

    worker.registry.get("support").script = wait  # type: ignore[attr-defined] # the scripted one
    first = asyncio.create_task(client.ask("support", "hi"))
    await eventually(lambda: worker.running == 1)
    with pytest.raises(Overloaded):
        await client.ask("support", "hi")
    gate.set()
    await first

    refused, done = sorted(await ended(traces, 2), key=lambda span: span.end_time or 0)
    assert attributes(refused)[names.ERROR_TYPE] == "overloaded"
    assert attributes(done)[names.OUTCOME] == "done"


async def test_a_publish_that_fails_has_its_code(
    serve: Serve, client: RunClient, traces: Traces
) -> None:
    await serve(ScriptedAgent())
    with pytest.raises(UnknownAgent):
        await client.ask("nobody", "sentinel")

    span = traces.one("send")
    assert attributes(span)[names.ERROR_TYPE] == "unknown_agent"
    assert span.status.status_code is StatusCode.ERROR
    assert not span.events
    assert not any("sentinel" in told for told in traces.texts())


async def test_context_travels_and_baggage_and_headers_on_events_do_not(
    provide: Provide, serving: Serving, client: RunClient, nc: Client, traces: Traces
) -> None:
    seen: dict[str, dict[str, str]] = {}

    async def note(message: Msg) -> None:
        seen.setdefault(message.subject.rpartition(".")[2], {}).update(message.headers or {})

    for subject in ("agents.>", "runs.>"):
        await nc.subscribe(subject, cb=note)
    _, generator = await provide([text_turn("Hi")])
    await serving(named(generator, "support"))

    token = context.attach(baggage.set_baggage("who", "sentinel"))
    try:
        await client.run("support", "hi", record_content_telemetry=True)
    finally:
        context.detach(token)

    await ended(traces, 1)
    assert set(seen["requests"]) == {"Nats-Msg-Id", "traceparent"}
    # Those of the last event, by which it is stored once.
    assert all(name.startswith("Nats-") for name in seen["events"])
    assert "sentinel" not in str(seen)


async def test_the_context_that_a_caller_sends_along_is_the_one_that_counts(
    serve: Serve, client: RunClient, traces: Traces
) -> None:
    await serve(ScriptedAgent())
    await client.run("support", "hi", headers={"traceparent": REQUESTER})

    (process,) = await ended(traces, 1)
    assert process.parent is not None
    assert process.parent.span_id == REQUESTER_SPAN


async def test_a_client_that_is_not_told_to_trace_sends_no_context(
    serve: Serve, nc: Client, traces: Traces
) -> None:
    await serve(ScriptedAgent())
    async with RunClient(nc) as client:
        await client.run("support", "hi")

    (process,) = await ended(traces, 1)
    assert process.parent is None
    assert traces.named("send") == []


def test_the_bus_is_not_asked_for_spans_where_nobody_traces() -> None:
    from hayrunner.telemetry import bus

    first: Any = bus.attempt_span("a", {}, message_id=None)
    assert first is bus.attempt_span("b", {"traceparent": REQUESTER}, message_id="x")
    assert bus.attempt_traceparent() is None


@pytest.mark.parametrize("nats_server", ["process"], indirect=True)
async def test_a_run_that_waited_for_a_person_goes_on_in_a_trace_that_leads_back(
    serve_files: ServeFiles, client: RunClient, files: Files, traces: Traces
) -> None:
    await serve_files([deletes("/a"), text_turn("done")], {"park_after_s": 0.05})
    run = await client.submit("support", "hi")
    (waited,) = await ended(traces, 1)

    await run.approve("call_0")
    result = await run.result(timeout=15)

    assert result.status == "completed"
    assert files.done == ["delete /a"]
    first, second = await ended(traces, 2)
    assert first is waited
    assert first.context is not None
    assert second.parent is None
    led_to = [dict(link.attributes or {})[names.LINK_TO] for link in second.links]
    assert led_to == ["requester", "earlier attempt"]
    assert second.links[1].context.span_id == first.context.span_id
    assert attributes(first)[names.OUTCOME] == "parked"
    begun, gone_on = traces.named("invoke_agent")
    assert attributes(begun)[names.OUTCOME] == "parked"
    assert attributes(gone_on)[names.RUN_STATUS] == "completed"
    for span in (first, begun):
        assert span.status.status_code is StatusCode.UNSET
        assert names.ERROR_TYPE not in attributes(span)
    # What was decided in between is done once, in the attempt that did it.
    assert path_of(traces, traces.one("execute_tool")) == [
        "execute_tool delete",
        "invoke_agent support",
        PROCESS,
    ]
