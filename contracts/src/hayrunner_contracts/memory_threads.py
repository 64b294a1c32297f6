"""Threads without a bus, for the tests of services that use them."""

from collections.abc import Callable

import msgspec

from hayrunner_contracts.codec import encode
from hayrunner_contracts.headers import MSG_ID
from hayrunner_contracts.messages import ChatMessage
from hayrunner_contracts.requests import RunRequest
from hayrunner_contracts.results import RunResult
from hayrunner_contracts.thread_log import ThreadLog, now
from hayrunner_contracts.threads import ThreadInfo, ThreadMessages, ThreadRecord

__all__ = ["InMemoryThreadStore", "remembered"]


class InMemoryThreadStore:
    """A `ThreadStore` in this process's memory."""

    def __init__(self) -> None:
        self._logs: dict[str, ThreadLog] = {}

    async def read(self, thread_id: str) -> ThreadLog:
        """The thread."""
        return self._logs.get(thread_id) or ThreadLog(thread_id)

    async def change(
        self,
        thread_id: str,
        decide: Callable[[ThreadLog], ThreadRecord | None],
        *,
        record_id: str,
        log: ThreadLog | None = None,
    ) -> ThreadLog:
        """See `ThreadStore`. Nothing happens in between: there is only this process."""
        current = await self.read(thread_id)
        record = None if current.has_record(record_id) else decide(current)
        if record is not None:
            sequence = current.last_sequence + 1
            current.take(encode(record), sequence=sequence, headers={MSG_ID: record_id})
            self._logs[thread_id] = current
        return current

    async def infos(self) -> list[ThreadInfo]:
        """Every thread."""
        threads = [log.thread() for log in self._logs.values()]
        names = ThreadInfo.__struct_fields__
        return [
            ThreadInfo(**{name: getattr(thread, name) for name in names})
            for thread in threads
            if thread is not None
        ]


def remembered(agent: str, request: RunRequest, result: RunResult) -> ThreadMessages | None:
    """What a run leaves in its thread; None for a run without one, or that left nothing."""
    options = request.options
    if request.thread_id is None or options.memory is False or options.history is not msgspec.UNSET:
        return None
    if result.answer is None or result.answer == "":
        return None
    asked = request.messages or [ChatMessage.user(request.prompt or "")]
    answer = result.answer
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    return ThreadMessages(
        at=now(),
        message_id=result.message_id,
        agent=agent,
        messages=[*asked, ChatMessage.assistant(text)],
    )
