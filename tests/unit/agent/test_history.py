"""What of a thread a model is shown."""

import asyncio
from typing import Any

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import MESSAGE_ID, agent_over, request, tell, text_turn

from hayrunner.adapters.context import DiscardEvents
from hayrunner.adapters.history import last_messages, repaired
from hayrunner_contracts.messages import ChatMessage, ContentPart, ToolCall, ToolCallResult
from hayrunner_contracts.testing import eventually

USER = ChatMessage.user("hi")
ANSWER = ChatMessage.assistant("done")


def call(name: str, call_id: str | None = "1") -> ToolCall:
    return ToolCall(tool_name=name, arguments={}, id=call_id)


def calling(*calls: ToolCall) -> ChatMessage:
    return ChatMessage.assistant(tool_calls=list(calls))


def result(of: ToolCall, text: str = "ok") -> ChatMessage:
    return ChatMessage.tool(text, origin=of)


def shown(messages: list[ChatMessage]) -> list[tuple[str, Any]]:
    return [
        (m.role, [(r.origin.id, r.error) for r in m.tool_call_results] or m.text or "calls")
        for m in messages
    ]


def test_a_valid_thread_stays_as_it_is() -> None:
    first, second = call("find", "1"), call("find", "2")
    messages = [USER, calling(first, second), result(second), result(first), ANSWER, USER]
    assert repaired(messages) == messages


def test_a_call_without_a_result_gets_an_error_behind_the_results_of_its_message() -> None:
    first, second = call("find", "1"), call("send", "2")
    mended = repaired([USER, calling(first, second), result(second), USER, ANSWER])
    assert shown(mended) == [
        ("user", "hi"),
        ("assistant", "calls"),
        ("tool", [("2", False)]),
        ("tool", [("1", True)]),
        ("user", "hi"),
        ("assistant", "done"),
    ]


def test_a_call_that_ends_the_thread_is_answered_too() -> None:
    assert shown(repaired([USER, calling(call("find"))]))[-1] == ("tool", [("1", True)])


def test_a_result_without_its_call_is_dropped() -> None:
    stray = result(call("find", "9"))
    assert repaired([stray, USER, ANSWER, stray, USER]) == [USER, ANSWER, USER]


def test_a_second_result_of_a_call_and_one_that_comes_too_late_are_dropped() -> None:
    first = call("find")
    messages = [USER, calling(first), result(first), result(first, "again"), ANSWER, result(first)]
    assert repaired(messages) == [USER, calling(first), result(first), ANSWER]


def test_of_a_message_with_several_results_those_with_a_call_are_kept() -> None:
    first, stray = call("find", "1"), call("find", "9")
    both = ChatMessage(
        role="tool",
        content=[
            ContentPart(tool_call_result=ToolCallResult(result="ok", origin=origin))
            for origin in (stray, first)
        ],
    )
    mended = repaired([USER, calling(first), both])
    assert shown(mended)[-1] == ("tool", [("1", False)])


def test_calls_without_ids_are_matched_by_name_in_order() -> None:
    first, second = call("find", None), call("send", None)
    messages = [USER, calling(first, second), result(first), result(second)]
    assert repaired(messages) == messages
    assert len(repaired(messages[:3])) == 4


@pytest.mark.parametrize(
    ("most", "kept"),
    [(None, 6), (99, 6), (6, 6), (5, 2), (4, 2), (2, 2), (1, 0), (0, 0)],
)
def test_a_cut_thread_begins_with_a_users_message(most: int | None, kept: int) -> None:
    first = call("find")
    messages = [USER, calling(first), result(first), ANSWER, USER, ANSWER]
    found = last_messages(messages, most)
    assert found == messages[len(messages) - kept :]


async def test_a_run_is_shown_a_repaired_thread(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator)
    await agent.threads.thread("t").append("earlier", [USER, calling(call("find"))])
    told = await tell(agent, thread_id="t")
    assert told.outcome.status == "completed"
    sent = provider.requests[0].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    # What is kept stays as it was.
    assert len(await agent.threads.thread("t").load()) == 4


async def test_a_run_that_is_stored_already_does_not_see_itself(provide: Provide) -> None:
    provider, generator = await provide([text_turn("Hello")])
    agent = agent_over(generator)
    await tell(agent, "one", thread_id="t")
    await tell(agent, "one", thread_id="t")
    assert [len(request.body["messages"]) for request in provider.requests] == [1, 1]
    assert len(await agent.threads.thread("t").load()) == 2


async def test_in_one_process_too_the_second_run_waits_or_is_refused(provide: Provide) -> None:
    provider, generator = await provide([[{"$hang": True}], text_turn("Hello")])
    agent = agent_over(generator)
    first = agent.open_session(
        request(thread_id="t"), message_id=MESSAGE_ID, sink=DiscardEvents(), agent_name="support"
    )
    running = asyncio.create_task(first.run())
    await eventually(lambda: provider.requests, what="the first call")
    refused = await tell(agent, options={"on_busy_thread": "reject"}, thread_id="t")
    assert refused.code == "busy_thread"
    waiting = asyncio.create_task(tell(agent, "two", thread_id="t"))
    first.stop("cancelled", "enough")
    assert (await running).status == "cancelled"
    provider.scenario = [text_turn("Hello")]
    assert (await waiting).outcome.status == "completed"
    assert len(provider.requests) == 2
