"""Threads on a terminal."""

import json

import pytest

from hayrunner.cli.thread_views import parse_rating, print_list, print_thread
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.examples import THREADS
from hayrunner_contracts.messages import ChatMessage, ToolCall
from hayrunner_contracts.threads import Thread, ThreadInfo, ThreadMessages

CALL = ToolCall(tool_name="find", arguments={"order": 7}, id="1")
AT = "2026-01-02T03:04:05.678Z"


@pytest.mark.parametrize(
    ("text", "rating"), [("up", "up"), ("down", "down"), ("4.5", 4.5), ("-1", -1.0), ("none", None)]
)
def test_a_rating_is_a_thumb_a_number_or_none(text: str, rating: object) -> None:
    assert parse_rating(text) == rating


def test_any_other_rating_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="up, down, a number, or none"):
        parse_rating("great")


def test_a_thread_is_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    said = ThreadMessages(
        at=AT,
        message_id="m",
        messages=[
            ChatMessage.user("hi\x1b[2J"),
            ChatMessage.assistant("looking", tool_calls=[CALL]),
            ChatMessage.tool("x" * 500, origin=CALL, error=True),
        ],
    )
    print_thread(
        Thread(thread_id="t", created_at=AT, updated_at=AT, title="T\x07", log=[said]),
        as_json=False,
    )
    out = capsys.readouterr().out
    assert "t · T\n" in out
    assert "user: hi[2J\n" in out
    assert 'assistant: looking\n  → find {"order":7}\n' in out
    assert f"  ✗ find {'x' * 400} …\n" in out


def test_a_list_as_json_has_one_thread_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    thread = THREADS["thread"]
    assert isinstance(thread, Thread)
    info = ThreadInfo(**{name: getattr(thread, name) for name in ThreadInfo.__struct_fields__})
    print_list([info, info], as_json=True)
    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["thread_id"] for line in lines] == ["thread-7"] * 2
    print_list([info], as_json=False)
    assert "thread-7  1 run, 2 messages  Order 7" in capfd.readouterr().out
