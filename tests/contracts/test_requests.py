"""Good requests: what is read, what is made canonical, and when a run must have ended."""

import json
from typing import Any

import pytest
from msgspec import UNSET

from hayrunner_contracts.codec import (
    RequestLimits,
    check_request,
    deadline_of,
    decode_request,
    encode,
    peek_message_id,
)
from hayrunner_contracts.errors import InvalidRequest, PayloadTooLarge
from hayrunner_contracts.examples import FULL_REQUEST, REQUESTS
from hayrunner_contracts.messages import ChatMessage, ContentPart, ToolCall
from hayrunner_contracts.options import NamedTool, RunOptions
from hayrunner_contracts.requests import RunRequest

_UUID = "01981a60-0000-7000-8000-00000000000a"


def _read(**fields: Any) -> RunRequest:
    return decode_request(json.dumps(fields).encode())


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_survives_being_written_and_read(name: str) -> None:
    assert decode_request(encode(REQUESTS[name])) == REQUESTS[name]


def test_a_bare_prompt_is_a_request() -> None:
    request = _read(prompt="hi")
    assert (request.prompt, request.mode, request.tools) == ("hi", "stream", False)
    assert request.response_format is UNSET
    assert request.options == RunOptions()


def test_absent_null_and_a_value_are_three_things() -> None:
    assert _read(prompt="hi").options.preamble is UNSET
    assert _read(prompt="hi", options={"preamble": None}).options.preamble is None
    assert _read(prompt="hi", options={"preamble": ""}).options.preamble == ""
    assert _read(prompt="hi", response_format=None).response_format is None
    assert encode(RunRequest(prompt="hi", response_format=None)) == (
        b'{"prompt":"hi","response_format":null}'
    )


@pytest.mark.parametrize("form", [_UUID.upper(), _UUID.replace("-", ""), _UUID])
def test_a_message_id_is_made_canonical(form: str) -> None:
    assert _read(prompt="hi", message_id=form).message_id == _UUID


@pytest.mark.parametrize("form", ["1_" + _UUID[2:], _UUID.replace("-", "") + "--", _UUID + "0"])
def test_what_only_resembles_a_uuid_is_refused(form: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^message_id: "):
        _read(prompt="hi", message_id=form)


@pytest.mark.parametrize("choice", ["auto", "required", "none", None])
def test_tool_choices_are_words_or_null(choice: str | None) -> None:
    assert _read(prompt="hi", options={"tool_choice": choice}).options.tool_choice == choice


def test_a_tool_choice_can_name_a_tool() -> None:
    request = _read(prompt="hi", options={"tool_choice": {"name": "find_order"}})
    assert request.options.tool_choice == NamedTool(name="find_order")


def test_integers_of_64_bits_pass_unchanged() -> None:
    context = {"low": -(2**63), "high": 2**64 - 1}
    assert _read(prompt="hi", options={"tool_context": context}).options.tool_context == context


def test_text_outside_the_basic_plane_may_be_escaped() -> None:
    assert decode_request(rb'{"prompt": "\ud83d\ude00"}').prompt == "\N{GRINNING FACE}"


def test_nesting_up_to_the_limit_passes() -> None:
    inner: Any = 1
    for _ in range(61):
        inner = [inner]
    assert _read(prompt="[[[[{{{{" * 100, options={"tool_context": {"a": inner}})
    with pytest.raises(InvalidRequest, match="deeper than 64"):
        _read(prompt="hi", options={"tool_context": {"a": [[inner]]}})


def test_limits_can_be_set() -> None:
    data = b'{"prompt":"hello"}'
    assert decode_request(data, limits=RequestLimits(max_bytes=len(data)))
    with pytest.raises(PayloadTooLarge, match=r"has 18 bytes; at most 17 are allowed"):
        decode_request(data, limits=RequestLimits(max_bytes=len(data) - 1))


def test_a_depth_limit_beyond_the_interpreter_is_still_a_refusal() -> None:
    data = b'{"prompt":"hi","options":{"tool_context":{"a":' + b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        decode_request(data + b"}}}", limits=RequestLimits(max_depth=1_000_000))


def test_a_tool_message_may_answer_a_call_of_the_history() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    request = _read(
        messages=[{"role": "tool", "tool_call_id": "c1", "content": "3"}],
        options={
            "history": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ]
        },
    )
    origin = ToolCall(tool_name="f", arguments={"a": 1}, id="c1")
    assert request.messages == [ChatMessage.tool("3", origin=origin)]


def test_the_last_message_may_be_the_assistants() -> None:
    request = _read(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]
    )
    assert request.messages is not None
    assert request.messages[-1].role == "assistant"


def test_a_schema_with_references_into_itself_passes() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"type": ["object", "null"]}}}
    assert _read(prompt="hi", response_format=schema).response_format == schema


# --- requests built in Python


def test_a_request_built_in_python_is_held_against_the_same_rules() -> None:
    built = RunRequest(prompt="hi", message_id=_UUID.upper())
    assert check_request(built).message_id == _UUID
    assert check_request(FULL_REQUEST) == FULL_REQUEST


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "hi", "options": RunOptions(max_turns=-1)}, "options.max_turns"),
        ({"prompt": "hi", "thread_id": "a b"}, "thread_id"),
        ({"prompt": "hi", "options": {"max_tunrs": 1}}, "options.max_tunrs"),
        ({"messages": [ChatMessage(role="user", content=[])]}, "messages[0].content"),
        (
            {"messages": [ChatMessage(role="user", content=[ContentPart()])]},
            "messages[0].content[0]",
        ),
        ({"prompt": "hi", "options": RunOptions(tool_context={"a": object()})}, None),
        (
            {"prompt": "hi", "options": RunOptions(tool_context={"a": 2**70})},
            "options.tool_context.a",
        ),
        ({"prompt": "\ud800"}, None),
    ],
)
def test_a_wrong_request_built_in_python_is_refused(
    fields: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(RunRequest(**fields))
    assert caught.value.field == field


# --- the end of a run


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (RunRequest(prompt="hi"), None),
        (RunRequest(prompt="hi", options=RunOptions(deadline=None)), None),
        (RunRequest(prompt="hi", timeout_s=1.5), 101.5),
        (RunRequest(prompt="hi", deadline="1970-01-01T00:01:00Z"), 60.0),
        (RunRequest(prompt="hi", deadline="1970-01-01t00:01:00.5z"), 60.5),
        (RunRequest(prompt="hi", deadline="1970-01-01T01:01:00+01:00"), 60.0),
        (RunRequest(prompt="hi", options=RunOptions(deadline="1970-01-01T00:00:01Z")), 1.0),
    ],
)
def test_a_deadline_is_seconds_since_the_epoch(
    request_: RunRequest, expected: float | None
) -> None:
    assert deadline_of(check_request(request_), 100.0) == expected


@pytest.mark.parametrize(
    "deadline",
    [
        "",
        "tomorrow",
        "2026-01-31",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00+25:00",
        "20260131T12Z",
    ],
)
def test_a_deadline_that_is_no_time_with_a_zone_is_refused(deadline: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^options\.deadline: must be a time with a zone"):
        _read(prompt="hi", options={"deadline": deadline})


# --- the id of a request that was refused


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (f'{{"message_id": "{_UUID}", "promt": "hi"}}', _UUID),
        (f'{{"message_id": "{_UUID.upper()}", "prompt": ', _UUID),
        (f'{{"a": [{{"message_id": "{_UUID[:-1]}b"}}], "message_id": "{_UUID}", ', _UUID),
        (f'{{"metadata": {{"message_id": "{_UUID}"}}, ', None),
        (f'{{"metadata": {{"message_id": "{_UUID}"}}}}', None),
        (f'{{"prompt": "\\"message_id\\": \\"{_UUID}\\"", ', None),
        (f'"message_id": "{_UUID}"', None),
        ('{"message_id": "7", "prompt": "hi"}', None),
        ('{"message_id": 7', None),
        (f'{{"message_id": "{_UUID}", "prompt": "{"x" * 2_000_000}"}}', _UUID),
        (f'{{"prompt": "{"x" * 2_000_000}", "message_id": "{_UUID}"}}', _UUID),
        (f'{{"message_id": "{_UUID}", "a": {"[" * 10_000}', _UUID),
        ("", None),
    ],
)  # fmt: skip
def test_the_id_of_a_refused_request_is_found_where_it_can_be(
    data: str, expected: str | None
) -> None:
    assert peek_message_id(data.encode()) == expected
