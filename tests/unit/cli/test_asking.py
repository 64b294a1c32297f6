"""From flags to a request, checked before anything is sent."""

import io
import sys
from typing import Any

import pytest

from hayrunner.cli.asking import Question, read_prompt
from hayrunner.errors import ConfigurationError
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.options import NamedTool


def question(*options: str, prompt: str = "hi", **given: Any) -> Question:
    return Question.of(
        "support",
        prompt,
        mode="stream",
        tools=False,
        timeout_s=given.pop("timeout_s", None),
        given=given,
        options=options,
    )


def test_flags_that_were_not_given_are_not_sent() -> None:
    asked = question(max_turns=None, thread_id="t1", temperature=0.0)
    assert asked.arguments == {
        "thread_id": "t1",
        "temperature": 0.0,
        "message_id": asked.message_id,
    }


def test_a_tool_choice_that_is_no_keyword_is_a_tools_name() -> None:
    assert question(tool_choice="required").arguments.get("tool_choice") == "required"
    named = question(tool_choice="find_order").arguments.get("tool_choice")
    assert named == NamedTool(name="find_order")


def test_any_option_can_be_given_as_json_and_null_clears() -> None:
    asked = question("max_turns=3", "preamble=null", 'merge_params={"top_p": 0.5}')
    assert asked.arguments.get("max_turns") == 3
    assert asked.arguments.get("preamble", "absent") is None
    assert asked.arguments.get("merge_params") == {"top_p": 0.5}


def test_a_timeout_is_the_runs_too() -> None:
    assert question(timeout_s=7.5).arguments.get("timeout_s") == 7.5


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("max_turns", "takes name=json"),
        ("=3", "takes name=json"),
        ("preamble=hello", "text needs quotes"),
        ("max_turn=3", "did you mean 'max_turns'"),
    ],
)
def test_an_option_that_cannot_be_read_says_how_it_could(option: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        question(option)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_turns": -1}, "options.max_turns"),
        ({"thread_id": "a b"}, "thread_id"),
        ({"prompt": ""}, "prompt"),
        ({"timeout_s": 0.0}, "timeout_s"),
    ],
)
def test_what_a_worker_would_refuse_is_refused_here(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        question(**given)
    assert caught.value.field == field


class _Input(io.TextIOWrapper):
    def __init__(self, data: bytes, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("given", [None, "-"])
def test_a_prompt_can_be_piped_in(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.setattr(sys, "stdin", _Input("über \n".encode(), is_terminal=False))
    assert read_prompt(given) == "über"


def test_a_missing_prompt_in_a_terminal_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Input(b"", is_terminal=True))
    with pytest.raises(ConfigurationError, match="a prompt is missing"):
        read_prompt(None)
