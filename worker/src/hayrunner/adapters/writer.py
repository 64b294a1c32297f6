"""What a run leaves in its thread."""

from collections.abc import Sequence

from haystack.dataclasses import ChatMessage

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.convert import to_wire, unanswered_calls
from hayrunner.adapters.history import last_messages, repaired
from hayrunner.errors import HayrunnerError, StorageError
from hayrunner.storage.base import BaseStorageAdapter
from hayrunner_contracts import messages as wire
from hayrunner_contracts.errors import RunError

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
        """The thread before this run, with orphaned tool calls repaired; its last `max_messages`
        if that is given, beginning with a user message. Raises `StorageError`, or the storage's
        own `RunError`, such as that the thread is deleted."""
        try:
            messages = await self._storage.load(before_message_id=self._message_id)
        except (HayrunnerError, RunError):
            raise
        except Exception as error:
            # Policy: a run must not go on without the conversation it belongs to.
            raise StorageError("the thread could not be loaded") from error
        return last_messages(repaired(messages), max_messages)

    async def store(self, new_messages: Sequence[wire.ChatMessage]) -> None:
        """Append what was asked and what the run made of it. Raises `StorageError`."""
        try:
            await self._storage.append(self._message_id, [*self._asked, *new_messages])
        except (HayrunnerError, RunError):
            raise
        except Exception as error:
            # Policy: an answer that is not remembered is a failed run, not a quiet loss.
            raise StorageError("the thread could not be saved") from error
