"""Whose a record is."""

import asyncio
import json
import logging
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from tests.unit.telemetry.fresh_logs import SetUp, set_up

from hayrunner.telemetry.log_fields import bind, bound
from hayrunner.telemetry.logs import get_logger

__all__ = ["set_up"]

OURS = get_logger("hayrunner.test")
PLAIN = logging.getLogger("hayrunner.adapters.test")
OTHERS = logging.getLogger("a.library")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    return read


def whose(line: dict[str, Any]) -> tuple[Any, Any, Any]:
    return line.get("message_id"), line.get("agent"), line.get("attempt")


def test_records_of_all_kinds_have_the_fields_that_are_bound(set_up: SetUp, printed: Any) -> None:
    set_up()
    with bound(agent="support"):
        OURS.info("before")
        bind(message_id="m-1", attempt=2)
        OURS.info("during")
        PLAIN.info("during")
        OTHERS.info("during")
        structlog.get_logger("a.library").info("during", message_id="m-9")
    OURS.info("after")

    before, *during, after = printed()
    assert whose(before) == (None, "support", None)
    assert [whose(line) for line in during] == [("m-1", "support", 2)] * 4
    assert whose(after) == (None, None, None)


def test_what_a_record_says_itself_stands(set_up: SetUp, printed: Any) -> None:
    set_up()
    with bound(message_id="m-1", agent="support"):
        OURS.info("told", message_id="m-2")

    assert whose(printed()[0]) == ("m-2", "support", None)


async def test_runs_at_once_keep_their_fields_apart_in_tasks_and_threads(
    set_up: SetUp, printed: Any
) -> None:
    set_up()

    async def run(name: str) -> None:
        with bound(message_id=name):
            for step in range(3):
                await asyncio.sleep(0)
                bind(attempt=step)
                PLAIN.info("of %s", name)
                await asyncio.gather(deeper(name), asyncio.to_thread(PLAIN.info, "of %s", name))

    async def deeper(name: str) -> None:
        await asyncio.sleep(0)
        OTHERS.info("in a task")
        PLAIN.info("of %s", name)

    await asyncio.gather(*(run(f"m-{number}") for number in range(20)))
    PLAIN.info("of nobody")

    lines = printed()
    told = [line for line in lines if line["event"].startswith("of m-")]
    assert len(told) == 20 * 9
    assert all(line["event"] == f"of {line['message_id']}" for line in told)
    assert all("message_id" in line for line in lines if line["logger"] == "a.library")
    assert whose(lines[-1]) == (None, None, None)


def test_an_agent_that_is_no_name_is_not_shown(set_up: SetUp, printed: Any) -> None:
    set_up()
    with bound(agent="what somebody wrote into a subject"):
        OURS.info("told")

    assert printed()[0]["agent"] == "_OTHER"


def test_what_an_agents_code_binds_for_structlog_is_not_shown(set_up: SetUp, printed: Any) -> None:
    set_up()
    with structlog.contextvars.bound_contextvars(user="secret"):
        OURS.info("told")

    assert "secret" not in repr(printed())


def test_records_inside_a_span_have_its_ids(set_up: SetUp, printed: Any) -> None:
    set_up()
    context = trace.SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False)
    with trace.use_span(trace.NonRecordingSpan(context)):
        OURS.info("inside")
        OTHERS.info("inside")
    OURS.info("outside")

    *inside, outside = printed()
    for line in inside:
        assert (line["trace_id"], line["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert "trace_id" not in outside


def test_what_is_told_while_garbage_is_collected_is_no_runs(set_up: SetUp, printed: Any) -> None:
    set_up()
    with bound(message_id="m-1"):
        logging.getLogger("asyncio").error("Task was destroyed but it is pending!")

    assert whose(printed()[0]) == (None, None, None)
