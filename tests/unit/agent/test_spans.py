"""Haystack's spans are there for a tracer, and cost nothing without one."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from haystack import tracing
from haystack.tracing.tracer import Span, Tracer
from tests.unit.agent.conftest import Provide
from tests.unit.agent.runs import agent_over, call_turn, tell, text_turn


class Recorded(Span):
    def __init__(self, name: str, parent: Span | None) -> None:
        self.name = name
        self.above = parent.name if isinstance(parent, Recorded) else None

    def set_tag(self, key: str, value: Any) -> None:
        return


class Recorder(Tracer):
    def __init__(self) -> None:
        self.spans: list[Recorded] = []
        self._open: list[Recorded] = []

    @contextlib.contextmanager
    def trace(
        self,
        operation_name: str,
        tags: dict[str, Any] | None = None,
        parent_span: Span | None = None,
    ) -> Generator[Span]:
        self.spans.append(Recorded(operation_name, parent_span))
        self._open.append(self.spans[-1])
        try:
            yield self.spans[-1]
        finally:
            self._open.pop()

    def current_span(self) -> Span | None:
        return self._open[-1] if self._open else None


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    tracing.enable_tracing(recorder)
    yield recorder
    tracing.disable_tracing()


async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_a_run_has_the_spans_of_haystacks_agent(provide: Provide, recorder: Recorder) -> None:
    _, generator = await provide([call_turn(("add", {"a": 1, "b": 2})), text_turn("3")])
    await tell(agent_over(generator, tools=[add]))
    step = ("haystack.agent.step", "haystack.agent.run")
    llm = ("haystack.agent.step.llm", "haystack.agent.step")
    tool = ("haystack.agent.step.tool", "haystack.agent.step")
    run = ("haystack.agent.run", None)
    assert [(s.name, s.above) for s in recorder.spans] == [run, step, llm, tool, step, llm]
