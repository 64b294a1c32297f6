"""One attempt at one request."""

from typing import TYPE_CHECKING, Any

from haystack.dataclasses import ChatMessage
from msgspec import UNSET

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import as_chat_messages
from hayrunner.adapters.kept_steps import go_on_from
from hayrunner.adapters.outcome import RunOutcome, StepStore, StopCode
from hayrunner.adapters.session import LoopSession
from hayrunner.adapters.structured import ResponseFormat
from hayrunner.adapters.writer import StreamWriter
from hayrunner.errors import ConfigurationError
from hayrunner.run_inbox import RunInbox
from hayrunner_contracts.commands import RunCommand
from hayrunner_contracts.errors import InvalidRequest
from hayrunner_contracts.requests import RunRequest

if TYPE_CHECKING:
    from hayrunner.agent import Agent

__all__ = ["AgentSession"]


class AgentSession:
    """One attempt at one request. History and thread are loaded when it runs."""

    def __init__(self, agent: "Agent", request: RunRequest, run: RunContext) -> None:
        self._agent = agent
        self._request = request
        self._run = run
        self._inbox = run.inbox = run.inbox or RunInbox(run.message_id)
        self._writer: StreamWriter | None = None
        self._form = self._response_format()
        self._session = LoopSession(run, self._body, writer=self._make_writer())

    def _response_format(self) -> ResponseFormat | None:
        wanted = self._request.response_format
        after = self._run.settings.then_format
        if after is not None:
            if isinstance(wanted, dict):
                raise InvalidRequest(
                    "then_format must not be given beside response_format",
                    field="options.then_format",
                )
            return _form(after, "options.then_format", after_tools=True)
        if wanted is UNSET:
            own = self._agent.response_format
            return None if own is None else ResponseFormat(own)
        if wanted is None:
            return None
        return _form(wanted, "response_format")

    def _make_writer(self) -> StreamWriter | None:
        request = self._request
        if request.thread_id is None or not self._run.settings.memory:
            return None
        storage = self._agent.get_storage(request.thread_id)
        if storage is None:
            return None
        self._writer = StreamWriter(storage, self._run.message_id, self._asked())
        return self._writer

    def _asked(self) -> list[ChatMessage]:
        request = self._request
        if request.prompt is not None:
            return as_chat_messages(request.prompt)
        return as_chat_messages(request.messages or [])

    async def _conversation(self) -> list[ChatMessage]:
        history = self._run.settings.history
        if history is None and self._writer is not None:
            history = await self._writer.load(self._agent.max_history)
        return [*as_chat_messages(history or []), *self._asked()]

    async def _body(self, run: RunContext) -> Any:
        agent, request = self._agent, self._request
        messages = await self._conversation()
        if request.mode == "stream":
            adapter = agent.get_pipeline_adapter(request.thread_id, request.user)
            body = adapter.body(messages, response_format=self._form)
        else:
            body = agent.headless_body(
                messages, self._form, request.tools, request.thread_id, request.user
            )
        return await body(run)

    async def run(self) -> RunOutcome:
        """See `serving.served.RunSession`."""
        try:
            return await self._session.run()
        finally:
            self._inbox.close()

    def stop(self, code: StopCode, message: str) -> None:
        """See `serving.served.RunSession`."""
        self._session.stop(code, message)

    def command(self, command: RunCommand) -> None:
        """See `serving.served.RunSession`."""
        self._inbox.take(command)

    def durable(self, steps: StepStore) -> bool:
        """See `serving.served.RunSession`."""
        return go_on_from(self._run, steps)

    def unattended(self) -> None:
        """See `serving.served.RunSession`."""
        self._inbox.attended = False


def _form(schema: dict[str, Any], field: str, *, after_tools: bool = False) -> ResponseFormat:
    try:
        return ResponseFormat(schema, after_tools=after_tools)
    except ConfigurationError as error:
        raise InvalidRequest(str(error), field=field) from None
