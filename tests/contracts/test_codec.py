"""Events and results are read leniently, commands strictly."""

from typing import Any

import msgspec
import pytest

from hayrunner_contracts.codec import decode_command, decode_event, decode_result, encode
from hayrunner_contracts.commands import Cancel, RunCommand
from hayrunner_contracts.errors import ContractError, InvalidRequest, PayloadTooLarge
from hayrunner_contracts.events import EVENT_TYPES, TextChunk, UnknownEvent
from hayrunner_contracts.examples import COMMANDS, EVENTS, RESULTS
from hayrunner_contracts.strict_json import RequestLimits


def test_there_is_an_example_of_every_event() -> None:
    assert set(EVENTS) == set(EVENT_TYPES)


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_survives_being_written_and_read(name: str) -> None:
    assert decode_event(encode(EVENTS[name])) == EVENTS[name]


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_survives_being_written_and_read(name: str) -> None:
    assert decode_result(encode(RESULTS[name])) == RESULTS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_survives_being_written_and_read(name: str) -> None:
    assert decode_command(encode(COMMANDS[name])) == COMMANDS[name]


def test_an_event_of_an_unknown_type_is_kept_as_it_came() -> None:
    raw = b'{"type": "tool_progress", "seq": 7, "percent": 50}'
    assert decode_event(raw) == UnknownEvent(type="tool_progress", seq=7, raw=raw)


def test_an_unknown_event_may_come_without_a_number() -> None:
    assert decode_event(b'{"type":"new"}').seq == 0


def test_unknown_fields_of_events_and_results_are_dropped() -> None:
    assert decode_event(b'{"type":"text_chunk","seq":1,"content":"a","new":{}}') == (
        TextChunk(seq=1, content="a")
    )
    result = decode_result(b'{"message_id":"1","agent":"a","status":"completed","new":1}')
    assert result.status == "completed"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "event: Input data was truncated"),
        (b"{", "event: Input data was truncated"),
        (b"[]", "event: Expected `object`"),
        (b"{}", "event: Object missing required field `type`"),
        (b'{"type":5}', r"event: Expected `str`, got `int` - at `\$.type`"),
        (b'{"type":"text_chunk","seq":1}', "text_chunk event: Object missing required field"),
        (b'{"type":"text_chunk","content":5}', r"text_chunk event: .* at `\$.content`"),
        (b'{"type":"new","seq":"1"}', r"event: .* at `\$.seq`"),
        (b'{"type":"data","data_type":"a","data":' + b"[" * 100_000, "event: nested too deeply"),
        (b'{"type":"text_chunk","content":"\xff"}', "event: Invalid UTF-8"),
    ],
)
def test_what_is_no_event_is_a_contract_error(data: bytes, message: str) -> None:
    with pytest.raises(ContractError, match=f"^not a valid {message}"):
        decode_event(data)


def test_a_contract_error_repeats_no_content() -> None:
    secret = "sesame-open"
    for data in (
        b'{"type":"message_end","finish_reason":"sesame-open"}',
        b'{"type":"text_chunk","content":["sesame-open"]}',
    ):
        with pytest.raises(ContractError) as caught:
            decode_event(data)
        assert secret not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"5", b"{}", b'{"message_id":"1","agent":"a","status":"x"}'])
def test_what_is_no_result_is_a_contract_error(data: bytes) -> None:
    with pytest.raises(ContractError, match=r"^not a valid result: "):
        decode_result(data)


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        (b"", None, "not valid JSON"),
        (b"[]", "command", "must be an object"),
        (b"{}", "type", "one of cancel, approve, deny, modify, say"),
        (b'{"type":"pause"}', "type", "must be one of cancel, approve, deny, modify, say"),
        (b'{"type":5}', "type", "must be a string"),
        (b'{"type":"cancel","reasn":"a"}', "reasn", "did you mean reason?"),
        (b'{"type":"cancel","reason":5}', "reason", "must be a string"),
        (b'{"type":"cancel","type":"say"}', "type", "given twice"),
        (b'{"type":"approve"}', "tool_call_id", "is missing"),
        (b'{"type":"approve","tool_call_id":""}', "tool_call_id", "must not be empty"),
        (b'{"type":"modify","tool_call_id":"a"}', "tool_input", "is missing"),
        (b'{"type":"modify","tool_call_id":"a","tool_input":"{}"}', "tool_input", "an object"),
        (b'{"type":"say","text":" "}', "text", "must not be empty"),
        (b'{"type":"say","text":"' + b"x" * 100_001 + b'"}', "text", "at most 100000"),
        (b'{"type":"cancel","reason":"' + b"x" * 1025 + b'"}', "reason", "at most 1024"),
        (b'{"type":"cancel","a":' + b"[" * 10_000, None, "nested deeper"),
    ],
)
def test_a_bad_command_is_refused_and_the_field_named(
    data: bytes, field: str | None, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_command(data)
    assert caught.value.field == field
    assert message in caught.value.message


def test_a_command_over_the_size_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(PayloadTooLarge):
        decode_command(b"x" * 900_001)
    assert decode_command(encode(Cancel()), limits=RequestLimits(max_bytes=17)) == Cancel()


def test_known_events_are_read_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the type of a known event was looked at apart")

    monkeypatch.setattr("hayrunner_contracts.codec._decoded", never)
    assert decode_event(b'{"type":"stream_end","seq":3}').seq == 3


def test_commands_are_frozen() -> None:
    command: RunCommand = Cancel(reason="a")
    with pytest.raises(AttributeError):
        command.reason = "b"  # pyright: ignore[reportAttributeAccessIssue]
    assert msgspec.json.encode(command) == b'{"type":"cancel","reason":"a"}'
