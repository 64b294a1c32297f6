"""What a record may hold, and who may hold more."""

import json
import logging
import pickle
import warnings
from typing import Any

import pytest
import structlog
from tests.unit.telemetry.fresh_logs import SetUp, set_up

from hayrunner.telemetry.logs import cause_of, get_logger, set_up_logs

__all__ = ["set_up"]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    return read


def test_a_record_of_ours_has_event_level_logger_time_and_its_fields(
    set_up: SetUp, printed: Any
) -> None:
    set_up()
    get_logger("hayrunner.test").info("run ended", outcome="completed")

    [line] = printed()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "run ended",
        "level": "info",
        "logger": "hayrunner.test",
        "outcome": "completed",
    }


def test_our_plain_records_keep_their_arguments(set_up: SetUp, printed: Any) -> None:
    set_up()
    logging.getLogger("hayrunner.adapters.loop").warning("tool %s failed", "add")
    logging.getLogger("hayrunner_contracts.client").warning("%s times", 3)

    assert [line["event"] for line in printed()] == ["tool add failed", "3 times"]


def test_an_exception_in_a_record_of_ours_is_its_type_and_place(
    set_up: SetUp, printed: Any
) -> None:
    set_up()
    try:
        raise ValueError("secret") from KeyError("secret")
    except ValueError:
        get_logger("hayrunner.test").error("it failed", exc_info=True)
        logging.getLogger("hayrunner.test").exception("it failed")

    lines = printed()
    assert "secret" not in repr(lines)
    assert [line["error_type"] for line in lines] == ["builtins.ValueError"] * 2
    assert all("test_log_records.py" in line["raised_at"] for line in lines)


def test_the_form_for_terminals_shows_the_same(
    set_up: SetUp, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(form="console")
    get_logger("hayrunner.test").warning("run ended", outcome="failed")
    logging.getLogger("a.library").warning("%s was said", "secret")
    logging.getLogger("a.library").warning(f"{'secret'} was said")

    ours, literal, composed = capsys.readouterr().err.splitlines()
    assert "run ended" in ours
    assert "outcome=failed" in ours
    assert "%s was said" in literal
    assert "(text withheld)" in composed
    assert "secret" not in literal + composed


def test_levels_below_the_one_set_are_not_shown(set_up: SetUp, printed: Any) -> None:
    set_up(level="WARNING")
    get_logger("hayrunner.test").info("run ended")
    logging.getLogger("hayrunner.test").debug("a step")
    get_logger("hayrunner.test").warning("shown")

    assert [line["event"] for line in printed()] == ["shown"]


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("DEBUG", ["haystack.a"] * 3 + ["httpx.a"] + ["a.library"] * 3),
        ("INFO", ["haystack.a", "httpx.a", "a.library", "a.library"]),
        ("WARNING", ["haystack.a", "httpx.a", "a.library"]),
        ("ERROR", []),
    ],
)
def test_libraries_that_talk_of_every_step_are_quiet_below_a_warning(
    set_up: SetUp, printed: Any, level: str, shown: list[str]
) -> None:
    set_up(level=level)
    for name in ("haystack.a", "httpx.a", "a.library"):
        for least in (logging.WARNING, logging.INFO, logging.DEBUG):
            logging.getLogger(name).log(least, "a step")

    assert [line["logger"] for line in printed()] == shown


def test_loggers_that_an_operator_trusts_keep_text_and_arguments_but_no_exceptions(
    set_up: SetUp, printed: Any
) -> None:
    set_up(trusted=["shop"])
    try:
        raise ValueError("secret")
    except ValueError:
        logging.getLogger("shop.tools").exception("order %s is not there", 7)
    structlog.get_logger("shop").info("asked", order=7)
    logging.getLogger("shopping").info("order %s", 7)

    [plain, structured, other] = printed()
    assert plain["event"] == "order 7 is not there"
    assert plain["error_type"] == "builtins.ValueError"
    assert (structured["event"], structured["order"]) == ("asked", 7)
    assert other["event"] == "order %s"
    assert "secret" not in repr(plain)


def test_setting_up_again_does_not_wrap_twice_and_can_withdraw_trust(
    set_up: SetUp, printed: Any
) -> None:
    set_up(trusted=["shop"])
    first = logging.getLogRecordFactory()
    set_up()
    logging.getLogger("shop").info("order %s", 7)

    [line] = printed()
    assert line["event"] == "order %s"
    assert getattr(logging.getLogRecordFactory(), "plain", None) is getattr(first, "plain", 0)


def test_a_handler_of_somebody_else_gets_a_reduced_record_that_travels(set_up: SetUp) -> None:
    set_up()
    seen: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    logger = logging.getLogger("a.library.kept")
    logger.addHandler(Kept())
    try:
        raise ValueError("secret")
    except ValueError:
        logger.exception("%s", "secret", stack_info=True, extra={"prompt": "secret"})

    [record] = seen
    assert (record.args, record.exc_info, record.exc_text, record.stack_info) == (
        (),
        None,
        None,
        None,
    )
    assert getattr(record, "prompt", None) == "(text withheld)"
    assert "secret" not in repr(pickle.loads(pickle.dumps(record)).__dict__)


def test_a_warning_is_told_by_its_category_and_place(set_up: SetUp, printed: Any) -> None:
    set_up()
    warnings.simplefilter("always")
    warnings.warn("strange: secret", UserWarning, stacklevel=1)

    [line] = printed()
    assert line["warning"] == "builtins.UserWarning"
    assert "test_log_records.py:" in line["place"]
    assert "secret" not in repr(line)


def test_handlers_that_libraries_attach_are_taken_away(set_up: SetUp) -> None:
    logger = logging.getLogger("haystack")
    before = logger.handlers[:]
    logger.addHandler(logging.NullHandler())
    set_up()

    assert logger.handlers == []
    logger.handlers = before


def test_the_cause_of_an_exception_is_its_type_and_the_innermost_places() -> None:
    def fail() -> None:
        raise ValueError("secret")

    with pytest.raises(ValueError, match="secret") as caught:
        fail()
    cause = cause_of(caught.value)
    assert cause["error_type"] == "builtins.ValueError"
    assert cause["raised_at"].split(" < ")[0].endswith(" fail")
    assert "secret" not in repr(cause)


def test_nothing_is_changed_in_a_process_that_does_not_set_logs_up() -> None:
    # A worker inside of somebody's application leaves that application's logging alone.
    assert logging.getLogRecordFactory() is logging.LogRecord
    assert callable(set_up_logs)
