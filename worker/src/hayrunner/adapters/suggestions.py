"""Follow-up questions, offered after an answer."""

import asyncio
import copy
import logging
import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from haystack.dataclasses import ChatMessage, ChatRole

from hayrunner.adapters.run import Run

__all__ = ["Suggesting", "SuggestionGenerator", "bound", "suggested"]

logger = logging.getLogger(__name__)

_MOST = 3
_LONGEST = 300
_MESSAGES_SHOWN = 6
_CHARACTERS_SHOWN = 2_000
_LIST = re.compile(r"\[.*\]", re.DOTALL)

_PROMPT = (
    "You are shown a conversation between a user and an assistant. Write up to three short "
    "questions that the user may want to ask next, in the language of the user and in the user's "
    "words. Reply with a JSON list of strings and nothing else."
)


class SuggestionGenerator:
    """Asks `generator` for follow-up questions; the agent's own where it has none.

    Override `generate` to find them in another way. Whatever it raises, and being slower than
    `limit_s` seconds, means that there are none.
    """

    generator: Any = None
    prompt: str = _PROMPT
    limit_s: float = 5.0

    def __init__(self, generator: Any = None) -> None:
        self.generator = generator

    async def generate(self, messages: Sequence[ChatMessage], response: str) -> list[str]:
        """Questions the user may ask next. `messages` is the conversation up to the user's last
        message, `response` the answer to it. The first three are used."""
        if self.generator is None:
            return []
        reply = await Run(self.generator, instructions=self.prompt).run(
            _transcript(messages, response)
        )
        found = _LIST.search(reply or "")
        return msgspec.json.decode(found[0], type=list[str]) if found else []


Suggesting = SuggestionGenerator | type[SuggestionGenerator]


def bound(suggesting: Suggesting, generator: Any) -> SuggestionGenerator:
    """A suggestion generator that has a chat generator: its own, or this one."""
    made = suggesting() if isinstance(suggesting, type) else suggesting
    if made.generator is not None:
        return made
    made = copy.copy(made)
    made.generator = generator
    return made


async def suggested(
    generator: SuggestionGenerator, messages: Sequence[ChatMessage], response: str
) -> list[str]:
    """At most three questions, in time, or none."""
    try:
        async with asyncio.timeout(generator.limit_s):
            found: Any = await generator.generate(messages, response)
    # Policy: the answer is there; that nothing can be suggested after it is no failure of the run.
    except Exception as error:
        logger.info("no suggestions: %s", type(error).__qualname__)
        return []
    return _usable(found)


def _usable(found: Any) -> list[str]:
    if not isinstance(found, list | tuple):
        return []
    texts = (item.strip() for item in cast("list[Any]", found) if isinstance(item, str))
    kept = dict.fromkeys(text for text in texts if 0 < len(text) <= _LONGEST)
    return list(kept)[:_MOST]


def _transcript(messages: Sequence[ChatMessage], response: str) -> str:
    said = [
        f"{'User' if message.is_from(ChatRole.USER) else 'Assistant'}: "
        f"{message.text[:_CHARACTERS_SHOWN]}"
        for message in messages
        if message.text and message.role in (ChatRole.USER, ChatRole.ASSISTANT)
    ]
    return "\n\n".join([*said[-_MESSAGES_SHOWN:], f"Assistant: {response[:_CHARACTERS_SHOWN]}"])
