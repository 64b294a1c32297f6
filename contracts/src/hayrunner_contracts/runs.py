"""Running agents, whatever is underneath: the interface that the client on NATS and the
in-memory double share, and the handle of one run."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from hayrunner_contracts.answers import ResponseFormat, answer_schema, read_answer
from hayrunner_contracts.arguments import Prompt, RunArguments, compose_request
from hayrunner_contracts.commands import Approve, Cancel, Deny, Modify, RunCommand, Say
from hayrunner_contracts.errors import Cancelled, InternalError, RunError, error_from_wire
from hayrunner_contracts.following import Event
from hayrunner_contracts.requests import RunMode, RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.thread_client import ThreadClient

__all__ = [
    "ANSWER_TIMEOUT_S",
    "ASK_TIMEOUT_S",
    "COMMAND_TIMEOUT_S",
    "EVENT_TIMEOUT_S",
    "SUBMIT_TIMEOUT_S",
    "AgentClient",
    "Run",
    "error_of",
]

EVENT_TIMEOUT_S = 300.0
"""How long a reader waits for the next event."""
ANSWER_TIMEOUT_S = 600.0
"""How long a caller waits for a durable run's result, time in the queue included."""
ASK_TIMEOUT_S = 120.0
"""How long a caller waits for the answer to a direct request."""
SUBMIT_TIMEOUT_S = 30.0
"""How long a caller waits until a request is durably queued."""
COMMAND_TIMEOUT_S = 10.0
"""How long a caller waits until a command is durably stored."""

T = TypeVar("T")
_NO_HEADERS: Mapping[str, str] = {}


def error_of(result: RunResult) -> RunError | None:
    """The exception for a run that did not complete; None for one that did."""
    if result.status == "completed":
        return None
    if result.error is not None:
        return error_from_wire(result.error, result=result)
    if result.status == "cancelled":
        return Cancelled("the run was cancelled", result=result)
    return InternalError("the run failed without saying why", result=result)


class AgentClient(ABC):
    """Starts runs of agents and reads them.

    Every call has a timeout in seconds and raises `ClientTimeout` when it passes; that says
    nothing of the run, which goes on. A request that a worker would refuse raises
    `InvalidRequest` before anything is sent. The keywords are those of `RunArguments`.
    """

    def stream(
        self,
        agent: str,
        prompt: Prompt,
        *,
        response_format: ResponseFormat = UNSET,
        timeout: float = EVENT_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> AsyncGenerator[Event, None]:
        """Start a run and yield its events in order, each once, ending after `stream_end`.

        A failed run does not raise: its `error` event is yielded. `timeout` is the longest wait
        for the next event. Leaving the loop early ends the reading, not the run: `cancel` does
        that. An event of a type this version does not know is yielded as `UnknownEvent`.
        """
        request = compose_request(
            prompt,
            arguments,
            mode="stream",
            response_format=answer_schema(response_format),
        )
        return self._stream(agent, request, arguments.get("headers", _NO_HEADERS), timeout)

    @overload
    async def run(
        self,
        agent: str,
        prompt: Prompt,
        *,
        tools: bool = False,
        response_format: type[T],
        timeout: float = ANSWER_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> T: ...

    @overload
    async def run(
        self,
        agent: str,
        prompt: Prompt,
        *,
        tools: bool = False,
        response_format: dict[str, Any] | None | UnsetType = UNSET,
        timeout: float = ANSWER_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> Any: ...

    async def run(
        self,
        agent: str,
        prompt: Prompt,
        *,
        tools: bool = False,
        response_format: ResponseFormat = UNSET,
        timeout: float = ANSWER_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> Any:
        """Run to the end and return the answer: text, the JSON value where the agent or
        `response_format` asks for one, or an instance where `response_format` is a class.

        A run that did not complete raises the error of its result, which carries the result.
        """
        request = compose_request(
            prompt,
            arguments,
            mode="answer",
            tools=tools,
            response_format=answer_schema(response_format),
        )
        headers = arguments.get("headers", _NO_HEADERS)
        result = await self._answer(agent, request, headers, timeout)
        if (error := error_of(result)) is not None:
            raise error
        # A request has one of the two.
        after: ResponseFormat = arguments.get("then_format")
        return read_answer(result.answer, response_format or after)

    async def submit(
        self,
        agent: str,
        prompt: Prompt,
        *,
        mode: RunMode = "stream",
        tools: bool = False,
        response_format: ResponseFormat = UNSET,
        timeout: float = SUBMIT_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> "Run":
        """Queue a run durably and return its handle; the run goes on without the caller.

        Mode `answer` is for a run nobody watches: its events are only the frame, and it has its
        tools where `tools` says so. A `stream` run always has them.
        """
        request = compose_request(
            prompt,
            arguments,
            mode=mode,
            tools=tools,
            response_format=answer_schema(response_format),
        )
        await self._submit(agent, request, arguments.get("headers", _NO_HEADERS), timeout)
        return Run(self, _id_of(request), agent=agent)

    async def ask(
        self,
        agent: str,
        prompt: Prompt,
        *,
        tools: bool = False,
        response_format: ResponseFormat = UNSET,
        timeout: float = ASK_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> RunResult:
        """Ask a worker directly and return its result: the lowest latency, and no second try.

        Raises the error of a run that did not complete, and `Overloaded` at once where no worker
        is up or none has a free slot.
        """
        request = compose_request(
            prompt,
            arguments,
            mode="answer",
            tools=tools,
            response_format=answer_schema(response_format),
        )
        headers = arguments.get("headers", _NO_HEADERS)
        result = await self._ask(agent, request, headers, timeout)
        if (error := error_of(result)) is not None:
            raise error
        return result

    def ask_stream(
        self,
        agent: str,
        prompt: Prompt,
        *,
        response_format: ResponseFormat = UNSET,
        timeout: float = EVENT_TIMEOUT_S,
        **arguments: Unpack[RunArguments],
    ) -> AsyncGenerator[Event, None]:
        """Ask a worker directly and yield the run's events, ending after `stream_end`.

        Nothing is stored: what is missed is lost, and raises `EventsLost`.
        """
        request = compose_request(
            prompt,
            arguments,
            mode="stream",
            response_format=answer_schema(response_format),
        )
        return self._ask_stream(agent, request, arguments.get("headers", _NO_HEADERS), timeout)

    @property
    @abstractmethod
    def threads(self) -> ThreadClient:
        """Operations on conversations: create, list, get, rate, delete, restore."""

    @abstractmethod
    def attach(
        self,
        message_id: str,
        after: int = 0,
        *,
        attempt: int | None = None,
        timeout: float = EVENT_TIMEOUT_S,
    ) -> AsyncGenerator[Event, None]:
        """The events of a run after sequence `after`, from the store and then live, without a
        seam. Works for a queued, running or finished run; `after` at or beyond the end of a
        finished one yields nothing.

        `attempt` is the highest attempt among the events that were read before (that of
        `message_start` or `run_resumed`; `MessageBuilder.attempt`). It tells whether a
        `run_resumed` up to `after` was among them; without it every one that is stored is taken to
        have been.
        """

    @abstractmethod
    async def result(self, message_id: str, *, timeout: float = ANSWER_TIMEOUT_S) -> RunResult:
        """The one result of a run, as soon as there is one. A failed run's is returned too."""

    @abstractmethod
    async def send_command(
        self, message_id: str, command: RunCommand, *, timeout: float = COMMAND_TIMEOUT_S
    ) -> None:
        """Store a command for a run, whatever state it is in.

        Returns once it is stored, once. Without an acknowledgement it is sent again until
        `timeout` seconds are over; `ClientTimeout` then says that it may be stored or not, and
        sending it again is safe: a second cancel, or decision on a call, changes nothing.
        """

    async def cancel(
        self, message_id: str, reason: str | None = None, *, timeout: float = COMMAND_TIMEOUT_S
    ) -> None:
        """Ask a run to end. Cancelling twice is one cancel; a finished run stays as it is."""
        await self.send_command(message_id, Cancel(reason=reason), timeout=timeout)

    def attached(self, message_id: str) -> "Run":
        """The handle of a run that somebody started."""
        return Run(self, message_id)

    @abstractmethod
    async def close(self) -> None:
        """End what this client started. Quick, whatever state the server is in."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    def _stream(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]: ...

    @abstractmethod
    async def _answer(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> RunResult: ...

    @abstractmethod
    async def _submit(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> None: ...

    @abstractmethod
    async def _ask(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> RunResult: ...

    @abstractmethod
    def _ask_stream(
        self, agent: str, request: RunRequest, headers: Mapping[str, str], timeout: float
    ) -> AsyncGenerator[Event, None]: ...


class Run:
    """The handle of one run, wherever it is: queued, running, waiting, finished."""

    def __init__(self, client: AgentClient, message_id: str, *, agent: str | None = None) -> None:
        self.message_id = message_id
        self.agent = agent
        self._client = client

    def __repr__(self) -> str:
        return f"Run({self.message_id!r}, agent={self.agent!r})"

    def events(
        self, after: int = 0, *, attempt: int | None = None, timeout: float = EVENT_TIMEOUT_S
    ) -> AsyncGenerator[Event, None]:
        """The run's events after sequence `after`; `attempt` as for `AgentClient.attach`."""
        return self._client.attach(self.message_id, after, attempt=attempt, timeout=timeout)

    async def result(self, *, timeout: float = ANSWER_TIMEOUT_S) -> RunResult:
        """The run's one result, as soon as there is one. A failed run's is returned too."""
        return await self._client.result(self.message_id, timeout=timeout)

    async def cancel(self, reason: str | None = None) -> None:
        """Ask the run to end."""
        await self._client.cancel(self.message_id, reason)

    async def send(self, command: RunCommand) -> None:
        """Store any command for the run."""
        await self._client.send_command(self.message_id, command)

    async def approve(self, tool_call_id: str, *, feedback: str | None = None) -> None:
        """Let a call that waits for approval run as its request shows it."""
        command = Approve(tool_call_id=tool_call_id, feedback=feedback)
        await self._client.send_command(self.message_id, command)

    async def deny(self, tool_call_id: str, *, feedback: str | None = None) -> None:
        """Do not let the call run; the model is told so, with the feedback."""
        command = Deny(tool_call_id=tool_call_id, feedback=feedback)
        await self._client.send_command(self.message_id, command)

    async def modify(
        self, tool_call_id: str, tool_input: dict[str, Any], *, feedback: str | None = None
    ) -> None:
        """Let the call run with these arguments instead."""
        command = Modify(tool_call_id=tool_call_id, tool_input=tool_input, feedback=feedback)
        await self._client.send_command(self.message_id, command)

    async def say(self, text: str) -> None:
        """A further user message, taken in before the next model call."""
        await self._client.send_command(self.message_id, Say(text=text))


def _id_of(request: RunRequest) -> str:
    assert request.message_id is not None  # compose_request sets it
    return request.message_id
