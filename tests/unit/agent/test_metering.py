"""Model calls of real runs, as they are told to whoever counts them."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import MESSAGE_ID, Sink, agent_over, call_turn, request, tell, text_turn

from hayrunner.hooks import HookRun, ModelCall, Patch, RunHooks, Stop
from hayrunner.telemetry.model_meter import CallLabels, counting
from hayrunner.telemetry.providers import provider_of
from hayrunner_contracts.testing import eventually


@dataclass
class Counted:
    calls: list[tuple[CallLabels, float, float | None, str | None]] = field(
        default_factory=list[tuple[CallLabels, float, float | None, str | None]]
    )
    tokens: list[tuple[CallLabels, int, int]] = field(
        default_factory=list[tuple[CallLabels, int, int]]
    )

    def model_called(
        self,
        call: CallLabels,
        *,
        duration_s: float,
        first_chunk_s: float | None,
        error_code: str | None,
    ) -> None:
        self.calls.append((call, duration_s, first_chunk_s, error_code))

    def tokens_used(self, call: CallLabels, *, input_tokens: int, output_tokens: int) -> None:
        self.tokens.append((call, input_tokens, output_tokens))

    @property
    def codes(self) -> list[str | None]:
        return [code for _, _, _, code in self.calls]


@pytest.fixture
def counted() -> Iterator[Counted]:
    found = Counted()
    with counting(found):
        yield found


async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize("kind", ["own", "openai"])
async def test_each_call_is_told_with_its_time_first_chunk_and_tokens(
    provide: Provide, counted: Counted, kind: str
) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")], kind)
    await tell(agent_over(generator, tools=[add]))

    label = CallLabels(agent="support", provider="openai", model="m")
    assert [call for call, *_ in counted.calls] == [label, label]
    for _, duration, first_chunk, code in counted.calls:
        assert first_chunk is not None
        assert 0 < first_chunk <= duration
        assert code is None
    assert counted.tokens == [(label, 10, 5)] * 2


async def test_a_call_that_fails_is_told_with_its_code_and_no_tokens(
    provide: Provide, counted: Counted
) -> None:
    _, generator = await provide([[{"$status": 500}]])
    told = await tell(agent_over(generator))

    assert told.code == "provider_error"
    assert counted.codes == ["provider_error"]
    assert counted.calls[0][2] is None
    assert counted.tokens == []


async def test_a_call_that_is_cancelled_is_told(provide: Provide, counted: Counted) -> None:
    _, generator = await provide([[*text_turn("a")[:1], {"$sleep": 30}]])
    sink = Sink()
    session = agent_over(generator).open_session(
        request(), message_id=MESSAGE_ID, sink=sink, agent_name="support"
    )
    running = asyncio.create_task(session.run())
    await eventually(lambda: sink.events, what="the first chunk")
    session.stop("cancelled", "enough")
    await running

    assert counted.codes == ["cancelled"]
    assert counted.calls[0][2] is not None


async def test_a_call_that_a_hook_stops_in_its_stream_is_told(
    provide: Provide, counted: Counted
) -> None:
    class Guard(RunHooks):
        async def on_text_delta(self, run: HookRun, text: str) -> Stop | None:
            return Stop("no")

    _, generator = await provide([text_turn("a", "b")])
    told = await tell(agent_over(generator, hooks=[Guard()]))

    assert told.code == "stopped"
    assert counted.codes == ["stopped"]


async def test_a_model_that_a_request_or_a_hook_asks_for_is_not_told(
    provide: Provide, counted: Counted
) -> None:
    class Other(RunHooks):
        async def on_model_call(self, run: HookRun, call: ModelCall) -> Patch | None:
            return Patch(parameters={"model": "secret-2"})

    _, generator = await provide([text_turn("a")])
    await tell(agent_over(generator), options={"merge_params": {"model": "secret-1"}})
    _, generator = await provide([text_turn("a")])
    await tell(agent_over(generator, hooks=[Other()]))
    _, generator = await provide([text_turn("a")])
    await tell(agent_over(generator), options={"merge_params": {"model": "m", "top_p": 0.5}})

    assert [call.model for call, *_ in counted.calls] == [None, None, "m"]


async def test_a_run_without_a_meter_runs(provide: Provide) -> None:
    _, generator = await provide([text_turn("a")])
    assert (await tell(agent_over(generator))).text == "a"


def test_a_provider_is_known_by_the_generators_class_or_one_above_it() -> None:
    class OpenAIChatGenerator: ...

    class Mine(OpenAIChatGenerator): ...

    assert provider_of(Mine) == "openai"
    assert provider_of(Counted) == "_OTHER"
