"""A client without a bus: scripted agents, for the tests of services that run agents.

client = InMemoryRunClient({"support": "It is on its way.", "extractor": {"title": "Alien"}})
assert await client.run("support", "Where is order 7?") == "It is on its way."
assert client.requests[0].request.prompt == "Where is order 7?"
"""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, cast

import msgspec

from hayrunner_contracts.commands import Cancel, RunCommand
from hayrunner_contracts.errors import (
    Cancelled,
    ClientTimeout,
    InternalError,
    InvalidRequest,
    RunError,
    RunFailure,
    UnknownAgent,
)
from hayrunner_contracts.events import (
    Error,
    FinishReason,
    MessageEnd,
    MessageStart,
    StreamEnd,
    StreamEvent,
    TextChunk,
)
from hayrunner_contracts.following import Event, EventFollower, MessageBuilder
from hayrunner_contracts.memory_threads import InMemoryThreadStore, remembered
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.runs import (
    ANSWER_TIMEOUT_S,
    COMMAND_TIMEOUT_S,
    EVENT_TIMEOUT_S,
    AgentClient,
)
from hayrunner_contracts.subjects import message_id as canonical_id
from hayrunner_contracts.subjects import token
from hayrunner_contracts.thread_client import ThreadClient

__all__ = ["InMemoryRunClient", "RecordedRequest", "Script"]

Script = (
    str
    | dict[str, Any]
    | RunResult
    | RunError
    | Sequence[StreamEvent]
    | Callable[[RunRequest], Any]
    | AsyncIterable[StreamEvent]
)
"""What a scripted agent does: say a text, give a JSON value, end with a result, fail with an error,
or emit events. A callable is given the request and returns any of these, or an awaitable of one;
an async generator function emits its events as they come."""


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was made; `direct` for one by `ask` or `ask_stream`."""

    agent: str
    request: RunRequest
    direct: bool = False
    headers: Mapping[str, str] = {}


class InMemoryRunClient(AgentClient):
    """The same interface as `RunClient`, on scripted agents.

    Events are numbered, and get the frame they lack (`message_start`, `message_end`,
    `stream_end`). A `cancel` ends a run that is still going on; all other commands are recorded.
    An agent without a script is `UnknownAgent`.
    """

    def __init__(self, agents: Mapping[str, Script] | None = None) -> None:
        self.agents: dict[str, Script] = dict(agents or {})
        self.requests: list[RecordedRequest] = []
        """Every request that reached an agent, in order; a repeated message id once."""
        self.commands: list[tuple[str, RunCommand]] = []
        """Every command, with the message id it was for."""
        self._runs: dict[str, _ScriptedRun] = {}
        self._thread_store = InMemoryThreadStore()
        self._threads = ThreadClient(self._thread_store)

    @property
    def threads(self) -> ThreadClient:
        """The threads of completed runs, and what was done to them since."""
        return self._threads

    def _stream(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]:
        token("agent", agent)
        return self._started_events(agent, request, headers, timeout, direct=False)

    def _ask_stream(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]:
        token("agent", agent)
        return self._started_events(agent, request, headers, timeout, direct=True)

    async def _started_events(
        self,
        agent: str,
        request: RunRequest,
        headers: Mapping[str, str],
        timeout: float,
        *,
        direct: bool,
    ) -> AsyncGenerator[Event, None]:
        run = self._start(agent, request, headers, direct=direct)
        async for event in run.read(0, timeout):
            yield event

    async def _answer(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> RunResult:
        return await self._start(agent, request, headers).wait(timeout)

    async def _submit(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> None:
        self._start(agent, request, headers)

    async def _ask(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> RunResult:
        result = await self._start(agent, request, headers, direct=True).wait(timeout)
        return msgspec.structs.replace(result, last_seq=0)

    def attach(
        self,
        message_id: str,
        after: int = 0,
        *,
        attempt: int | None = None,
        timeout: float = EVENT_TIMEOUT_S,
    ) -> AsyncGenerator[Event, None]:
        return self._run(canonical_id(message_id)).read(after, timeout, attempt=attempt)

    async def result(self, message_id: str, *, timeout: float = ANSWER_TIMEOUT_S) -> RunResult:
        return await self._run(canonical_id(message_id)).wait(timeout)

    async def send_command(
        self, message_id: str, command: RunCommand, *, timeout: float = COMMAND_TIMEOUT_S
    ) -> None:
        message_id = canonical_id(message_id)
        self.commands.append((message_id, command))
        if isinstance(command, Cancel):
            self._run(message_id).cancel(command.reason)

    async def close(self) -> None:
        """End the scripts that still play."""
        for run in self._runs.values():
            await run.close()

    def _run(self, message_id: str) -> "_ScriptedRun":
        return self._runs.setdefault(message_id, _ScriptedRun(message_id, self._thread_store))

    def _start(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], *, direct: bool = False
    ) -> "_ScriptedRun":
        token("agent", agent)
        if agent not in self.agents:
            raise UnknownAgent(f"no script for agent {agent!r}")
        assert request.message_id is not None  # compose_request sets it
        run = self._run(request.message_id)
        if not run.started:
            recorded = RecordedRequest(
                agent=agent, request=request, direct=direct, headers=dict(headers)
            )
            self.requests.append(recorded)
            run.start(agent, request, self.agents[agent])
        return run


class _ScriptedRun:
    """One run: its events so far, its result once it has one, and the task that plays it."""

    def __init__(self, message_id: str, threads: InMemoryThreadStore) -> None:
        self.message_id = message_id
        self._threads = threads
        self.started = False
        self._agent = ""
        self._request = RunRequest()
        self._events: list[Event] = []
        self._builder = MessageBuilder()
        self._result: RunResult | None = None
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._cancelled: Cancelled | None = None
        self._playing = False
        self._value: dict[str, Any] | None = None

    def start(self, agent: str, request: RunRequest, script: Script) -> None:
        self.started = True
        self._agent, self._request = agent, request
        self._task = asyncio.create_task(self._play(script))

    def cancel(self, reason: str | None) -> None:
        if self._result is not None or self._cancelled is not None:
            return
        self._cancelled = Cancelled(reason or "cancelled")
        # A task that has not begun must not be cancelled: it would never come to its end.
        if self._task is not None and self._playing:
            self._task.cancel()

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def wait(self, timeout: float) -> RunResult:
        """The result, once there is one."""
        async with self._changed:
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait_for(lambda: self._result is not None)
            except TimeoutError:
                raise ClientTimeout(
                    f"no result of run {self.message_id} within {timeout:g} s"
                ) from None
        assert self._result is not None
        return self._result

    async def read(
        self, after: int, timeout: float, *, attempt: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """The events after `after`, as they come."""
        follower = EventFollower(after, attempt=attempt)
        taken = 0
        while not follower.done:
            async with self._changed:
                try:
                    async with asyncio.timeout(timeout):
                        await self._changed.wait_for(lambda: len(self._events) > taken)  # noqa: B023
                except TimeoutError:
                    raise ClientTimeout(
                        f"no event of run {self.message_id} for {timeout:g} s"
                    ) from None
            fresh = self._events[taken:]
            taken += len(fresh)
            for event in fresh:
                for ready in follower.feed(event):
                    yield ready

    async def _play(self, script: Script) -> None:
        self._playing = True
        outcome: RunResult | RunError | None = self._cancelled
        try:
            if outcome is None:
                await self._check_thread()
                outcome = await self._perform(script)
        except asyncio.CancelledError:
            if self._cancelled is None:
                raise
            outcome = self._cancelled
        except RunError as error:
            outcome = error
        except Exception as error:
            # Policy: a script that breaks is a run that failed, as with a worker.
            outcome = InternalError(f"the script raised {type(error).__name__}")
        await self._end(outcome)

    async def _perform(self, script: Script) -> RunResult | RunError | None:
        """Emit what the script says; its outcome where it says one itself."""
        if callable(script) and not isinstance(script, AsyncIterable):
            called = script(self._request)
            if inspect.isawaitable(called):
                called = await called
            return await self._perform(called)
        if isinstance(script, AsyncIterable):
            async for event in script:
                await self._emit(event)
            return None
        if isinstance(script, RunError | RunResult):
            return script
        if isinstance(script, dict):
            await self._emit(TextChunk(step=1, content=msgspec.json.encode(script).decode()))
            self._value = script
            return None
        if isinstance(script, str):
            script = [TextChunk(step=1, content=script)]
        for event in cast("Iterable[StreamEvent]", script):
            await self._emit(event)
        return None

    async def _emit(self, event: Event) -> None:
        if not self._events and not isinstance(event, MessageStart):
            await self._emit(self._message_start())
        if self._builder.done:
            raise InternalError("an event after stream_end")
        numbered = msgspec.structs.replace(event, seq=len(self._events) + 1)
        self._builder.add(numbered)
        async with self._changed:
            self._events.append(numbered)
            self._changed.notify_all()
        await asyncio.sleep(0)  # a script without awaits still lets its readers read

    def _message_start(self) -> MessageStart:
        return MessageStart(
            message_id=self.message_id, agent=self._agent, thread_id=self._request.thread_id
        )

    async def _end(self, outcome: RunResult | RunError | None) -> None:
        result = self._result_of(outcome)
        await self._remember(result)
        if result.error is not None and self._builder.error is None:
            await self._emit(
                Error(
                    error_code=result.error.code,
                    error_message=result.error.message,
                    retryable=result.error.retryable,
                    ref=result.error.ref,
                )
            )
        if self._builder.finish_reason is None:
            reason = result.finish_reason or _FINISH_REASONS[result.status]
            await self._emit(MessageEnd(finish_reason=reason, usage=result.usage))
        if not self._builder.done:
            await self._emit(StreamEnd())
        async with self._changed:
            self._result = msgspec.structs.replace(
                result,
                finish_reason=self._builder.finish_reason,
                last_seq=len(self._events),
                metadata=self._request.metadata,
                thread_id=self._request.thread_id,
            )
            self._changed.notify_all()

    async def _check_thread(self) -> None:
        thread_id = self._request.thread_id
        if thread_id is not None and (await self._threads.read(thread_id)).deleted:
            raise InvalidRequest("thread_id: the thread is deleted", field="thread_id")

    async def _remember(self, result: RunResult) -> None:
        record = remembered(self._agent, self._request, result)
        if record is not None and self._request.thread_id is not None:
            await self._threads.change(
                self._request.thread_id, lambda _: record, record_id=self.message_id
            )

    def _result_of(self, outcome: RunResult | RunError | None) -> RunResult:
        if isinstance(outcome, RunResult):
            return msgspec.structs.replace(outcome, message_id=self.message_id, agent=self._agent)
        failure = outcome.to_wire() if outcome is not None else self._emitted_failure()
        status = "completed" if failure is None else "failed"
        if failure is not None and failure.code == Cancelled.code:
            status = "cancelled"
        return RunResult(
            message_id=self.message_id,
            agent=self._agent,
            status=status,
            answer=self._answer(),
            usage=self._builder.usage,
            error=failure,
        )

    def _emitted_failure(self) -> RunFailure | None:
        error = self._builder.error
        if error is None:
            return None
        return RunFailure(
            code=error.error_code,
            message=error.error_message,
            retryable=error.retryable,
            ref=error.ref,
        )

    def _answer(self) -> Any:
        """The scripted value, or the text, read as JSON where the request asked for JSON."""
        if self._value is not None:
            return self._value
        text = self._builder.text
        request = self._request
        if isinstance(request.response_format, dict) or isinstance(
            request.options.then_format, dict
        ):
            try:
                return msgspec.json.decode(text)
            except msgspec.DecodeError:
                return text
        return text


_FINISH_REASONS: dict[str, FinishReason] = {
    "completed": "stop",
    "failed": "error",
    "cancelled": "cancelled",
}
