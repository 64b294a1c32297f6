"""200 runs at once on one agent, each with options of its own: nothing of one shows in another."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from haystack.components.agents.state import State
from haystack.hooks import hook as haystack_hook
from tests.conformance.conftest import AgentOver, Provide
from tests.conformance.drivers import Driver, Told
from tests.conformance.hooked import POINTS
from tests.unit.agent.runs import call_turn, text_turn

from hayrunner.adapters.context import current_run
from hayrunner.hooks import HookRun, ModelCall, Patch, RunHooks
from hayrunner.tool_context import current_tool_call
from hayrunner_contracts.codec import encode
from hayrunner_contracts.documents import Document
from hayrunner_contracts.events import Data, StreamEvent, TextChunk

RUNS = 200
SENTINEL = re.compile(r"S(\d{3})S")


def sentinel(number: int) -> str:
    return f"S{number:03}S"


def found(value: Any) -> set[int]:
    """The numbers of the runs that something shows."""
    return {int(number) for number in SENTINEL.findall(str(value))}


def answer(body: Mapping[str, Any]) -> Any:
    """Two tools, twice; then a text. All of it with the sentinel of the question."""
    question = next(m["content"] for m in body["messages"] if str(m["content"]).startswith("ask "))
    [number] = found(question)
    steps = sum(bool(message.get("tool_calls")) for message in body["messages"])
    if steps < 2:
        given = {"text": f"{sentinel(number)} of step {steps}"}
        return call_turn(("wait", given), ("block", given), text=f"{sentinel(number)} ")
    return text_turn(f"{sentinel(number)}, ", "done ", sentinel(number))


class Watches(RunHooks):
    """Notes, by run, every sentinel that any point is shown."""

    def __init__(self) -> None:
        self.seen: dict[int, set[int]] = defaultdict(set)
        self.points: set[str] = set()

    def note(self, point: str, run: HookRun, *given: Any) -> None:
        [own] = found(run.tool_context["who"])
        self.points.add(point)
        self.seen[own] |= found(given) | found(run.user) | found(run.thread_id)
        run.tool_context["list"].append(own)
        assert run.tool_context["list"] == [own]

    async def on_model_call(self, run: HookRun, call: ModelCall) -> Patch:
        self.note("on_model_call", run, call)
        await asyncio.sleep(0)
        who = run.tool_context["who"]
        return Patch(
            documents=[Document(content=f"patched {who}")], parameters={"user": f"patch {who}"}
        )


def _noting(point: str) -> Any:
    async def method(self: Watches, run: HookRun, *given: Any) -> None:
        self.note(point, run, *given)

    return method


for _point in POINTS:
    if _point != "on_model_call":
        setattr(Watches, _point, _noting(_point))


def options_of(number: int) -> dict[str, Any]:
    who = sentinel(number)
    return {
        "preamble": f"prompt {who}" if number % 3 else None,
        "documents": [{"content": f"document {who}"}],
        "history": [{"role": "user", "content": f"earlier {who}"}],
        "tool_context": {"who": who, "list": []},
        "temperature": number / 1000,
        "max_tokens": number + 1,
        "merge_params": {"seed": number, "metadata": {"who": who}},
        "tool_choice": ("auto", {"name": "wait"}, None)[number % 3],
        "tool_concurrency": 1 + number % 3,
        "max_turns": 3 + number % 4,
        "hooks": ["watch"],
    }


class Tools:
    """Two tools that note whatever they are shown and is not theirs."""

    def __init__(self) -> None:
        self.mixed: list[Any] = []

    def _check(self, text: str) -> str:
        [own] = found(text)
        call = current_tool_call()
        call.tool_context["list"].append(own)
        shown = (call.tool_context, call.user, call.thread_id)
        same_run = current_run.get().message_id == call.message_id
        if found(shown) != {own} or call.tool_context["list"] != [own] or not same_run:
            self.mixed.append((own, shown, same_run))
        return sentinel(own)

    async def wait(self, text: str) -> str:
        """Waits."""
        who = self._check(text)
        await current_tool_call().emit("waited", text)
        await asyncio.sleep(0.001)
        return f"waited for {who}"

    def block(self, text: str) -> str:
        """Blocks."""
        who = self._check(text)
        current_tool_call().emit_from_thread("blocked", text)
        return f"blocked {who}"


async def test_no_option_message_tool_context_or_event_of_one_ever_shows_in_another(
    driver: Driver, provide: Provide, agent_over: AgentOver
) -> None:
    provider, generator = await provide(answer)
    watches = Watches()
    tools = Tools()

    @haystack_hook
    async def notices(state: State) -> None:
        numbers = found([message.text for message in state.data["messages"]])
        if len(numbers) != 1:
            tools.mixed.append(numbers)

    agent = agent_over(
        generator,
        tools=[tools.wait, tools.block],
        instructions="own",
        hooks=[watches],
        named_hooks={"watch": watches},
        default_hooks={"before_llm": [notices]},
    )

    async def run(number: int) -> Told:
        who = sentinel(number)
        running = await driver.start(
            agent, f"ask {who}", options_of(number), user=f"user {who}", thread_id=f"thread-{who}"
        )
        return await running.told()

    all_told = await asyncio.gather(*(run(number) for number in range(RUNS)))

    assert tools.mixed == []
    assert watches.seen == {number: {number} for number in range(RUNS)}
    assert watches.points == set(POINTS) - {"on_reasoning_delta", "on_invalid_tool_call"}
    for number, told in enumerate(all_told):
        check_told(number, told, streams=driver.streams)
    check_requests([request.body for request in provider.requests])


def check_told(number: int, told: Told, *, streams: bool) -> None:
    who = sentinel(number)
    assert (told.code, told.answer) == (None, f"{who}, done {who}")
    assert found([encode(event) for event in told.events if isinstance(event, StreamEvent)]) <= {
        number
    }
    assert found(encode(told.result)) == {number}
    if streams:
        assert len(told.of(Data)) == 4
        assert "".join(event.content for event in told.of(TextChunk)).count(who) == 4


def check_requests(bodies: list[dict[str, Any]]) -> None:
    """Every call was made with its own run's options, and with nobody else's."""
    assert len(bodies) == 3 * RUNS
    for body in bodies:
        [number] = found(body)
        who = sentinel(number)
        expected = options_of(number)
        tokens = body.get("max_tokens", body.get("max_completion_tokens"))
        assert (body["temperature"], tokens) == (expected["temperature"], number + 1)
        assert (body["seed"], body["metadata"]) == (number, {"who": who})
        assert body["user"] == f"patch {who}"
        contents = [message["content"] for message in body["messages"]]
        prompted = f"prompt {who}" in contents
        assert prompted == bool(number % 3)
        assert "own" not in contents
        [documents] = [text for text in contents if "<documents>" in str(text)]
        assert f"document {who}" in documents
        # The hook is there twice, the agent's own and by name.
        assert documents.count(f"patched {who}") == 2
        assert f"earlier {who}" in contents
        assert ("tool_choice" in body) == (number % 3 != 2)
