"""The log: enough to find a failure, nothing of what anybody wrote."""

import json
import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from tests.integration.worker.conftest import Requester, Serve
from tests.integration.worker.scripted import ScriptedAgent, Session

from hayrunner.telemetry.logs import get_logger, set_up_logs


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


@pytest.fixture
def fresh_logs() -> Iterator[None]:
    """Logging and structlog as they are in a new process, and as they were afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.reset_defaults()
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    for name in ("haystack", "openai", "httpx", "httpcore", "aiohttp", "faststream", "nats"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_json_lines_have_level_logger_and_time(
    fresh_logs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs(form="json", level="INFO")
    get_logger("hayrunner.test").info("run ended", agent="support")

    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["agent"], line["level"]) == ("run ended", "support", "info")
    assert line["logger"] == "hayrunner.test"
    assert line["timestamp"].endswith("Z")


def test_other_libraries_do_not_print_what_they_were_given(
    fresh_logs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs(form="json", level="DEBUG")
    logging.getLogger("haystack.components.tools").error("Error invoking tool with secret")
    logging.getLogger("openai._base_client").info("HTTP Request: secret")
    logging.getLogger("faststream").warning("secret")
    try:
        raise RuntimeError("secret")
    except RuntimeError:
        logging.getLogger("somebody.else").exception("it failed")

    printed = capsys.readouterr().err
    assert "secret" not in printed
    line = json.loads(printed)
    assert line["error_type"] == "builtins.RuntimeError"
