"""The log: enough to find a failure, nothing of what anybody wrote."""

import asyncio
import json
import logging
from collections.abc import MutableMapping
from typing import Any

import pytest
from tests.integration.worker.conftest import Requester, Serve
from tests.integration.worker.scripted import ScriptedAgent, Session
from tests.unit.telemetry.conftest import traces
from tests.unit.telemetry.fresh_logs import SetUp, set_up
from tests.unit.telemetry.traces import Traces

from hayrunner_contracts.testing import eventually

__all__ = ["set_up", "traces"]


async def test_a_failure_is_logged_by_its_ref_with_type_and_place_and_without_its_text(
    serve: Serve, requester: Requester, log: list[MutableMapping[str, Any]]
) -> None:
    async def fail(session: Session) -> str:
        raise RuntimeError("secret of a customer") from ValueError("another secret")

    await serve(ScriptedAgent(script=fail))
    result = await requester.ended(await requester.publish(prompt="a secret prompt"))

    assert result.error is not None
    found = [entry for entry in log if entry.get("ref") == result.error.ref]
    assert len(found) == 1
    assert found[0]["error_type"] == "builtins.RuntimeError"
    assert found[0]["raised_at"].split(" < ")[0].endswith(" fail")
    assert "secret" not in repr(log)


async def test_every_record_of_a_run_says_whose_it_is_and_of_no_other(
    serve: Serve, requester: Requester, set_up: SetUp, capsys: pytest.CaptureFixture[str]
) -> None:
    both = asyncio.Barrier(2)
    plain = logging.getLogger("hayrunner.adapters.somewhere")

    async def speak(session: Session) -> str:
        name = session.message_id
        for _ in range(3):
            await both.wait()
            plain.info("of %s", name)
            await asyncio.gather(deeper(name), asyncio.to_thread(plain.info, "of %s", name))
        return "done"

    async def deeper(name: str) -> None:
        await both.wait()
        plain.info("of %s", name)
        logging.getLogger("a.library").warning("of somebody")

    set_up()
    worker = await serve(ScriptedAgent(script=speak))
    runs = [await requester.publish(), await requester.publish()]
    for message_id in runs:
        await requester.ended(message_id)
    await worker.shutdown()

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [line for line in lines if line["event"].startswith("of ")]
    assert len(told) == 2 * 3 * 4
    for line in told:
        assert line["event"] in (f"of {line['message_id']}", "of somebody")
        assert (line["agent"], line["attempt"]) == ("support", 1)
    assert {line["message_id"] for line in told} == {*runs}
    for event in ("attempt begun", "run ended"):
        assert {line["message_id"] for line in lines if line["event"] == event} == {*runs}
    [ended] = [line for line in lines if line["event"] == "worker ended"]
    assert not {"message_id", "attempt"} & ended.keys()


async def test_records_of_a_direct_run_say_whose_they_are(
    serve: Serve, requester: Requester, set_up: SetUp, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(session: Session) -> str:
        raise RuntimeError("secret")

    set_up()
    await serve(ScriptedAgent(script=fail))
    message_id = "01981a60-0000-7000-8000-00000000000a"
    request = {"prompt": "a secret prompt", "message_id": message_id}
    await requester.nc.request(
        "agents.default.support.ask", json.dumps(request).encode(), timeout=5
    )

    printed = capsys.readouterr().err
    [failed] = [line for text in printed.splitlines() if "ref" in (line := json.loads(text))]
    assert (failed["message_id"], failed["agent"], failed["attempt"]) == (message_id, "support", 1)
    assert "secret" not in printed


async def test_records_of_a_traced_run_have_the_ids_of_its_span(
    serve: Serve,
    requester: Requester,
    traces: Traces,
    set_up: SetUp,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def speak(session: Session) -> str:
        logging.getLogger("a.library").warning("inside")
        return "done"

    set_up()
    await serve(ScriptedAgent(script=speak))
    message_id = await requester.publish()
    await requester.ended(message_id)
    await eventually(lambda: traces.named("process "), what="the span of the attempt")

    context = traces.one("process ").context
    assert context is not None
    expected = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for event in ("attempt begun", "inside", "run ended"):
        [line] = [line for line in lines if line["event"] == event]
        assert (line["trace_id"], line["span_id"]) == expected
        assert line["message_id"] == message_id
