"""The answer of a subagent whose loop was cut short: one more model call over what it found."""

from collections.abc import Sequence
from dataclasses import replace

from haystack.dataclasses import ChatMessage
from haystack.tools import Toolset
from msgspec import UNSET

from hayrunner.adapters.body import RunBody
from hayrunner.adapters.context import RunContext
from hayrunner.adapters.loop import LoopAgent
from hayrunner.errors import MaxTurnsReached

__all__ = ["concluding"]

_CONCLUDE = (
    "No more tools can be called. Answer the task now, from what was found so far, and say what "
    "could not be found."
)


def concluding(body: RunBody, loop: LoopAgent, conversation: Sequence[ChatMessage]) -> RunBody:
    """`body`, whose loop over `conversation` ends with a text.

    Where the loop reaches its limit, or ends with a tool, exactly one further model call is made,
    without tools. A run that made no call at all has found nothing and stays as it is.
    """

    async def concluded(run: RunContext) -> object:
        try:
            answer: object = await body(run)
        except MaxTurnsReached:
            if not run.new_messages:
                raise
        else:
            if answer is not None or run.finish_reason != "tool":
                return answer
        return await _conclude(run, loop, conversation)

    return concluded


async def _conclude(
    run: RunContext, loop: LoopAgent, conversation: Sequence[ChatMessage]
) -> str | None:
    run.settings = replace(run.settings, max_turns=run.model_calls + 1, tool_choice=UNSET)
    run.new_messages.append(ChatMessage.from_user(_CONCLUDE))
    try:
        await loop.run_async(messages=[*conversation, *run.new_messages], tools=Toolset([]))
    except MaxTurnsReached:
        # It called a tool all the same; what it said with that is what there is.
        if run.last_text is None:
            raise
        return run.last_text
    return run.new_messages[-1].text
