"""Citation tags such as `[3]` in a text that arrives in pieces: never cut in two. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from hayrunner_contracts.events import Data, StreamEvent, TextChunk

__all__ = ["TagFilter", "renumbered"]

_DIGITS_MOST = 4
_TAG = re.compile(rf"\[([0-9]{{1,{_DIGITS_MOST}}})\]")
_BEGUN = re.compile(rf"\[[0-9]{{0,{_DIGITS_MOST}}}\Z")


class TagFilter:
    """Holds back the end of a text while it may be the beginning of a tag: a bracket and at most
    four digits. Everything else passes at once; no text is changed or lost."""

    def __init__(self) -> None:
        self._held = ""
        self._step: int | None = None

    def feed(self, text: str) -> str:
        """What can be passed on now that `text` has come."""
        text = self._held + text
        begun = _BEGUN.search(text, max(0, len(text) - _DIGITS_MOST - 1))
        if begun is None:
            self._held = ""
            return text
        self._held = text[begun.start() :]
        return text[: begun.start()]

    def flush(self) -> str:
        """What was held back: no more text follows it."""
        held, self._held = self._held, ""
        return held

    def pass_on(self, events: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
        """The events with their text so filtered. Any event that is not text ends a tag that was
        begun; `data`, which may come from anywhere at any time, does not."""
        for event in events:
            if isinstance(event, TextChunk):
                self._step = event.step
                text = self.feed(event.content)
                if text:
                    yield event if text == event.content else replace(event, content=text)
                continue
            if self._held and not isinstance(event, Data):
                yield TextChunk(content=self.flush(), step=self._step)
            yield event


def renumbered(text: str, numbers: Mapping[int, int]) -> str:
    """`text` with the numbers of its tags replaced; a number that is not there is left as it is."""

    def renumber(tag: re.Match[str]) -> str:
        number = numbers.get(int(tag[1]))
        return tag[0] if number is None else f"[{number}]"

    return _TAG.sub(renumber, text)
