"""The offline generator: really streams, really calls tools, answers from their results."""

from typing import Any, Literal

import pytest
from haystack import default_from_dict
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import Tool, create_tool_from_function

from hayrunner.agent import Agent
from hayrunner.demo import MODEL_NAME, OfflineChatGenerator, Shop, demo_llm
from hayrunner.demo.planning import PlannedCall, plan
from hayrunner.demo.shop import delivery_date, find_order
from hayrunner.errors import ToolError
from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
from hayrunner_contracts.events import (
    MessageEnd,
    ModelCallEnd,
    StreamEvent,
    TextChunk,
    ToolExecutionCommitted,
    ToolInputChunk,
    ToolOutput,
)
from hayrunner_contracts.testing import assert_valid_stream


class QuickShop(Shop):
    def get_llm(self) -> Any:
        return OfflineChatGenerator(delay_s=0)


async def events_of(agent: Agent, prompt: str) -> list[StreamEvent]:
    events = [event async for event in agent.stream(prompt)]
    assert_valid_stream(events, is_numbered=False)
    return events


def text_of(events: list[StreamEvent]) -> str:
    return "".join(event.content for event in events if isinstance(event, TextChunk))


async def test_the_second_call_uses_what_the_first_returned_and_the_answer_uses_both() -> None:
    events = await events_of(QuickShop(), "Where is order 1042, and when does it arrive?")
    calls = [
        (event.tool_name, event.tool_input)
        for event in events
        if isinstance(event, ToolExecutionCommitted)
    ]
    assert calls == [
        ("find_order", {"order_number": 1042}),
        ("delivery_date", {"shipped_on": "2026-03-05", "country": "Germany"}),
    ]
    assert "a blue teapot" in text_of(events)
    assert "2026-03-09" in text_of(events)


async def test_text_comes_by_the_word_and_arguments_in_pieces() -> None:
    events = await events_of(QuickShop(), "order 7")
    chunks = [event for event in events if isinstance(event, TextChunk)]
    assert len(chunks) > 10
    assert all(len(chunk.content.split()) == 1 for chunk in chunks)
    assert sum(isinstance(event, ToolInputChunk) for event in events) > 4


async def test_usage_is_reported_for_every_call_and_the_model_is_named_for_what_it_is() -> None:
    events = await events_of(QuickShop(), "order 7")
    calls = [event for event in events if isinstance(event, ModelCallEnd)]
    assert [call.model for call in calls] == [MODEL_NAME] * 3
    end = next(event for event in events if isinstance(event, MessageEnd))
    assert end.usage is not None
    assert end.usage.total_tokens == sum(call.usage.total_tokens for call in calls if call.usage)


async def test_two_orders_are_looked_up_at_once() -> None:
    events = await events_of(QuickShop(), "Compare orders 7 and 2001.")
    first_step = [
        event.tool_input["order_number"]
        for event in events
        if isinstance(event, ToolExecutionCommitted) and event.step == 1
    ]
    assert first_step == [7, 2001]


async def test_an_order_that_is_not_there_is_said_to_be_not_there() -> None:
    events = await events_of(QuickShop(), "Where is order 9?")
    assert [event.is_error for event in events if isinstance(event, ToolOutput)] == [True]
    assert "There is no order 9." in text_of(events)


async def test_a_prompt_without_a_number_is_told_what_can_be_done() -> None:
    text = text_of(await events_of(QuickShop(), "Tell me a story."))
    assert "offline stand-in" in text
    assert "find_order needs order number" in text


async def test_the_answer_without_a_stream_is_the_streamed_one() -> None:
    shop = QuickShop()
    streamed = text_of(await events_of(shop, "order 7"))
    assert streamed == "Let me look that up." + await shop.run("order 7", tools=True)


async def test_max_tokens_cuts_the_answer() -> None:
    reply = (
        await OfflineChatGenerator(delay_s=0).run_async(
            [ChatMessage.from_user("hi")], generation_kwargs={"max_tokens": 3}
        )
    )["replies"][0]
    assert reply.text == "I am an"
    assert reply.meta["finish_reason"] == "length"


def test_it_runs_in_a_script_and_survives_serialization() -> None:
    generator = OfflineChatGenerator(delay_s=0, generation_kwargs={"max_tokens": 2})
    again = default_from_dict(OfflineChatGenerator, generator.to_dict())
    chunks: list[StreamingChunk] = []
    reply = again.run([ChatMessage.from_user("hi")], chunks.append)["replies"][0]
    assert reply.text == "I am"
    assert [chunk.content for chunk in chunks] == ["I ", "am", ""]


def tools(*functions: Any) -> list[Tool]:
    return [create_tool_from_function(function) for function in functions]


def price(amount: float, currency: Literal["USD", "GBP"] = "USD") -> float:
    """Convert."""
    return amount


def opening_hours() -> str:
    """No arguments."""
    return "9 to 5"


def weekday(day: str) -> str:
    """Which weekday."""
    return day


@pytest.mark.parametrize(
    ("prompt", "functions", "calls"),
    [
        ("30 in GBP", (price,), [("price", {"amount": 30, "currency": "GBP"})]),
        ("30 please", (price,), [("price", {"amount": 30})]),
        ("order 30", (find_order, price), [("find_order", {"order_number": 30})]),
        ("what are your opening hours?", (opening_hours,), [("opening_hours", {})]),
        ("hello", (opening_hours,), []),
        ("what day is 2026-03-05?", (weekday,), [("weekday", {"day": "2026-03-05"})]),
        ("version 1.2 of 3-4", (find_order,), []),
        ("1 2 3 4 5", (find_order,), [("find_order", {"order_number": n}) for n in (1, 2, 3, 4)]),
    ],
)  # fmt: skip
def test_arguments_are_filled_from_the_prompt_where_they_fit(
    prompt: str, functions: tuple[Any, ...], calls: list[tuple[str, dict[str, Any]]]
) -> None:
    planned = plan([ChatMessage.from_user(prompt)], tools(*functions))
    assert planned == [PlannedCall(*call) for call in calls]


def test_weekends_do_not_count_for_a_delivery() -> None:
    assert delivery_date("2026-03-06", "Germany")["arrives_on"] == "2026-03-10"
    assert delivery_date("2026-03-06", "Japan") == {
        "arrives_on": "2026-03-17",
        "weekday": "Tuesday",
        "working_days": 7,
    }


@pytest.mark.parametrize(("day", "country"), [("2026-03-06", "Narnia"), ("soon", "Japan")])
def test_a_delivery_that_cannot_be_worked_out_is_an_error_for_the_model(
    day: str, country: str
) -> None:
    with pytest.raises(ToolError):
        delivery_date(day, country)


def test_a_key_in_the_environment_brings_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert isinstance(demo_llm(), OfflineChatGenerator)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert demo_llm("mine").model == "mine"
    monkeypatch.setenv("HAYRUNNER_MODEL", "theirs")
    llm = demo_llm("mine")
    assert isinstance(llm, OpenAICompatibleChatGenerator)
    assert (llm.model, llm.api_base_url) == ("theirs", "http://127.0.0.1:1/v1")
