"""What a run leaves in its thread."""

from collections.abc import Sequence

from haystack.dataclasses import ChatMessage

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import to_wire, unanswered_calls
from hayrunner.errors import StorageError
from hayrunner.storage.base import BaseStorageAdapter
from hayrunner_contracts import messages as wire

__all__ = ["StreamWriter", "close_history"]


def close_history(run: RunContext, finish_reason: str, why: str) -> None:
    """Make the history of a run that ended early valid: the partial message is kept, and every
    call that has no result gets one that says `why`."""
    normalizer = run.normalizer
    if normalizer.open and normalizer.partial_text:
        run.new_messages.append(
            ChatMessage.from_assistant(
                text=normalizer.partial_text, meta={"finish_reason": finish_reason}
            )
        )
    run.new_messages.extend(
        ChatMessage.from_tool(tool_result=why, origin=call, error=True)
        for call in unanswered_calls(run.new_messages)
    )


class StreamWriter:
    """Writes one run into its thread, once."""

    def __init__(
        self, storage: BaseStorageAdapter, message_id: str, asked: Sequence[ChatMessage]
    ) -> None:
        self._storage = storage
        self._message_id = message_id
        self._asked = [to_wire(message) for message in asked]

    async def load(self, max_messages: int | None = None) -> list[wire.ChatMessage]:
        """The thread so far, its last `max_messages` if that is given, beginning with a user
        message. Raises `StorageError`."""
        try:
            messages = await self._storage.load()
        except Exception as error:
            # Policy: a run must not go on without the conversation it belongs to.
            raise StorageError("the thread could not be loaded") from error
        if max_messages is not None and len(messages) > max_messages:
            messages = messages[-max_messages:] if max_messages else []
            while messages and messages[0].role != "user":
                del messages[0]
        return messages

    async def store(self, new_messages: Sequence[wire.ChatMessage]) -> None:
        """Append what was asked and what the run made of it. Raises `StorageError`."""
        try:
            await self._storage.append(self._message_id, [*self._asked, *new_messages])
        except Exception as error:
            # Policy: an answer that is not remembered is a failed run, not a quiet loss.
            raise StorageError("the thread could not be saved") from error
