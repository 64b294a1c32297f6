"""Exit codes, and the one line that goes with them."""

import json
from collections.abc import Callable

import pytest
import typer

from hayrunner.cli.exits import ExitCode, Unreachable, finish, run, show_tracebacks
from hayrunner.errors import ConfigurationError, LossRefused
from hayrunner_contracts.errors import (
    ClientTimeout,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
    UnknownAgent,
)
from hayrunner_contracts.following import EventsLost


def code_of(work: Callable[[], ExitCode | None], *, as_json: bool = False) -> int:
    with pytest.raises(typer.Exit) as caught:
        finish(work, as_json=as_json)
    return caught.value.exit_code


def raising(error: BaseException) -> Callable[[], ExitCode | None]:
    def work() -> ExitCode | None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("no"), 2),
        (InvalidRequest("no"), 2),
        (UnknownAgent("no"), 2),
        (Unreachable("no"), 3),
        (ConnectionError("no"), 3),
        (ClientTimeout("no"), 4),
        (TimeoutError(), 4),
        (DeadlineExceeded("no"), 4),
        (ProviderFailed("no"), 1),
        (Overloaded("no"), 1),
        (EventsLost("no", first=1), 1),
        (ZeroDivisionError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_kind_of_failure_has_its_code(error: BaseException, code: int) -> None:
    assert code_of(raising(error)) == code


def test_changes_that_lose_data_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(raising(LossRefused(["one is lost", "two is lost"]))) == 2
    assert capsys.readouterr().err == "hayrunner: one is lost\nhayrunner: two is lost\n"


def test_a_failure_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code_of(raising(ProviderFailed("it\n  broke", ref="r1")))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hayrunner: provider_error: it broke (ref r1)\n")


def test_a_failure_is_json_where_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code_of(raising(ConfigurationError("no")), as_json=True)
    assert json.loads(capsys.readouterr().err) == {"error": "no", "exit_code": 2}


def test_the_unexpected_shows_its_type_alone_unless_it_is_debugged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code_of(raising(ZeroDivisionError("a secret")))
    assert capsys.readouterr().err == (
        "hayrunner: unexpected ZeroDivisionError; set HAYRUNNER_DEBUG=1 for the traceback\n"
    )
    show_tracebacks(True)
    try:
        with pytest.raises(ZeroDivisionError):
            finish(raising(ZeroDivisionError("a secret")))
    finally:
        show_tracebacks(False)


def test_a_coroutine_gives_its_code() -> None:
    async def work() -> ExitCode:
        return ExitCode.TIMED_OUT

    with pytest.raises(typer.Exit) as caught:
        run(work())
    assert caught.value.exit_code == 4
    assert code_of(lambda: None) == 0
