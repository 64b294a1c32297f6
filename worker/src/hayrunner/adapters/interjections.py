"""Messages that come while a run goes on, and what the loop has to tell the model beside them."""

from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage

from hayrunner.adapters.context import RunContext
from hayrunner.adapters.model_call import may_call_model
from hayrunner_contracts.commands import COMMAND_REFUSED, SAID
from hayrunner_contracts.events import Data

__all__ = ["goes_on_for_what_was_said", "take_in"]


async def take_in(run: RunContext, state: State) -> None:
    """Before a model call: put the notes on decided calls and what was said meanwhile into the
    conversation, each as a user message. What would get no answer any more stays where it is."""
    if not may_call_model(run):
        return
    step = run.normalizer.step + 1
    if run.notes:
        _append(run, state, "\n".join(run.notes))
        run.notes.clear()
    if run.inbox is None or not run.inbox.has_said:
        return
    said = run.inbox.take_said()
    for text in said:
        _append(run, state, text)
    await run.emit([Data(data_type=SAID, data={"text": text}, step=step) for text in said])


def _append(run: RunContext, state: State, text: str) -> None:
    message = ChatMessage.from_user(text)
    run.new_messages.append(message)
    state.set("messages", [message])


async def goes_on_for_what_was_said(run: RunContext) -> bool:
    """Where the loop would end: whether something was said meanwhile that another model call may
    answer. Where none may be made, the answer stands, and the sender is told."""
    if run.inbox is None or not run.inbox.has_said or run.finish_reason == "stopped":
        return False
    if may_call_model(run):
        run.finish_reason = None
        return True
    reason = "the run may make no further model call"
    told = {"command": "say", "reason": reason}
    refusals = [Data(data_type=COMMAND_REFUSED, data=told) for _ in run.inbox.take_said()]
    await run.emit(refusals)
    return False
