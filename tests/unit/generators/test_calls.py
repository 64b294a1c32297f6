"""Tool calls put together from what providers really send."""

from typing import Any

import msgspec
import pytest
from haystack.dataclasses import ToolCall, ToolCallDelta

from hayrunner.generators.calls import UNNAMED_TOOL, CallAssembler, tool_call_of
from hayrunner.generators.wire import FunctionPart, ToolCallPart


def part(
    name: str | None = None,
    arguments: Any = None,
    *,
    index: int | None = 0,
    id: str | None = None,
) -> ToolCallPart:
    return ToolCallPart(index=index, id=id, function=FunctionPart(name=name, arguments=arguments))


def assembled(*parts: ToolCallPart) -> tuple[list[ToolCall], list[ToolCallDelta]]:
    """The calls and the deltas, after checking that the deltas alone tell the same."""
    calls = CallAssembler()
    deltas = [delta for each in parts if (delta := calls.add(each))] + calls.close()
    told: dict[int, tuple[str | None, str | None, str]] = {}
    for delta in deltas:
        first = delta.index not in told
        assert first == (delta.id is not None) == (delta.tool_name is not None)
        id, name, text = told.get(delta.index, (delta.id, delta.tool_name, ""))
        told[delta.index] = (id, name, text + (delta.arguments or ""))
    assert list(told) == list(range(len(told)))
    finished = calls.tool_calls()
    assert [tool_call_of(id or "", name or "", text) for id, name, text in told.values()] == (
        finished
    )
    assert len({call.id for call in finished}) == len(finished)
    return finished, deltas


def names_and_arguments(*parts: ToolCallPart) -> list[tuple[str, dict[str, Any]]]:
    return [(call.tool_name, call.arguments) for call in assembled(*parts)[0]]


A1 = ("add", {"a": 1})
A2 = ("add", {"a": 2})


def test_interleaved_deltas_of_two_calls_are_told_apart_by_index() -> None:
    assert names_and_arguments(
        part("add", "", index=0, id="A"),
        part("add", "", index=1, id="B"),
        part(None, '{"a"', index=0),
        part(None, '{"a"', index=1),
        part(None, ":1}", index=0),
        part(None, ":2}", index=1),
    ) == [A1, A2]


def test_a_missing_id_is_minted_and_an_empty_one_later_changes_nothing() -> None:
    calls, deltas = assembled(part("add", '{"a"'), part(None, ":1}", id=""))
    assert calls == [ToolCall("add", {"a": 1}, calls[0].id)]
    assert (calls[0].id or "").startswith("call_")
    assert [delta.id for delta in deltas] == [calls[0].id, None]


def test_an_id_that_comes_late_does_not_replace_the_one_given_out() -> None:
    calls, _ = assembled(part("add", '{"a"'), part(None, ":1}", id="late"))
    assert [(call.arguments, call.id == "late") for call in calls] == [({"a": 1}, False)]


def test_a_different_id_at_the_same_index_is_a_new_call() -> None:
    calls, _ = assembled(part("add", '{"a":1}', id="A"), part("add", '{"a":2}', id="B"))
    assert [(call.id, call.arguments) for call in calls] == [("A", {"a": 1}), ("B", {"a": 2})]


def test_deltas_that_return_to_an_earlier_id_at_one_index_find_its_call() -> None:
    assert names_and_arguments(
        part("add", '{"a":', id="A"),
        part("add", '{"a":', id="B"),
        part(None, "1}", id="A"),
        part(None, "2}", id="B"),
    ) == [A1, A2]


def test_an_id_made_up_anew_for_every_delta_is_one_call() -> None:
    calls, _ = assembled(
        part("add", "", id="x1"), part(None, '{"a":', id="x2"), part(None, "1}", id="x3")
    )
    assert [(call.id, call.arguments) for call in calls] == [("x1", {"a": 1})]


def test_the_same_id_in_every_delta_is_one_call() -> None:
    assert names_and_arguments(part("add", '{"a"', id="A"), part("add", ":1}", id="A")) == [A1]


def test_the_same_id_at_another_index_is_a_call_of_its_own() -> None:
    calls, _ = assembled(
        part("add", '{"a":', index=0, id="A"),
        part("add", '{"a":', index=1, id="A"),
        part(None, "1}", index=0, id="A"),
        part(None, "2}", index=1, id="A"),
    )
    assert [call.arguments for call in calls] == [{"a": 1}, {"a": 2}]
    assert calls[0].id == "A"


def test_a_name_in_every_delta_is_one_call_and_one_name() -> None:
    assert names_and_arguments(part("add", '{"a"'), part("add", ":1"), part("add", "}")) == [A1]


def test_calls_without_ids_at_one_index_are_told_apart() -> None:
    assert names_and_arguments(part("add", '{"a":1}'), part("add", '{"a":2}')) == [A1, A2]
    assert names_and_arguments(part("now"), part("add", '{"a":1}')) == [("now", {}), A1]
    assert names_and_arguments(
        part("add", '{"a":'), part(None, "1}"), part("now", "{}"), part("now", "")
    ) == [A1, ("now", {})]


def test_calls_without_index_are_told_apart_by_id() -> None:
    assert names_and_arguments(
        part("add", '{"a":', index=None, id="A"),
        part("add", '{"a":', index=None, id="B"),
        part(None, "1}", index=None, id="A"),
        part(None, "2}", index=None, id="B"),
    ) == [A1, A2]


def test_a_first_index_above_zero_counts_from_zero() -> None:
    _, deltas = assembled(part("add", "{}", index=1), part("now", "{}", index=2))
    assert [delta.index for delta in deltas] == [0, 1]


def test_a_name_that_comes_after_the_arguments_began_holds_the_call_back() -> None:
    calls, deltas = assembled(part(None, '{"a":', id="A"), part("add", "1}"))
    assert [(call.tool_name, call.arguments) for call in calls] == [A1]
    assert [(delta.tool_name, delta.arguments) for delta in deltas] == [("add", '{"a":1}')]


def test_a_call_without_a_name_is_kept() -> None:
    assert names_and_arguments(part(None, '{"a":1}', id="A")) == [(UNNAMED_TOOL, {"a": 1})]


def test_the_legacy_function_call_is_one_call() -> None:
    calls = CallAssembler()
    calls.add_legacy(FunctionPart(name="add", arguments='{"a":'))
    calls.add_legacy(FunctionPart(arguments="1}"))
    assert [(call.tool_name, call.arguments) for call in calls.tool_calls()] == [A1]


@pytest.mark.parametrize("nothing", ["", None, " \n", "null", "{}"])
def test_no_arguments_in_any_spelling_are_an_empty_object(nothing: str | None) -> None:
    assert names_and_arguments(part("now", nothing, id="A")) == [("now", {})]


def test_arguments_sent_as_an_object_are_taken() -> None:
    assert names_and_arguments(part("add", {"a": 1}, id="A")) == [A1]


@pytest.mark.parametrize(
    "raw", ['{"a":1,', "[1,2]", '"text"', "5", "{'a': 1}", "[" * 100_000, '{"a":1}{"a":2}']
)
def test_arguments_that_are_no_object_are_kept_as_an_invalid_call(raw: str) -> None:
    calls, _ = assembled(part("add", raw, id="A"))
    assert calls == [ToolCall("add", {}, "A", {"invalid_arguments": raw})]


def test_minted_ids_are_the_documented_shape() -> None:
    (call,), _ = assembled(part("now"))
    id = msgspec.convert(call.id, str)
    assert id.startswith("call_")
    assert len(id) == len("call_") + 32


def test_one_id_and_one_index_for_every_call_are_still_several_calls() -> None:
    assert names_and_arguments(part("add", '{"a":1}', id="A"), part("add", '{"a":2}', id="A")) == [
        A1,
        A2,
    ]


def test_an_empty_last_delta_with_a_new_id_opens_nothing() -> None:
    assert names_and_arguments(part("add", '{"a":1}', id="x1"), part(None, "", id="x2")) == [A1]
